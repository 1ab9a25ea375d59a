"""A task that owns its loop: its run has the record, events and ends of any other."""

import json

import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.config import definitions
from official_ext.training.loop import train_lib
from official_ext.training.tasks import loop_task
from official_ext.training.writers import writers


class Watch:
  """Asks to stop on request."""

  requested: str | None = None


class CountingTask(loop_task.LoopTask):
  """Counts to `trainer.train_steps`; at some steps something happens."""

  def __init__(self, happens=(), **kwargs):
    super().__init__(definitions.TaskConfig(), **kwargs)
    self.happens = dict(happens)

  def check_loop(self, params, model_dir, previous):
    self.seen = previous and previous['status']
    if self.happens.get('check'):
      raise errors.UserError('task: not so')

  def run_loop(self, run):
    run.enter('load')
    run.keep('notes.txt', b'of this run')
    if run.has_finished_before:
      return {}
    run.begin(self.happens.get('begin', 0))
    for step in range(run.step + 1, run.params.trainer.train_steps + 1):
      if step in self.happens:
        self.happens[step]()
      run.advance(step)
      run.report('train', {'loss': 1 / step})
      if run.stop_requested:
        break
    run.model = 'the model'
    return {'loss': 1 / run.step}


def make_params(train_steps=4):
  params = definitions.ExperimentConfig()
  params.trainer.__dict__.update(train_steps=train_steps, writers=())
  return params


def run(folder, task, train_steps=4, mode='train', **options):
  return train_lib.run_experiment(
    tf.distribute.get_strategy(),
    task,
    mode,
    make_params(train_steps),
    str(folder),
    options=train_lib.RunOptions(**options),
  )


def record_of(folder):
  return json.loads((folder / 'run.json').read_text())


def events_of(folder):
  return [(event['event'], event['step']) for event in writers.read_events(str(folder / 'events.jsonl'))]


def test_it_runs_and_is_not_run_again(tmp_path):
  task = CountingTask()
  assert run(tmp_path, task) == ('the model', {'loss': 0.25})
  record = record_of(tmp_path)
  assert (record['status'], record['step'], record['train_steps'], record['attempt']) == ('finished', 4, 4, 1)
  assert events_of(tmp_path) == [('start', 0), *(('train', step) for step in (1, 2, 3, 4)), ('finished', 4)]
  assert (tmp_path / 'params.yaml').exists() and (tmp_path / 'notes.txt').read_text() == 'of this run'
  assert not (tmp_path / 'training.lock').exists()
  before = (tmp_path / 'events.jsonl').read_bytes()
  assert run(tmp_path, task) == (None, {}) and task.seen == 'finished'
  record = record_of(tmp_path)
  assert (record['status'], record['step'], record['attempt']) == ('finished', 4, 2)
  assert (tmp_path / 'events.jsonl').read_bytes() == before


def test_it_is_stopped_and_resumes_at_the_step_of_begin(tmp_path):
  watch = Watch()
  with pytest.raises(errors.PreemptedError, match='SIGTERM: stopped at step 2, and saved'):
    run(tmp_path, CountingTask({2: lambda: setattr(watch, 'requested', 'SIGTERM')}), watch=watch)
  assert (record_of(tmp_path)['status'], record_of(tmp_path)['step']) == ('preempted', 2)
  (tmp_path / 'notes.txt').write_text('of another run')
  run(tmp_path, CountingTask({'begin': 1}))
  assert (tmp_path / 'notes.1.txt').read_text() == 'of another run'
  # The reports of step 2 and the end do not count any more.
  assert events_of(tmp_path) == [
    *(('start', 0), ('train', 1), ('restored', 1)),
    *(('train', step) for step in (2, 3, 4)),
    ('finished', 4),
  ]


def test_a_signal_at_the_last_step_changes_nothing(tmp_path):
  watch = Watch()
  run(tmp_path, CountingTask({4: lambda: setattr(watch, 'requested', 'SIGTERM')}), watch=watch)
  assert record_of(tmp_path)['status'] == 'finished'


def test_a_failure_is_recorded_with_its_step(tmp_path):
  def fail():
    raise KeyError('text')

  with pytest.raises(KeyError):
    run(tmp_path, CountingTask({3: fail}))
  record = record_of(tmp_path)
  assert (record['status'], record['step'], record['error']) == ('failed', 2, "KeyError: 'text'")


@pytest.mark.parametrize(
  'arguments, message',
  [
    (
      dict(mode='train_and_post_eval'),
      '--mode=train_and_post_eval: CountingTask trains and evaluates in a custom loop',
    ),
    (dict(profile_steps=(1, 2)), '--profile_steps: CountingTask trains in a custom loop'),
  ],
)
def test_what_is_for_another_loop_is_refused_before_anything(arguments, message, tmp_path):
  with pytest.raises(errors.UserError, match=message):
    run(tmp_path / 'run', CountingTask(), **arguments)
  with pytest.raises(errors.UserError, match='task: not so'):
    run(tmp_path / 'run', CountingTask({'check': True}))
  with pytest.raises(errors.UserError, match='CountingTask trains in a custom loop, and has no step to run'):
    train_lib.build_trainer(tf.distribute.get_strategy(), CountingTask(), make_params(), None, True, True)
  assert not (tmp_path / 'run').exists()


def test_a_rehearsal_notices_who_does_not_stop(tmp_path):
  rehearsal = loop_task.LoopRun(make_params(100), str(tmp_path), stop_after=2)
  CountingTask().run_loop(rehearsal)
  assert rehearsal.step == 2 and not list(tmp_path.iterdir())
  with pytest.raises(errors.UserError, match='still runs at step 5, after a stop request'):
    for step in range(3, 100):
      rehearsal.advance(step)
