"""The outer loop: where its loops end, and in which order things happen. The inner loop only counts."""

import dataclasses
from fractions import Fraction
import itertools
import os
import time
import types

import orbit
import pytest
import tensorflow as tf

from official_ext.training.actions import triggers
from official_ext.training.checkpoints import manager
from official_ext.training.config import epochs
from official_ext.training.loop import base_trainer
from official_ext.training.loop import controller
from official_ext.training.record import run_events
from official_ext.training.writers import tensorboard
from official_ext.training.writers import writers

LOOP, CHECKPOINT, VALIDATION, SUMMARY, END = 7, 10, 15, 11, 33
# The multiples of every interval, and the end.
INTERVALS = (LOOP, CHECKPOINT, VALIDATION, SUMMARY)
BOUNDARIES = sorted({END}.union(*(range(interval, END, interval) for interval in INTERVALS)))


class Counter(orbit.AbstractTrainer, orbit.AbstractEvaluator):
  """Counts steps, and notes each request: ('train', step before, steps) and ('evaluate', step)."""

  def __init__(self, log, step=0):
    self.log = log
    self.global_step = tf.Variable(step, dtype=tf.int64)
    self.checkpoint = tf.train.Checkpoint(global_step=self.global_step)

  def step(self):
    return int(self.global_step.numpy())

  def train(self, num_steps):
    self.log.append(('train', self.step(), int(num_steps)))
    self.global_step.assign_add(tf.cast(num_steps, tf.int64))
    return {'training_loss': tf.constant(1.0)}

  def evaluate(self, num_steps):
    self.log.append(('evaluate', self.step()))
    return {'validation_loss': tf.cast(self.global_step, tf.float32), 'num_steps': num_steps}


class LogWriter(writers.Writer):
  """Notes events as ('write', event, step)."""

  def __init__(self, log):
    self.log = log
    self.values = {}

  def write(self, event, step, values):
    self.log.append(('write', event, step))
    self.values[event] = dict(values)


def make_manager(counter, folder, **kwargs):
  kwargs = {'max_to_keep': 100, **kwargs}
  return manager.CheckpointManager(counter.checkpoint, str(folder), step_counter=counter.global_step, **kwargs)


def make(folder=None, *, step=0, log=None, counter=None, controller_cls=controller.Controller, **kwargs):
  """(controller, log) around a Counter, which notes to the same log as the writer."""
  log = [] if log is None else log
  counter = counter or Counter(log, step)
  actions = triggers.EventActions(summaries=kwargs.pop('summaries', None))
  kwargs = {'trainer': counter, 'evaluator': counter, 'events': run_events.RunEvents(LogWriter(log), actions), **kwargs}
  names = {field.name for field in dataclasses.fields(controller.Boundaries)} & set(kwargs)
  kwargs['boundaries'] = controller.Boundaries(**{'steps_per_loop': LOOP, **{key: kwargs.pop(key) for key in names}})
  if folder:
    kwargs['checkpoint_manager'] = make_manager(counter, folder)
  return controller_cls(global_step=counter.global_step, **kwargs), log


def ends(log):
  """The steps at which training loops ended."""
  return [entry[1] + entry[2] for entry in log if entry[0] == 'train']


def steps_of(log, event):
  return [entry[2] for entry in log if entry[:2] == ('write', event)]


def evaluated(log):
  return [entry[1] for entry in log if entry[0] == 'evaluate']


# Loops.


@pytest.mark.parametrize('start', range(END))
def test_loops_end_on_the_multiples_of_every_interval_wherever_they_start(start, tmp_path):
  # Stock: evaluation points drift after a resume: every 5 from step 7 are 12, 17, 20.
  loop, log = make(tmp_path, step=start, train_steps=END, checkpoint_interval=CHECKPOINT, intervals=(SUMMARY,))
  loop.train_and_evaluate(END, eval_interval=VALIDATION)
  assert ends(log) == [step for step in BOUNDARIES if step > start]
  assert steps_of(log, 'train') == ends(log)
  assert evaluated(log) == steps_of(log, 'eval') == [step for step in (15, 30, END) if step > start]
  assert steps_of(log, 'checkpoint') == [step for step in (10, 20, 30, END) if step > start]
  assert {path.name for path in tmp_path.glob('ckpt-*.index')} == {
    f'ckpt-{step}.index' for step in steps_of(log, 'checkpoint')
  }


@pytest.mark.parametrize('stop', BOUNDARIES[:-1])
def test_a_resumed_run_continues_as_the_straight_one(stop, tmp_path):
  arguments = dict(train_steps=END, checkpoint_interval=CHECKPOINT, intervals=(SUMMARY,))
  straight, expected = make(tmp_path / 'straight', **arguments)
  straight.train_and_evaluate(END, eval_interval=VALIDATION)
  # The first one dies when it has trained up to `stop`.
  first, log = make(tmp_path / 'resumed', **arguments)

  def die(output):
    if first.global_step.numpy() == stop:
      raise KeyboardInterrupt

  first.train_actions = (die,)
  with pytest.raises(KeyboardInterrupt):
    first.train_and_evaluate(END, eval_interval=VALIDATION)
  saved = max([0, *steps_of(log, 'checkpoint')])
  assert saved == (stop - 1) // CHECKPOINT * CHECKPOINT
  second, log = make(tmp_path / 'resumed', **arguments)
  assert second.global_step.numpy() == 0 and not log  # A loop that was only made has restored nothing.
  second.train_and_evaluate(END, eval_interval=VALIDATION)
  assert steps_of(log, 'restored') == [saved] * bool(saved)
  # All that comes after that step's checkpoint.
  cut = expected.index(('write', 'checkpoint', saved)) + 1 if saved else 0
  assert [entry for entry in log if entry[:2] != ('write', 'restored')] == expected[cut:]


def test_the_order_at_a_boundary_is_train_act_log_evaluate_save(tmp_path):
  log = []
  loop, _ = make(
    tmp_path,
    log=log,
    train_steps=20,
    steps_per_loop=20,
    checkpoint_interval=10,
    train_actions=[lambda output: log.append(('train_action', float(output['training_loss'])))],
    eval_actions=[lambda output: log.append(('eval_action', float(output['validation_loss'])))],
    on_stage=lambda stage, step: log.append(('stage', stage, step)),
  )
  loop.train_and_evaluate(20, eval_interval=20)
  assert log == [
    ('stage', 'train', 0),
    ('train', 0, 10),
    ('train_action', 1.0),
    ('write', 'train', 10),
    ('stage', 'save', 10),
    ('write', 'checkpoint', 10),
    ('stage', 'train', 10),
    ('train', 10, 10),
    ('train_action', 1.0),
    ('write', 'train', 20),
    ('stage', 'eval', 20),
    ('evaluate', 20),
    ('eval_action', 20.0),
    ('write', 'eval', 20),
    ('stage', 'save', 20),
    ('write', 'checkpoint', 20),
  ]


def test_train_and_evaluate_returns_the_last_logs(tmp_path):
  loop, log = make(tmp_path, train_steps=END, checkpoint_interval=CHECKPOINT)
  output = loop.train_and_evaluate(END, eval_steps=3)
  assert output == {'validation_loss': float(END), 'num_steps': 3}
  assert evaluated(log) == [END]  # Without an interval, once at the end.
  # Once more: nothing to train, nothing to save, but metrics.
  again, log = make(tmp_path, train_steps=END, checkpoint_interval=CHECKPOINT)
  assert again.train_and_evaluate(END, eval_steps=3) == output
  assert not ends(log) and evaluated(log) == [END] and not steps_of(log, 'checkpoint')


def test_train_saves_at_its_end_by_default(tmp_path):
  loop, log = make(tmp_path, train_steps=END, checkpoint_interval=CHECKPOINT)
  loop.train(12, checkpoint_at_completion=False)
  assert steps_of(log, 'checkpoint') == [10]
  loop.train(20)
  assert steps_of(log, 'checkpoint') == [10, 20]  # Due at the interval, and saved once.
  loop.train(END)
  assert steps_of(log, 'checkpoint') == [10, 20, 30, END]
  assert not evaluated(log)


def test_arguments_of_orbit_alone_make_a_loop(tmp_path):
  log = []
  counter = Counter(log)
  loop = controller.Controller(
    global_step=counter.global_step,
    trainer=counter,
    evaluator=counter,
    strategy=tf.distribute.get_strategy(),
    train_actions=[lambda output: log.append(('acted', counter.step()))],
    steps_per_loop=LOOP,
    checkpoint_manager=make_manager(counter, tmp_path),
    summary_dir=str(tmp_path),
    summary_interval=LOOP,
  )
  assert loop.train_and_evaluate(2 * LOOP + 1, eval_steps=3)['num_steps'] == 3
  assert [entry for entry in log if entry[0] != 'train'] == [
    ('acted', 7),
    ('acted', 14),
    ('acted', 15),
    ('evaluate', 15),
  ]
  assert (tmp_path / 'ckpt-15.manifest.json').exists()


def test_what_is_needed_is_asked_for(tmp_path):
  counter = Counter([])
  evaluator, _ = make(tmp_path, counter=counter, trainer=None)
  for method in (evaluator.train, evaluator.train_and_evaluate):
    with pytest.raises(ValueError, match='`trainer` is not set'):
      method(5)
  loop, _ = make()
  with pytest.raises(ValueError, match='`checkpoint_manager` is not set'):
    loop.save_checkpoint()
  for steps in (0, -2):
    with pytest.raises(ValueError, match='should be > 0, or == -1'):
      loop.evaluate(steps)


def test_pace_counts_percent_without_a_trainer_that_knows_its_pace():
  loop, log = make(train_steps=END)
  loop.train(LOOP, checkpoint_at_completion=False)
  values = loop.events.writers.values['train']
  assert values == {'training_loss': 1.0, 'percent': 100.0 * LOOP / END}


def test_the_time_left_counts_the_evaluations_and_saves_that_are_still_to_come(tmp_path, monkeypatch):
  now, left = [0.0], []
  monkeypatch.setattr(time, 'perf_counter', lambda: now[0])

  class Timed(Counter):
    """A step takes 1 s, an evaluation 10 s."""

    def __init__(self, log):
      super().__init__(log)
      self.speed, self.data_offset = base_trainer.TrainingSpeed(), 0

    def train(self, num_steps):
      now[0] += int(num_steps)
      self.speed.start_loop()
      self.speed.add(int(num_steps), float(num_steps), 0.0)
      return super().train(num_steps)

    def evaluate(self, num_steps):
      now[0] += 10.0
      return super().evaluate(num_steps)

  class Saves(controller.Controller):
    def save_checkpoint(self, *args, **kwargs):
      now[0] += 3.0
      super().save_checkpoint(*args, **kwargs)

  log = []
  loop, _ = make(
    tmp_path, counter=Timed(log), log=log, controller_cls=Saves, train_steps=END, checkpoint_interval=CHECKPOINT
  )
  report = loop.events.report

  def note(event, step, values):
    if event == 'train':
      left.append((step, now[0], values['eta_seconds']))
    report(event, step, values)

  loop.events.report = note
  loop.train_and_evaluate(END, eval_interval=VALIDATION)
  assert evaluated(log) == [15, 30, 33] and steps_of(log, 'checkpoint') == [10, 20, 30, 33]
  known = [(now[0] - then, eta) for step, then, eta in left if step > VALIDATION]
  assert len(known) == 5 and [eta for _, eta in known] == pytest.approx([seconds for seconds, _ in known])
  assert left[0][2] == END - left[0][0]  # Before the first ones.


@pytest.mark.parametrize('interval', [0, 5, 33, 50, epochs.Ends(((0, Fraction(0), Fraction(33, 4)),))])
def test_evaluations_and_saves_that_are_left_are_those_that_come(interval):
  course = controller.Boundaries(train_steps=33, eval_interval=interval, checkpoint_interval=interval)
  for start in range(1, 34):
    ends_left = [step for step in range(start, 34) if interval and course.saves_at(step)]
    assert course.saves_from(start) == len({*ends_left, 33})
    assert course.evaluations_from(start) == (len({*ends_left, 33}) if interval else 0)
  assert course.saves_from(34) == course.evaluations_from(34) == 0
  assert dataclasses.replace(course, saves_at_end=False, checkpoint_interval=10).saves_from(5) == 3


def test_an_explicit_checkpoint_is_restored_instead_of_the_newest(tmp_path):
  loop, _ = make(tmp_path, train_steps=20, checkpoint_interval=CHECKPOINT)
  loop.train(20)
  other, log = make(tmp_path, train_steps=20, checkpoint_interval=CHECKPOINT, checkpoint=str(tmp_path / 'ckpt-10'))
  other.evaluate()
  assert steps_of(log, 'restored') == [10] and other.global_step.numpy() == 10 and evaluated(log) == [10]


@pytest.mark.parametrize('rolls_back', [True, False])
def test_an_action_that_goes_back_is_the_last_of_its_boundary(rolls_back, tmp_path):
  log = []
  counter = Counter(log)

  def go_back(output):  # One of Model Garden's own restores, and returns nothing.
    if counter.step() == 14 and ('gone',) not in log:
      log.append(('gone',))
      counter.global_step.assign(7)
      return controller.RolledBack(14, str(tmp_path / 'ckpt-7'), 1, 3, 'why') if rolls_back else None

  loop, _ = make(
    tmp_path,
    log=log,
    counter=counter,
    train_steps=21,
    checkpoint_interval=7,
    train_actions=[go_back, lambda output: log.append(('acted', counter.step()))],
  )
  loop.train_and_evaluate(21, eval_interval=14)
  recorded = [('write', 'rollback', 7)] if rolls_back else []
  assert log == [
    ('train', 0, 7),
    ('acted', 7),
    ('write', 'train', 7),
    ('write', 'checkpoint', 7),
    ('train', 7, 7),
    ('gone',),
    *recorded,
    ('train', 7, 7),
    ('acted', 14),
    ('write', 'train', 14),
    ('evaluate', 14),
    ('write', 'eval', 14),
    ('write', 'checkpoint', 14),
    ('train', 14, 7),
    ('acted', 21),
    ('write', 'train', 21),
    ('evaluate', 21),
    ('write', 'eval', 21),
    ('write', 'checkpoint', 21),
  ]
  if rolls_back:
    assert loop.events.writers.values['rollback'] == {
      'from_step': 14,
      'checkpoint': str(tmp_path / 'ckpt-7'),
      'rollbacks': 1,
      'data_offset': 3,
      'reason': 'why',
    }


def test_what_has_ended_a_run_is_raised_although_its_record_cannot_be_written(tmp_path):
  # Before: the failure of the record, which is written again after the save, took the place of the first.
  def fail(output):
    raise KeyError('a mistake in an action')

  def note(stage, step):
    if (stage, step) == ('train', LOOP):
      raise OSError('No space left on device')

  loop, log = make(tmp_path, train_steps=END, train_actions=[fail], on_stage=note)
  with pytest.raises(KeyError, match='a mistake in an action'):
    loop.train(END)
  assert steps_of(log, 'checkpoint') == [LOOP]


def test_a_failure_inside_the_steps_is_raised_although_the_step_cannot_be_read(tmp_path, monkeypatch):
  """A device may be gone: then a read of a variable fails too, or blocks."""

  class Lost(Counter):
    def train(self, num_steps):
      monkeypatch.setattr(loop, '_step_now', lambda: pytest.fail('read a variable'))
      raise KeyError('a device is lost')

  loop, _ = make(tmp_path, counter=Lost([]), train_steps=END)
  with pytest.raises(KeyError, match='a device is lost'):
    loop.train(END)


@pytest.mark.parametrize('stage', ['train', 'eval'])
def test_a_subclass_sees_every_save_those_on_the_way_out_of_a_failure_too(stage, tmp_path):
  # `save_checkpoint` is Orbit's, and `RunOptions.controller_cls` may be a subclass that does more there.
  seen = []

  class Copying(controller.Controller):
    def save_checkpoint(self, *args, **kwargs):
      super().save_checkpoint(*args, **kwargs)
      seen.append((int(self.global_step.numpy()), kwargs.get('evaluation_pending', False)))

  def fail(output):
    if loop.global_step.numpy() == 15:
      raise KeyError('a mistake in an action')

  actions = {'train': {'train_actions': [fail]}, 'eval': {'eval_actions': [fail]}}[stage]
  loop, log = make(tmp_path, controller_cls=Copying, train_steps=END, checkpoint_interval=CHECKPOINT, **actions)
  with pytest.raises(KeyError):
    loop.train_and_evaluate(END, eval_interval=15)
  assert seen == [(10, False), (15, True)]
  assert steps_of(log, 'checkpoint') == [10, 15]


# Summaries that a step writes by itself.


def test_summaries_of_a_step_follow_the_summary_interval(tmp_path):

  class Summarizing(Counter):
    @tf.function
    def _steps(self, num_steps):
      for _ in tf.range(num_steps):
        self.global_step.assign_add(1)
        tf.summary.scalar('own', tf.cast(self.global_step, tf.float32), step=self.global_step)

    def train(self, num_steps):
      self._steps(num_steps)
      return {}

    def evaluate(self, num_steps):
      with tf.summary.record_if(True):
        tf.summary.scalar('own', 1.0, step=self.global_step)
      return {}

  summaries = tensorboard.TensorBoardWriter(str(tmp_path))
  loop, _ = make(
    counter=Summarizing([]), summaries=summaries, summary_interval=SUMMARY, intervals=(SUMMARY,), train_steps=END
  )
  loop.train(END, checkpoint_at_completion=False)
  loop.evaluate(1)
  summaries.close()

  def steps(folder):
    (path,) = folder.glob('events*')
    return [event.step for event in tf.compat.v1.train.summary_iterator(str(path)) if event.summary.value]

  assert steps(tmp_path / 'train') == [11, 22, 33]
  assert steps(tmp_path / 'validation') == [33]


# Evaluation of checkpoints that another process writes.


class Training:
  """The other process: saves checkpoints into a folder."""

  def __init__(self, folder, **kwargs):
    self.counter = Counter([])
    self.manager = make_manager(self.counter, folder, **kwargs)

  def save(self, *steps):
    for step in steps:
      self.counter.global_step.assign(step)
      self.manager.save(step, check_interval=False)


@pytest.fixture
def no_sleep(monkeypatch):
  """Waiting takes no time; the functions in `during` are called, in turn, while the evaluator waits."""
  during = []
  # In this module alone: other threads sleep and look at the clock too.
  clock = types.SimpleNamespace(
    monotonic=time.monotonic, perf_counter=time.perf_counter, sleep=lambda seconds: during.pop(0)() if during else None
  )
  monkeypatch.setattr(controller, 'time', clock)
  return during


def make_evaluator(folder, **kwargs):
  log = []
  return make(folder, log=log, counter=Counter(log), trainer=None, **kwargs)


def test_every_checkpoint_is_evaluated_once_and_in_order(tmp_path, no_sleep):
  # Stock: takes the newest each time, and skips those in between.
  training = Training(tmp_path)
  training.save(2, 9, 10)
  evaluator, log = make_evaluator(tmp_path)
  ended = []
  # More come while it waits: one, then nothing, then two at once with the end.
  no_sleep += [lambda: training.save(100), lambda: None, lambda: training.save(110, 111) or ended.append(True)]
  output = evaluator.evaluate_continuously(timeout_fn=lambda: bool(ended))
  assert evaluated(log) == [2, 9, 10, 100, 110, 111]
  assert output['validation_loss'] == 111.0
  assert steps_of(log, 'eval') == evaluated(log) and not steps_of(log, 'restored')


def test_checkpoints_that_come_during_an_evaluation_are_not_missed(tmp_path, no_sleep):
  training = Training(tmp_path)
  training.save(1)
  ended = []

  def act(output):
    if output['validation_loss'] == 1.0:
      training.save(2, 3)
      ended.append(True)

  evaluator, log = make_evaluator(tmp_path, eval_actions=[act])
  evaluator.evaluate_continuously(timeout_fn=lambda: bool(ended))
  assert evaluated(log) == [1, 2, 3]


def test_a_checkpoint_that_is_deleted_meanwhile_is_passed_over(tmp_path, no_sleep):
  # Stock: NotFoundError.
  training = Training(tmp_path, max_to_keep=1)
  training.manager._retention._max_to_keep = 100
  training.save(1, 2)

  def act(output):
    if output['validation_loss'] == 1.0:
      training.manager._retention._max_to_keep = 1
      training.save(3)  # Deletes 1 and 2.

  evaluator, log = make_evaluator(tmp_path, eval_actions=[act])
  evaluator.evaluate_continuously(timeout_fn=lambda: True)
  assert evaluated(log) == [1, 3]
  assert not list(tmp_path.glob('ckpt-2*'))


def test_files_that_are_no_whole_checkpoint_are_not_evaluated(tmp_path, no_sleep):
  training = Training(tmp_path)
  training.save(1, 2)
  os.remove(tmp_path / 'ckpt-1.manifest.json')  # As if the save had been cut off before its end.
  (tmp_path / 'ckpt-best.index').touch()
  evaluator, log = make_evaluator(tmp_path)
  evaluator.evaluate_continuously(timeout_fn=lambda: True)
  assert evaluated(log) == [2]


def test_evaluation_ends_when_no_checkpoint_comes(tmp_path, no_sleep):
  training = Training(tmp_path)
  now = itertools.count()  # Each look at the clock is a second later.
  controller.time.monotonic = lambda: next(now)
  evaluator, log = make_evaluator(tmp_path)
  no_sleep += [lambda: None] * 3 + [lambda: training.save(4)]
  evaluator.evaluate_continuously(timeout=20)
  assert evaluated(log) == [4]
  # Twenty seconds after the last one, not after the start.
  assert 24 <= next(now) <= 30
  # Without any.
  evaluator, log = make_evaluator(tmp_path / 'empty')
  assert evaluator.evaluate_continuously(timeout=5) is None and not log
