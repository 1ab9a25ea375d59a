"""Actions in whole runs: taken in their time, with their state after a restart."""

import pytest

from official_ext.base import errors
from official_ext.base.run_folder import run_files
from official_ext.training.actions import triggers
from official_ext.training.checkpoints import manifests
from tests.training.loop import small_run


def task_with(*make_actions, **attributes):
  """A task whose actions are `make(trainer)` for each of `make_actions`."""

  def build_actions(self, trainer):
    return [make(trainer) for make in make_actions]

  return type('ActingTask', (small_run.SmallTask,), {'build_actions': build_actions, **attributes})


class Calls:
  """Records its arguments."""

  def __init__(self):
    self.all_logs = []

  def __call__(self, logs):
    self.all_logs.append(logs)

  @property
  def steps(self):
    return [logs['step'] for logs in self.all_logs]


@pytest.mark.slow
def test_actions_of_a_run(tmp_path):
  """12 steps in loops of 5, checkpoints at 4, 8 and 12, evaluations at 6 and 12, and loops that end at 3 and 9 too."""
  calls = {name: Calls() for name in ('plain', 'every 3', 'checkpoint', 'finished', 'eval', 'end', 'clock')}
  seen_by_step = []
  small_run.run(
    tmp_path,
    task_cls=task_with(
      lambda trainer: calls['plain'],
      lambda trainer: triggers.EveryNSteps(
        3, [calls['every 3'], lambda logs: seen_by_step.append((logs['step'], int(trainer.global_step)))]
      ),
      lambda trainer: triggers.OnEvent(('start', 'checkpoint'), calls['checkpoint']),
      lambda trainer: triggers.OnEvent('finished', calls['finished']),
      lambda trainer: triggers.OnEvent('eval', calls['eval']),
      lambda trainer: triggers.EveryTSeconds(0.0, calls['clock']),
      lambda trainer: triggers.AtEnd(calls['end']),
    ),
  )
  assert calls['every 3'].steps == [3, 6, 9, 12]
  assert seen_by_step == [(3, 3), (6, 6), (9, 9), (12, 12)]
  assert calls['plain'].steps == calls['clock'].steps == [3, 4, 5, 6, 8, 9, 10, 12]
  assert calls['checkpoint'].steps == [0, 4, 8, 12]
  assert calls['checkpoint'].all_logs[1]['checkpoint'].endswith('ckpt-4')
  assert calls['eval'].steps == [6, 12]
  assert calls['finished'].steps == calls['end'].steps == [12]
  lines = small_run.events(tmp_path)
  for name in ('train', 'eval'):
    last = [line for line in lines if line['event'] == name][-1]
    key = {'train': 'training_loss', 'eval': 'validation_loss'}[name]
    assert calls['end'].all_logs[0][key] == last[key]


@pytest.mark.parametrize('make_trigger', [lambda action: action, triggers.AtEnd])
def test_an_action_that_fails_ends_the_run(make_trigger, tmp_path):

  def fail(logs):
    raise ArithmeticError('no such export')

  with pytest.raises(ArithmeticError):
    small_run.run(tmp_path, 'train', task_with(lambda trainer: make_trigger(fail)), trainer={'train_steps': 2})
  record = small_run.record(tmp_path)
  assert (record['status'], record['error']) == ('failed', 'ArithmeticError: no such export')
  assert small_run.events(tmp_path)[-1]['event'] == 'failed'


def test_an_action_whose_error_has_no_message_fails_the_run(tmp_path):
  # Before: run.json said that the run continued.
  class UnprintableError(Exception):
    def __str__(self):
      return self.missing

  def fail(logs):
    raise UnprintableError

  with pytest.raises(UnprintableError):
    small_run.run(tmp_path, 'train', task_with(lambda trainer: fail), trainer={'train_steps': 2})
  record = small_run.record(tmp_path)
  assert record['status'] == 'failed'
  assert record['error'] == 'UnprintableError: its message cannot be read (AttributeError)'


def test_what_is_no_action_fails_the_run(tmp_path):
  with pytest.raises(ValueError):
    small_run.run(tmp_path, 'train', task_with(lambda trainer: 'no function'), trainer={'train_steps': 2})
  assert small_run.record(tmp_path)['status'] == 'failed'


def test_a_writer_that_cannot_be_made_does_not_end_the_run(tmp_path):
  (tmp_path / 'train.csv').write_text('no such header')
  small_run.run(tmp_path, 'train', trainer={'train_steps': 2, 'writers': ['csv']})
  assert small_run.record(tmp_path)['status'] == 'finished'


def test_an_action_may_end_training(tmp_path, capsys):
  """The loop that it ends is saved and evaluated, off the multiples of both."""

  def stop(logs):
    if logs['step'] >= 5:
      raise errors.StopTraining('it is good enough')

  small_run.run(tmp_path, task_cls=task_with(lambda trainer: stop))
  record = small_run.record(tmp_path)
  assert (record['status'], record['step'], record['early_stopped']) == ('finished', 5, 'it is good enough')
  assert [(line['event'], line['step']) for line in small_run.events(tmp_path)][-5:] == [
    ('train', 5),
    ('eval', 5),
    ('checkpoint', 5),
    ('early_stopped', 5),
    ('finished', 5),
  ]
  (line,) = [line for line in capsys.readouterr().out.splitlines() if 'good enough' in line]
  assert line == 'early_stopped 5/12  reason it is good enough'


# Without a run.


def saved(tmp_path, **state):
  """A checkpoint whose manifest holds the state of actions."""
  for part in ('index', 'data-00000-of-00001'):
    (tmp_path / f'ckpt-4.{part}').write_text('')
  manifests.write(str(tmp_path / 'ckpt-4'), **{triggers.STATE: state})
  return str(tmp_path / 'ckpt-4')


def test_state_is_that_of_the_checkpoint(tmp_path):
  calls = Calls()
  actions = triggers.EventActions([triggers.OnBest('score', calls)])
  actions.take('eval', 2, {'score': 0.5})
  state = actions.state()
  assert state == {'OnBest/score': {'best': 0.5, 'best_step': 2, 'last_step': 2, 'num_since': 0}}
  actions.take('eval', 6, {'score': 0.9})
  actions.restore(saved(tmp_path, **state))
  assert actions.state() == state
  actions.take('eval', 6, {'score': 0.8})
  assert calls.steps == [2, 6, 6]


def test_a_checkpoint_without_state_starts_afresh(tmp_path):
  calls = Calls()
  actions = triggers.EventActions([triggers.OnBest('score', calls)])
  actions.take('eval', 2, {'score': 0.5})
  actions.restore(str(tmp_path / 'of-somebody-else-4'))
  actions.take('eval', 6, {'score': 0.1})
  assert calls.steps == [2, 6]


def test_two_triggers_of_a_kind_have_states_of_their_own():
  actions = triggers.EventActions([triggers.OnBest('score', print), triggers.OnBest('score', print, 'min')])
  actions.take('eval', 1, {'score': 1.0})
  actions.take('eval', 2, {'score': 2.0})
  assert {name: state['best'] for name, state in actions.state().items()} == {
    'OnBest/score': 2.0,
    'OnBest/score#2': 1.0,
  }


def test_the_clock_of_the_chief_decides():
  """On a worker that is not the chief the condition is not requested."""
  for answer in (True, False):
    calls, asked = Calls(), []
    trigger = triggers.EveryTSeconds(1e9 if answer else 0.0, calls)
    actions = triggers.EventActions(
      [trigger], lambda topic, make, answer=answer, asked=asked: asked.append(topic) or answer
    )
    actions.take('train', 3, {})
    assert calls.steps == ([3] if answer else [])
    assert asked == ['action EveryTSeconds']


@pytest.mark.parametrize('event', run_files.LAST_EVENTS)
def test_how_a_run_has_ended_is_not_changed_by_an_action(event, caplog):

  def fail(logs):
    raise ArithmeticError('no such export')

  triggers.EventActions([triggers.OnEvent(event, fail)]).take(event, 3, {})
  assert 'no such export' in caplog.text


def test_what_is_no_action():
  with pytest.raises(ValueError, match='build_actions: 3 is not an action'):
    triggers.EventActions([3])


@pytest.mark.slow
def test_a_finished_run_that_is_started_again_reports_nothing_twice(tmp_path, capsys):
  """Neither its events, nor its actions, nor messages; new ones are reported."""
  calls = Calls()
  task_cls = task_with(
    lambda trainer: triggers.OnEvent(('start', 'restored', 'eval', 'finished'), calls),
    lambda trainer: triggers.AtEnd(calls),
  )
  _, logs = small_run.run(tmp_path, task_cls=task_cls)
  before, num_calls = small_run.events(tmp_path), len(calls.steps)
  capsys.readouterr()
  _, again = small_run.run(tmp_path, task_cls=task_cls)
  assert again['validation_loss'] == logs['validation_loss']  # As Model Garden, run_experiment returns them.
  assert small_run.events(tmp_path) == before and len(calls.steps) == num_calls
  assert capsys.readouterr().out == 'finished before, at step 12: nothing to do\n'
  record = small_run.record(tmp_path)
  assert (record['status'], record['step'], record['attempt']) == ('finished', 12, 2)
  # Another mode is another run; a longer one continues.
  small_run.run(tmp_path, 'train', task_cls=task_cls)
  assert [line['event'] for line in small_run.events(tmp_path)[len(before) :]] == ['start', 'restored', 'finished']
  before = small_run.events(tmp_path)
  small_run.run(tmp_path, 'train', task_cls=task_cls, trainer={'train_steps': 16})
  recorded = [line['event'] for line in small_run.events(tmp_path)[len(before) :]]
  assert recorded[:2] == ['start', 'restored'] and recorded[-1] == 'finished' and 'train' in recorded


@pytest.mark.slow
def test_a_finished_run_that_fails_when_it_is_started_again_reports_it(tmp_path):
  small_run.run(tmp_path, trainer={'train_steps': 2})

  class Failing(small_run.SmallTask):
    def validation_step(self, inputs, model, metrics=None):
      raise ArithmeticError('no such data')

  with pytest.raises(Exception, match='no such data'):
    small_run.run(tmp_path, task_cls=Failing, trainer={'train_steps': 2})
  assert [line['event'] for line in small_run.events(tmp_path)][-3:] == ['start', 'restored', 'failed']
