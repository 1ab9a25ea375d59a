"""A failure beside the training (an evaluation, an action, the logs of a loop) does not lose trained steps."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.actions import triggers
from official_ext.training.checkpoints import manifests
from official_ext.training.loop import base_trainer
from official_ext.training.loop import train_lib
from official_ext.training.writers import writers
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run

# Evaluations at 6 and 12, checkpoints at 4, 8 and 12. Early stopping never comes; its state must survive.
TRAINER = {
  'early_stopping': {'metric': 'validation_loss', 'patience': 100, 'mode': 'min'},
  'best_checkpoint_export_subdir': 'best',
  'best_checkpoint_eval_metric': 'validation_loss',
  'best_checkpoint_metric_comp': 'lower',
}


class Failure(Exception):  # noqa: N818
  """The exception of a user's code."""


def fail(*_):
  raise Failure('a mistake')


class FailingEvaluation(small_run.SmallTask):
  """Fails at the end of every evaluation."""

  def aggregate_logs(self, state=None, step_outputs=None):
    return 1

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    fail()


class FailingTask(small_run.SmallTask):
  """Has an action that fails."""

  make_trigger = None

  def build_actions(self, trainer):
    return [type(self).make_trigger()]


class FailingLogs(base_trainer.Trainer):
  """Fails to make the logs of the loop that ends at step 10."""

  def train_loop_end(self):
    logs = super().train_loop_end()
    if int(self.global_step.numpy()) == 10:
      fail()
    return logs


def with_action(make_trigger):
  return {'task_cls': type('Task', (FailingTask,), {'make_trigger': staticmethod(make_trigger)})}


def at_step(step):

  def action(logs):
    if int(logs['model_global_step']) == step:
      fail()

  return action


def run(folder, **kwargs):
  return small_run.run(folder, **{'trainer': TRAINER, **kwargs})


def run_with_trainer(folder, trainer_cls):
  params = small_run.make_params(**TRAINER)
  task = small_run.make_task(params)
  with harness.strategy('one').scope():
    optimizer = task.create_optimizer(params.trainer.optimizer_config)
    trainer = trainer_cls(params, task, task.build_model(), optimizer)
  return train_lib.run_experiment(
    harness.strategy('one'), task, 'train_and_eval', params, str(folder), options=train_lib.RunOptions(trainer=trainer)
  )


def reported(folder, event):
  names = {'eval': ('step', 'validation_loss', 'accuracy'), 'train': ('step', 'training_loss', 'grad_norm')}[event]
  return [
    tuple(line[name] for name in names)
    for line in writers.read_events(str(folder / 'events.jsonl'))
    if line['event'] == event
  ]


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  """(variables, folder) of a run without failures."""
  folder = tmp_path_factory.mktemp('straight')
  model, _ = run(folder)
  return [variable.numpy() for variable in model.variables], folder


def assert_resumes_as(straight, folder, restored):
  """The same command, mended, ends as the run without failures: bit for bit, and with the same reports."""
  model, _ = run(folder)
  variables, expected = straight
  assert small_run.events(folder, 'restored')[-1]['step'] == restored
  for one, other in zip(variables, model.variables, strict=True):
    np.testing.assert_array_equal(one, other.numpy())
  for event in ('train', 'eval'):
    assert reported(folder, event) == reported(expected, event)
  for name in ('history.json', 'info.json'):
    assert (folder / 'best' / name).read_text() == (expected / 'best' / name).read_text()
  last = [manifests.read(f'{root}/ckpt-12') for root in (folder, expected)]
  assert last[0]['actions'] == last[1]['actions']


def test_an_evaluation_that_fails_again_and_again_costs_no_training(straight, tmp_path):
  # Before: nothing was saved at step 6, and every restart trained from step 4 to 6 again.
  for attempt in range(2):
    with pytest.raises(Failure):
      run(tmp_path, task_cls=FailingEvaluation)
    assert [event['step'] for event in small_run.events(tmp_path, 'checkpoint')] == [4, 6]
    assert manifests.read(f'{tmp_path}/ckpt-6')['evaluation_pending'] is True
    assert small_run.record(tmp_path)['status'] == 'failed' and small_run.record(tmp_path)['step'] == 6
    assert [event['step'] for event in small_run.events(tmp_path, 'restored')] == [6] * attempt
  assert small_run.events(tmp_path, 'train')[-1]['step'] == 6
  assert_resumes_as(straight, tmp_path, restored=6)


@pytest.mark.soak
def test_a_mode_without_evaluation_continues_past_one_that_fails(tmp_path):
  with pytest.raises(Failure):
    run(tmp_path, task_cls=FailingEvaluation)
  small_run.run(tmp_path, 'train', task_cls=FailingEvaluation)
  assert small_run.record(tmp_path)['status'] == 'finished'
  assert [event['step'] for event in small_run.events(tmp_path, 'restored')] == [6]


CASES = {
  # name: (arguments, the step that is saved, whether its evaluation is pending)
  'an action of an evaluation': (lambda: with_action(lambda: triggers.OnBest('validation_loss', fail)), 6, True),
  'a metric that no evaluation has': (lambda: with_action(lambda: triggers.OnBest('f_score', print)), 6, True),
  'an action between evaluations': (lambda: with_action(lambda: triggers.EveryNSteps(10, fail)), 10, False),
  'an action where an evaluation is due': (lambda: with_action(lambda: triggers.EveryNSteps(6, fail)), 6, True),
  "an action of Orbit's": (lambda: {'train_actions': [at_step(10)]}, 10, False),
  "an evaluation's action of Orbit's": (lambda: {'eval_actions': [fail]}, 6, True),
}
FAST = ['a metric that no evaluation has']


@pytest.mark.slow
@pytest.mark.parametrize('name', harness.cases(FAST, soak=[name for name in CASES if name not in FAST]))
def test_what_fails_beside_the_training_does_not_cost_it(name, straight, tmp_path):
  make_arguments, saved, is_pending = CASES[name]
  with pytest.raises((Failure, errors.UserError)):
    run(tmp_path, **make_arguments())
  assert small_run.events(tmp_path, 'checkpoint')[-1]['step'] == saved
  assert bool(manifests.read(f'{tmp_path}/ckpt-{saved}').get('evaluation_pending')) == is_pending
  if name == 'an action where an evaluation is due':  # Its other actions had none to remember: they differ.
    model, _ = run(tmp_path)
    for one, other in zip(straight[0], model.variables, strict=True):
      np.testing.assert_array_equal(one, other.numpy())
    assert reported(tmp_path, 'eval') == reported(straight[1], 'eval')
  else:
    assert_resumes_as(straight, tmp_path, restored=saved)


@pytest.mark.slow
def test_logs_of_a_loop_that_cannot_be_made_do_not_cost_its_steps(straight, tmp_path):
  with pytest.raises(Failure):
    run_with_trainer(tmp_path, FailingLogs)
  assert small_run.events(tmp_path, 'checkpoint')[-1]['step'] == 10
  model, _ = run(tmp_path)
  for one, other in zip(straight[0], model.variables, strict=True):
    np.testing.assert_array_equal(one, other.numpy())


def test_steps_that_fail_themselves_are_not_saved(tmp_path):

  class FailingStep(small_run.SmallTask):
    def forward(self, inputs, model, training):
      loss, logs = super().forward(inputs, model, training)
      ok = tf.debugging.assert_less(tf.where(training, self.step, 0), tf.constant(6, tf.int64))
      with tf.control_dependencies([ok]):
        return tf.identity(loss), logs

  with pytest.raises(tf.errors.InvalidArgumentError):
    small_run.run(tmp_path, 'train', FailingStep)
  assert [event['step'] for event in small_run.events(tmp_path, 'checkpoint')] == [4]


def _of_state(self, aggregated_logs, global_step=None):
  return aggregated_logs


def _without_step(self, aggregated_logs):
  return {}


def _aggregates(self, state=None, step_outputs=None):
  return [1]


def _without_outputs(self, state=None):
  return state


@tiers.parametrize(
  ('aggregate', 'reduce', 'message'),
  [
    (_aggregates, _of_state, r'reduce_aggregated_logs: TypeError: must return a dictionary of logs; it returned \[1\]'),
    (_aggregates, _without_step, r"reduce_aggregated_logs: TypeError: .*unexpected keyword argument 'global_step'"),
    (_without_outputs, _of_state, r'aggregate_logs: TypeError: .*_without_outputs\(\) takes .* arguments'),
  ],
  fast=1,
)
def test_an_error_of_aggregated_logs_names_the_method_of_the_task(aggregate, reduce, message, tmp_path):
  task = type('Aggregating', (small_run.SmallTask,), {'aggregate_logs': aggregate, 'reduce_aggregated_logs': reduce})
  with pytest.raises(errors.UserError, match=rf'failing_evaluation_test.py:\d+: Aggregating.{message}'):
    small_run.run(tmp_path, task_cls=task, trainer={'train_steps': 4, 'validation_interval': 4})


def test_actions_get_the_epoch_of_an_evaluation_as_of_a_training_loop(tmp_path):
  """64 examples in batches of 8."""
  seen = []
  action = triggers.OnEvent(('train', 'eval'), lambda logs: seen.append((logs['event'], logs['step'], logs['epoch'])))
  task = type('Watched', (small_run.SmallTask,), {'build_actions': lambda self, trainer: [action]})
  small_run.run(tmp_path, task_cls=task, trainer={'train_steps': 6})
  assert [each for each in seen if each[1] == 6] == [('train', 6, 6 / 8), ('eval', 6, 6 / 8)]
