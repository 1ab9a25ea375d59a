"""Early stopping: when, and that a run that was killed stops where it would have."""

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.training.actions import plateau
from official_ext.training.actions import triggers
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.loop import run_checks
from tests.training.loop import small_run

# By step. Best at 4; 10 is not better.
SCORES = {2: 0.1, 4: 0.5, 6: 0.4, 8: 0.45, 10: 0.5, 12: 0.3, 14: 0.2, 16: 0.6}
STOPPED_AT = 10
TRAINER = {
  'train_steps': 16,
  'validation_interval': 2,
  'checkpoint_interval': 4,
  'early_stopping': {'metric': 'score', 'mode': 'max', 'patience': 3},
}
REASON = 'score was best at step 4: 0.5, and has not improved in 3 evaluations (trainer.early_stopping.patience 3)'


class KilledError(BaseException):
  pass


class ScoredTask(small_run.SmallTask):
  """Reports SCORES."""

  def aggregate_logs(self, state=None, step_outputs=None):
    return state or {'batches': 1}

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {'score': SCORES[int(global_step.numpy())]}


class KilledTask(ScoredTask):
  """Dies after the evaluation that would be the last, and before its checkpoint."""

  def build_actions(self, trainer):

    def die(logs):
      if logs['step'] == STOPPED_AT:
        raise KilledError

    return [triggers.OnEvent('eval', die)]


def evaluations(folder):
  return [(line['step'], line['score']) for line in small_run.events(folder, 'eval')]


@pytest.mark.slow
def test_early_stopping(tmp_path, capsys):
  straight, logs = small_run.run(tmp_path / 'a', task_cls=ScoredTask, trainer=TRAINER)
  assert logs['score'] == SCORES[STOPPED_AT]
  assert evaluations(tmp_path / 'a') == [(step, SCORES[step]) for step in range(2, STOPPED_AT + 1, 2)]
  record = small_run.record(tmp_path / 'a')
  assert (record['status'], record['step'], record['early_stopped']) == ('finished', STOPPED_AT, REASON)
  assert [line for line in capsys.readouterr().out.splitlines() if 'early_stopped' in line] == [
    f'early_stopped {STOPPED_AT}/16  reason {REASON}'
  ]

  # Killed, and started again: the count resumes from the checkpoint at 8.
  with pytest.raises(KilledError):
    small_run.run(tmp_path / 'b', task_cls=KilledTask, trainer=TRAINER)
  resumed, _ = small_run.run(tmp_path / 'b', task_cls=ScoredTask, trainer=TRAINER)
  assert [line['step'] for line in small_run.events(tmp_path / 'b', 'restored')] == [8]
  assert evaluations(tmp_path / 'b')[-1] == (STOPPED_AT, SCORES[STOPPED_AT])
  assert [line['step'] for line in small_run.events(tmp_path / 'b', 'early_stopped')] == [STOPPED_AT]
  for one, other in zip(straight.variables, resumed.variables):
    np.testing.assert_array_equal(one.numpy(), other.numpy())

  # Once more: it has stopped, until it is given more patience.
  small_run.run(tmp_path / 'b', task_cls=ScoredTask, trainer=TRAINER)
  assert small_run.record(tmp_path / 'b')['step'] == STOPPED_AT
  assert [line['step'] for line in small_run.events(tmp_path / 'b', 'train')][-1] == STOPPED_AT
  patient = {**TRAINER, 'early_stopping': {'metric': 'score', 'mode': 'max', 'patience': 6}}
  small_run.run(tmp_path / 'b', task_cls=ScoredTask, trainer=patient)
  assert evaluations(tmp_path / 'b')[-1] == (16, SCORES[16])
  assert small_run.record(tmp_path / 'b').get('early_stopped') is None


def stops_at(config, values):
  trigger = plateau.EarlyStopping(definitions.EarlyStoppingConfig(metric='loss', **config))
  for step, value in enumerate(values, 1):
    try:
      trigger({'step': step, 'loss': value})
    except errors.StopTraining as stop:
      return step, str(stop)
  return None


@pytest.mark.parametrize(
  'config, values, step',
  [
    ({'mode': 'min', 'patience': 2}, [3, 2, 2.5, 1.9, 1.95, 2.0], 6),
    ({'mode': 'min', 'patience': 2, 'min_delta': 0.2}, [3, 2, 2.5, 1.9, 1.95, 2.0], 4),
    ({'mode': 'max', 'patience': 1}, [1, 2, 2], 3),
    ({'mode': 'min', 'patience': 3}, [3, np.nan, 2, np.nan, np.nan, np.nan], 6),
  ],
)
def test_patience(config, values, step):
  assert stops_at(config, values)[0] == step
  assert stops_at(config, values[: step - 1]) is None


def test_a_metric_that_was_never_finite():
  assert stops_at({'patience': 2}, [np.nan, np.inf])[1].startswith('loss has never been a finite number, and has not')


def test_mistakes(tmp_path):
  params = small_run.make_params(early_stopping={'metric': 'score'})
  with pytest.raises(errors.UserError, match='mode train does not evaluate while it trains; use train_and_eval'):
    run_checks.check_metrics(params.trainer, None, None, 'train', evaluates=False)
  with pytest.raises(errors.UserError, match='^trainer.early_stopping.metric: acuracy: did you mean accuracy'):
    small_run.run(tmp_path / 'a', trainer={'early_stopping': {'metric': 'acuracy'}})
  assert not (tmp_path / 'a').exists()
  for field, value, message in [
    ('mode', 'best', r"'best' is"),
    ('mode', 'auto', 'the name score does not imply'),
    ('patience', 0, 'expected at least 1, got 0'),
  ]:
    params = small_run.make_params(early_stopping={'metric': 'score', field: value})
    with pytest.raises(errors.UserError, match=f'trainer.early_stopping.{field}: {message}'):
      checks.check(params, None)
