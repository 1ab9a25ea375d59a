"""The outer loop. It restores; from there on the order at a boundary is: train, act, log, evaluate, save.

A checkpoint at step s therefore means that s's evaluation is done, or its manifest says that it is pending: where
something else than training fails (an action, the evaluation), the step is saved on the way out. A run killed in
between repeats both, identically. Several workers save before they evaluate, where both are due.

Loops end on the multiples of every interval (steps per loop, checkpoint, evaluation, summary) and at train_steps, so
that a resumed run cuts its steps as the uninterrupted one does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import time
from typing import Any

from absl import logging
import orbit
import tensorflow as tf

from official_ext import errors
from official_ext.actions import event_actions
from official_ext.checkpoints import manager as manager_lib
from official_ext.core import profiling
from official_ext.core import run_events
from official_ext.monitoring import tensorboard
from official_ext.runtime import preemption
from official_ext.runtime import workers

_POLL_SECONDS = 1.0
_MAX_FAILED_SAVES = 3  # In a row: so many intervals of work are risked on a disk that may have room again.
# Ends of a run that say themselves what is saved, or that nothing is to be.
_NOT_TO_SAVE = (
  errors.DivergedError,
  errors.PreemptedError,
  errors.WorkerError,
  errors.CheckpointError,
  errors.EvaluationInterruptedError,
)


@dataclasses.dataclass(frozen=True)
class RolledBack:
  """What a train action returns that has gone back to a checkpoint. The loop goes on from there.

  Attributes:
    from_step: the step at which the run gave up.
    checkpoint: the checkpoint's path; None for an action of others, which went to another step and did not say how.
    rollbacks: how many the run has made, with this one.
    data_offset: how many updates further than its number a step finds its batches from there on.
    reason: what had happened.
  """

  from_step: int
  checkpoint: str | None = None
  rollbacks: int = 0
  data_offset: int = 0
  reason: str = ''


@dataclasses.dataclass(frozen=True)
class _Course:
  """How far a loop is to come.

  Attributes:
    train_steps: where training ends.
    saves_at_end: whether the step at which it ends is saved.
    eval_interval: steps between evaluations; 0 for none.
    eval_steps: batches of an evaluation; -1 for all.
  """

  train_steps: int
  saves_at_end: bool = True
  eval_interval: int = 0
  eval_steps: int = -1


class Controller(orbit.Controller):
  """Runs training, evaluation, or both: see base class.

  Metrics go to `events`; the base class's summary managers write nothing.

  Attributes:
    events: see the constructor.
  """

  def __init__(
    self,
    *,
    global_step: tf.Variable,
    train_steps: int = 0,
    steps_per_loop: int = 1,
    intervals: Sequence[int] = (),
    checkpoint_interval: int = 0,
    checkpoint_manager: manager_lib.CheckpointManager | None = None,
    events: run_events.RunEvents | None = None,
    summaries: tensorboard.TensorBoardWriter | None = None,
    on_restored: Callable[[], None] = lambda: None,
    on_stage: Callable[[str, int], None] | None = None,
    heartbeat: Callable[[], None] = lambda: None,
    checkpoint: str | None = None,
    watch: preemption.PreemptionWatch | None = None,
    saves_at_start: bool = False,
    **kwargs: Any,
  ):
    """Makes the loop. Nothing is restored before it runs.

    Args:
      global_step: the trainer's step variable.
      train_steps: where training ends, for percent and ETA.
      steps_per_loop: at most this many steps between logs.
      intervals: further intervals, in steps, on whose multiples a loop must end.
      checkpoint_interval: steps between checkpoints.
      checkpoint_manager: what saves and restores; None for neither.
      events: what happens is told there: its writers write it, and its actions, which may end training, are taken.
      summaries: whose files are the default ones for `tf.summary` calls inside steps.
      on_restored: called once, when the run is restored, or initialized if there is no checkpoint.
      on_stage: called with what the run does now ('train', 'eval', 'save') and the step.
      heartbeat: called after every batch of an evaluation, and while there is nothing to evaluate yet.
      checkpoint: path of the checkpoint to restore instead of the newest.
      watch: tells that the run is to save and stop.
      saves_at_start: whether to save the step at which a run starts too, so that there is a checkpoint to go back to
        from the first step on.
      **kwargs: the base class's.
    """
    self._train_steps = train_steps
    self._loop_length = steps_per_loop
    self._intervals = tuple(interval for interval in intervals if interval > 0)
    self._checkpoint_interval = checkpoint_interval
    self.events = events or run_events.RunEvents()
    self._actions = self.events.actions
    self._summaries = summaries
    self._on_restored = on_restored
    self._on_stage = on_stage or (lambda stage, step: None)
    self._heartbeat = heartbeat
    self._checkpoint_path = checkpoint
    self._watch = watch or preemption.PreemptionWatch()
    self._saves_at_start = saves_at_start
    self._reported_plan = False
    self._is_restored = False
    self._evaluation_is_pending = False
    self._num_failed_saves = 0  # Since the last one that has succeeded.
    self._loop_is_done = True  # No step is under way.
    kwargs.setdefault('steps_per_loop', self._steps_to_boundary)
    super().__init__(global_step=global_step, **kwargs)
    # Not given to the base class, which restores in its constructor. None is told by `_require`.
    self.checkpoint_manager: Any = checkpoint_manager
    if hasattr(self.evaluator, 'stop_requested'):
      self.evaluator.stop_requested = self._after_evaluation_batch

  def _after_evaluation_batch(self) -> bool:
    """Whether the evaluation is to be left."""
    if tf.executing_eagerly():  # Else it is but traced.
      self._heartbeat()
    return self._watch.requested is not None and not self._has_several_workers()  # Workers have to agree.

  # Where loops end.

  def _steps_to_boundary(self, step: int, also: int = 0) -> int:
    """Steps from `step` to the next boundary; `also` is one more interval."""
    intervals = (self._loop_length, self._checkpoint_interval, *self._intervals, also)
    return min(interval - step % interval for interval in intervals if interval > 0)

  def _step_now(self) -> int:
    return int(self.global_step.numpy())

  # The loops.

  def train(self, steps: int, checkpoint_at_completion: bool = True):
    """Trains up to step `steps`: see base class."""
    self._require('trainer', for_method='train')
    self._run_loop(_Course(steps, checkpoint_at_completion))

  def train_and_evaluate(self, train_steps: int, eval_steps: int = -1, eval_interval: int | None = None):
    """Trains up to step `train_steps`, evaluating on every multiple of `eval_interval` and at the end.

    Returns:
      The last evaluation's logs, also where training had ended before.
    """
    self._require('trainer', for_method='train_and_evaluate')
    self._require('evaluator', for_method='train_and_evaluate')
    course = _Course(train_steps, eval_interval=eval_interval or train_steps, eval_steps=eval_steps)
    output = self._run_loop(course)
    return self.evaluate(eval_steps) if output is None else output

  def _run_loop(self, course: _Course):
    """Restore; then stop? -> train -> act -> log -> evaluate -> save, up to the end of the course.

    Returns:
      The last evaluation's logs; None if there was none.
    """
    self._restore_at_start()
    self._save_at_start()
    output, step = None, self._step_now()
    if self._trains(course, step):
      self.events.begin(step)
    evaluates = course.eval_interval and self._evaluation_is_pending  # Stopped between a step and its evaluation.
    while evaluates or self._trains(course, step):
      if not evaluates:
        self._stop_if_requested(step)
        end = self._next_boundary(course, step)
        with self._saving_on_the_way_out('train', end, functools.partial(self._evaluates, course, end)):
          train_output = self._train_n_steps(end - step)
          step, logs = self._step_now(), self._logs_of(train_output)
          rollback = self._act(train_output, logs)
          if rollback is None:
            self._log('train', step, logs)
        if rollback is not None:  # All that belongs to its step was done when that was reached first.
          step = self._take_up(rollback)
          continue
        evaluates = self._evaluates(course, step)
      if evaluates:
        self._stop_if_requested(step, evaluation_pending=True)
        output = self._evaluate_in_training(course, step)
        evaluates = False
      if self._saves(course, step):
        self.save_checkpoint(may_fail=self._trains(course, step))
    self._sync_on_async_checkpointing()
    if step < course.train_steps:
      self.events.tell('early_stopped', step, {'reason': self._actions.stop_reason})
    return output

  # What is due at a step.

  def _trains(self, course: _Course, step: int) -> bool:
    return step < course.train_steps and not self._ends_early()

  def _evaluates(self, course: _Course, step: int) -> bool:
    if not course.eval_interval:
      return False
    return self._ends_early() or step >= course.train_steps or step % course.eval_interval == 0

  def _saves(self, course: _Course, step: int) -> bool:
    if self._checkpoint_interval and step % self._checkpoint_interval == 0:
      return True
    return (step >= course.train_steps or self._ends_early()) and course.saves_at_end

  def _next_boundary(self, course: _Course, step: int) -> int:
    return min(course.train_steps, step + self._steps_to_boundary(step, also=course.eval_interval))

  def _ends_early(self) -> bool:
    """Whether an action has ended training: on any worker."""
    if self._has_several_workers() and self._any_worker(bool(self._actions.stop_reason)):
      self._actions.stop_reason = self._actions.stop_reason or 'an action of another worker has asked for it'
    return bool(self._actions.stop_reason)

  def _stop_if_requested(self, step: int, **extra: Any) -> None:
    """Saves, where it trains, and ends the run, where a signal has asked for that: on any worker.

    Raises:
      PreemptedError: it has.
    """
    if not self._any_worker(self._watch.requested is not None):
      return
    if step and self.trainer is not None and self.checkpoint_manager is not None:
      self.save_checkpoint(**extra)
      self._sync_on_async_checkpointing()
    raise errors.PreemptedError(
      f'{self._watch.requested or "another worker was asked"}: stopped at step {step}. '
      'The same command goes on from there'
    )

  @contextlib.contextmanager
  def _saving_on_the_way_out(
    self, stage: str, step: int, evaluation_is_due: Callable[[], bool] = lambda: True, **extra: Any
  ) -> Iterator[None]:
    """Around what may fail: a step whose training is done is saved before the error of something else ends the run.

    Of several workers one may have failed while the others wait for it: they cannot save together any more.

    Args:
      stage: what the run does.
      step: the step to which training was to come.
      evaluation_is_due: whether that step's evaluation is still to be done.
      **extra: further entries of the manifest.
    """
    try:
      yield
    except Exception as error:
      is_done = self._loop_is_done or getattr(self.trainer, 'steps_are_done', False)
      if is_done and self._step_now() == step and not self._is_not_to_be_saved(error):
        pending = {'evaluation_pending': True} if evaluation_is_due() else {}
        self._save_on_the_way_out(stage, step, {**extra, **pending})
      raise

  def _save_on_the_way_out(self, stage: str, step: int, extra: Mapping[str, Any]) -> None:
    try:
      self.save_checkpoint(**extra)
      self._sync_on_async_checkpointing()
    except Exception as failure:  # What has ended the run is what must be told.
      logging.error('Step %d could not be saved on the way out: %s', step, failure)
      return
    finally:
      self._on_stage(stage, step)  # The record says what has failed.
    pending = ', and begins with its evaluation' if 'evaluation_pending' in extra else ''
    logging.error('Training up to step %d is saved: the same command goes on from there%s.', step, pending)

  def _is_not_to_be_saved(self, error: Exception) -> bool:
    return isinstance(error, _NOT_TO_SAVE) or self.checkpoint_manager is None or self._has_several_workers()

  def _any_worker(self, here: bool) -> bool:
    """Whether it is so on any worker: workers have to agree on what they do next."""
    return bool(workers.sum_over(self.strategy, tf.constant(float(here))) > 0)

  def _has_several_workers(self) -> bool:
    return isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy)

  # Train, act, log.

  def _train_n_steps(self, num_steps: int) -> Mapping[str, Any]:
    """One inner loop. Returns the trainer's output."""
    self._on_stage('train', self._step_now())
    should_record: Any = True
    if self.summary_interval:
      should_record = lambda: self.global_step % self.summary_interval == 0
    self._loop_is_done = False
    with self._default_summary_file('train'), tf.summary.record_if(should_record):
      with self._completing_restore():
        output = self.trainer.train(tf.constant(num_steps, tf.int32)) or {}
    self._loop_is_done = True
    self._report_plan(self._step_now())
    if self.checkpoint_manager is not None and self.checkpoint_manager.has_failed:
      self._settle_save()
    return output

  def _act(self, output: Mapping[str, Any], logs: Mapping[str, Any]) -> RolledBack | None:
    """Takes the train actions. One that goes back is the last of its boundary."""
    step = self._step_now()
    try:
      for action in self.train_actions:
        rollback = self._actions.call(action, output)
        if isinstance(rollback, RolledBack):
          return rollback
        if self._step_now() != step:
          return RolledBack(step)
    except Exception as error:
      if self._step_now() == step and not self._is_not_to_be_saved(error):
        self.events.writers.write('train', step, logs)  # The step is saved: nobody will train, and log, it again.
        self.events.writers.flush()
      raise
    return None

  def _take_up(self, rollback: RolledBack) -> int:
    """Brings the actions to where the trainer is already, and tells. Returns the step from which the run goes on."""
    step = self._step_now()
    if rollback.checkpoint is not None:
      self._actions.restore(rollback.checkpoint)
      self.events.tell('rollback', step, dataclasses.asdict(rollback))
    return step

  def _log(self, event: str, step: int, logs: Mapping[str, Any]) -> None:
    self.events.tell(event, step, logs)
    self.events.writers.flush()

  def _logs_of(self, output: Mapping[str, Any]) -> dict[str, Any]:
    return {**tf.nest.map_structure(orbit.utils.get_value, output), **self._pace(self._step_now())}

  def _default_summary_file(self, event: str):
    if self._summaries is None:
      return tf.summary.create_noop_writer().as_default()
    return self._summaries.default_file(event).as_default()

  def _report_plan(self, step: int):
    plan = getattr(self.trainer, 'plan', None)
    if plan is None or self._reported_plan:
      return
    self._reported_plan = True
    self.events.tell(
      'compiled',
      step,
      {
        'step_shape': plan.execution,
        'jit_compile': plan.jit_compile,
        'steps_per_execution': plan.steps_per_execution,
        'reason': plan.reason,
        'seconds': self.trainer.pace.compile_seconds,
      },
    )

  def _pace(self, step: int) -> dict[str, float]:
    """How fast the last loop went. Counts training alone: no compilation, evaluation or saving."""
    values: dict[str, float] = {}
    if self._train_steps:
      values['percent'] = 100.0 * step / self._train_steps
    pace = getattr(self.trainer, 'pace', None)
    if pace is None:
      return values
    if pace.examples_per_epoch:
      values['epoch'] = (step + self.trainer.data_offset) * pace.examples_per_step / pace.examples_per_epoch
    if pace.steps and pace.seconds > 0:
      rate = pace.steps / pace.seconds
      values['steps_per_second'] = rate
      values['examples_per_second'] = rate * pace.examples_per_step
      values['data_wait'] = min(1.0, pace.data_wait_seconds / pace.seconds)
      if self._train_steps:
        values['eta_seconds'] = max(0, self._train_steps - step) / rate
    return values

  # Evaluation.

  def evaluate(self, steps: int = -1):
    """Evaluates `steps` batches, or all (-1): see base class."""
    self._require('evaluator', for_method='evaluate')
    if steps != -1 and steps <= 0:
      raise ValueError(f'`steps` ({steps}) should be > 0, or == -1.')
    self._restore_at_start()
    step = self._step_now()
    self._on_stage('eval', step)
    start = time.perf_counter()
    try:
      with self._default_summary_file('eval'), self._completing_restore():
        output = self.evaluator.evaluate(tf.constant(steps, tf.int32)) or {}
    except errors.EvaluationInterruptedError:
      self._stop_if_requested(step, evaluation_pending=True)
      raise
    seconds = time.perf_counter() - start
    self._note_seconds(profiling.EVALUATION, seconds)
    for action in self.eval_actions:
      self._actions.call(action, output)
    output = tf.nest.map_structure(orbit.utils.get_value, output)
    self._log('eval', step, {**output, 'seconds': seconds})
    return output

  def _evaluate_in_training(self, course: _Course, step: int) -> Mapping[str, Any]:
    """Evaluates, so that a failure costs nothing that was trained."""
    # The actions of an evaluation are taken with it.
    state: dict[str, Any] = {event_actions.STATE: self._actions.state()}
    if self._has_several_workers() and self._saves(course, step):  # They cannot save on the way out.
      self.save_checkpoint(evaluation_pending=True, **state)
    with self._saving_on_the_way_out('eval', step, **state):
      return self.evaluate(course.eval_steps)

  def evaluate_continuously(
    self,
    steps: int = -1,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
  ):
    """Evaluates every checkpoint that appears, once, in the order of their steps.

    Args:
      steps: batches of one evaluation; -1 for all.
      timeout: ends after so many seconds without a new checkpoint; None waits.
      timeout_fn: tells that training has ended: no checkpoint will follow those that are there.

    Returns:
      The last evaluation's logs; None where there was nothing to evaluate.
    """
    self._require('evaluator', for_method='evaluate_continuously')
    self._require('checkpoint_manager', for_method='evaluate_continuously')
    output, seen, waiting_since = None, set(), time.monotonic()

    def version(path):  # A run that went back comes to the same step once more.
      return [path, self.checkpoint_manager.num_rollbacks(path)]

    def look():  # The end is asked for first: what is listed after it is then complete.
      ended = timeout_fn is not None and timeout_fn()
      timed_out = timeout is not None and time.monotonic() - waiting_since > timeout
      versions = map(version, self.checkpoint_manager.checkpoints)
      return [ended or timed_out, [found for found in versions if tuple(found) not in seen]]

    while True:
      self._stop_if_requested(self._step_now())
      self._heartbeat()
      ended, new = workers.of(self.strategy).from_chief('checkpoints to evaluate', look)
      for path, num_rollbacks in new:
        self._stop_if_requested(self._step_now())
        seen.add((path, num_rollbacks))
        if self._restore_if_there(path):
          output = self.evaluate(steps)
      if new:
        waiting_since = time.monotonic()
      elif ended:
        return output
      else:
        time.sleep(_POLL_SECONDS)

  def _restore_if_there(self, path: str) -> bool:
    """Restores a checkpoint: on all workers, or none where it has been deleted meanwhile or cannot be read."""
    gone = False
    try:
      self.restore_checkpoint(path)
    except Exception as error:  # TensorFlow raises whatever its reader stumbled over.
      unreadable = isinstance(error, (tf.errors.NotFoundError, tf.errors.DataLossError))
      if not unreadable and path in self.checkpoint_manager.checkpoints:
        raise
      logging.warning('%s was gone before it could be evaluated: %s', path, error)
      gone = True
    return not workers.of(self.strategy).any('checkpoint gone', gone)

  # Checkpoints.

  def _restore_at_start(self) -> None:
    """Restores what the run begins with, if nothing was restored yet."""
    if self.checkpoint_manager is not None and not self._is_restored:
      self.restore_checkpoint()
      self._on_restored()

  def restore_checkpoint(self, checkpoint_path: str | None = None) -> str | None:
    """Restores a checkpoint: `checkpoint_path`, the one that the constructor was given, or the newest.

    Returns:
      Its path; None where there is none, and the model was initialized.
    """
    self._require('checkpoint_manager', for_method='restore_checkpoint')
    path = checkpoint_path or self._checkpoint_path
    with self.strategy.scope():
      if path is None:
        path = self.checkpoint_manager.restore_or_initialize()
      else:
        self.checkpoint_manager.restore(path)
    self._is_restored = True
    if path and self.trainer is not None:
      self._evaluation_is_pending = self.checkpoint_manager.evaluation_is_pending(path)
      if hasattr(self.trainer, 'checkpoint_restored'):
        self.trainer.checkpoint_restored(**self.checkpoint_manager.continuation(path))
      self._report_replicas(self.checkpoint_manager.num_replicas(path))
      self._actions.restore(path)
      self.events.tell('restored', self._step_now(), {'checkpoint': path, **self._pending()})
    return path

  def _pending(self) -> dict[str, bool]:
    return {'evaluation_pending': True} if self._evaluation_is_pending else {}

  def _completing_restore(self) -> contextlib.AbstractContextManager[None]:
    """Around the steps by which a model may be built: a restore must be complete after them."""
    return contextlib.nullcontext() if self.checkpoint_manager is None else self.checkpoint_manager.completing()

  def _report_replicas(self, before: int | None) -> None:
    now = self.strategy.num_replicas_in_sync
    if before not in (None, now) and self.strategy.extended.should_checkpoint:
      print(
        f'Replicas: {now}, {before} before. Input that is indexed by step gives the same global batches; weights '
        'agree with those of an unchanged run up to float rounding.',
        flush=True,
      )

  def _save_at_start(self) -> None:
    """Saves the step at which training starts, if the run may have to go back to it."""
    if not self._saves_at_start or self._is_saved(self._step_now()):
      return
    if hasattr(self.trainer, 'prepare_training'):  # Makes what a task leaves to its first step.
      self.trainer.prepare_training()
    self.save_checkpoint(**self._pending())

  def save_checkpoint(self, may_fail: bool = False, **extra: Any) -> None:
    """Saves this step, once.

    Args:
      may_fail: whether another save will follow: the run goes on where this one cannot be written, and says so, until
        too many of them have failed in a row.
      **extra: further entries of the checkpoint's manifest.

    Raises:
      CheckpointError: it could not be written.
    """
    self._require('checkpoint_manager', for_method='save_checkpoint')
    step = self._step_now()
    self._on_stage('save', step)
    self._settle_save(at_end=not may_fail)
    if self._is_saved(step):
      return
    start = time.perf_counter()
    extra = {event_actions.STATE: self._actions.state(), **extra, 'num_replicas': self.strategy.num_replicas_in_sync}
    try:
      path = self.checkpoint_manager.save(checkpoint_number=step, check_interval=False, **extra)
    except errors.CheckpointError as error:
      self._note_failed_save(error, at_end=not may_fail)
      if not may_fail:
        raise
      return
    seconds = time.perf_counter() - start
    self._note_seconds(profiling.SAVE, seconds)
    self.events.tell('checkpoint', step, {'checkpoint': path, 'stall_seconds': seconds})

  def _settle_save(self, at_end: bool = False) -> None:
    """Waits for the save in flight, and notes what has become of it."""
    if self.checkpoint_manager is None:
      return
    try:
      if self.checkpoint_manager.sync():
        self._num_failed_saves = 0
    except errors.CheckpointError as error:
      self._note_failed_save(error, at_end)

  def _note_failed_save(self, error: errors.CheckpointError, at_end: bool) -> None:
    """Tells of a save that has failed, in the place of which another one is to be made.

    Raises:
      CheckpointError: too many have failed in a row.
    """
    self._num_failed_saves += 1
    self.events.tell('checkpoint_failed', self._step_now(), {'checkpoint': error.prefix, 'error': str(error)})
    if at_end:  # The last save decides.
      return
    if self._num_failed_saves >= _MAX_FAILED_SAVES:
      raise errors.CheckpointError(f'{error}; {self._num_failed_saves} saves in a row have failed') from error
    logging.error('%s. Training goes on; the next checkpoint is tried at its time.', error)

  def _note_seconds(self, kind: str, seconds: float) -> None:
    profiler = getattr(self.trainer, 'profiler', None)
    if profiler is not None:
      profiler.add(kind, seconds)

  def _is_saved(self, step: int) -> bool:
    # Not by what is on disk: workers would see it at different times. One whose save has failed saves with all.
    lacks = not self.checkpoint_manager.holds(step)
    return not (self._any_worker(lacks) if self._has_several_workers() else lacks)
