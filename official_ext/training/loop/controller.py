"""The outer loop of a run. It restores; from there on the order at a boundary is: train, act, log, evaluate, save.

A checkpoint at step s therefore means that the evaluation of s is done, or that its manifest says that it is pending:
if something other than training fails (an action, the evaluation), the step is saved on the way out. A run killed in
between repeats both, identically. Several workers save before they evaluate, if both are due.

Loops end on the multiples of every interval (steps per loop, checkpoint, evaluation, summary) and at train_steps, so
that a resumed run cuts its steps as the uninterrupted one does: `Boundaries` is that arithmetic. `new_checkpoints` and
`restore_unless_gone` serve an evaluation that runs at the same time as the training.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import functools
import sys
import time
from typing import Any

from absl import logging
import orbit
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.run_folder import run_files
from official_ext.training.actions import triggers
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.config import epochs
from official_ext.training.devices import signals
from official_ext.training.devices import workers as workers_lib
from official_ext.training.loop import saving
from official_ext.training.record import pace
from official_ext.training.record import profiling
from official_ext.training.record import run_events
from official_ext.training.tasks import model_garden
from official_ext.training.writers import writers as writers_lib

Interval = int | epochs.Ends


@dataclasses.dataclass(frozen=True)
class Boundaries:
  """The boundaries of a run's loops. They are the multiples of every interval, wherever the run starts.

  Attributes:
    train_steps: the step at which training ends, for percent and ETA; 0 if it is not known.
    steps_per_loop: the most steps between logs.
    checkpoint_interval: the steps between checkpoints; 0 for none before the end.
    intervals: further intervals; those that are not positive are ignored.
    saves_at_start: whether the step at which training starts is saved too, so that there is always a checkpoint to roll
      back to.
    saves_at_end: whether the step at which training ends is saved, also if that is early.
    eval_interval: the steps between evaluations; 0 for none.

  Intervals are numbers of steps, or the ends of equal parts of the training, such as epochs.
  """

  train_steps: int = 0
  steps_per_loop: int = 1
  checkpoint_interval: Interval = 0
  intervals: tuple[Interval, ...] = ()
  saves_at_start: bool = False
  saves_at_end: bool = True
  eval_interval: Interval = 0

  def steps_to_next(self, step: int) -> int:
    """The number of steps from `step` to the next boundary."""
    intervals = (self.steps_per_loop, self.checkpoint_interval, self.eval_interval, *self.intervals)
    return min(ends.next_after(step) for ends in map(_ends, intervals) if ends) - step

  def saves_at(self, step: int) -> bool:
    """Whether an interval of checkpoints ends at a step, or it is the first one."""
    return _is_end(self.checkpoint_interval, step)

  def evaluates_at(self, step: int) -> bool:
    """Whether an interval of evaluations ends at a step, or it is the first one."""
    return _is_end(self.eval_interval, step)

  def evaluations_from(self, step: int) -> int:
    """The number of evaluations from a step to the end, both included: the last step is always evaluated."""
    return _num_ends(self.eval_interval, step, self.train_steps, has_last=bool(self.eval_interval))

  def saves_from(self, step: int) -> int:
    """The number of checkpoints from a step to the end, both included."""
    return _num_ends(self.checkpoint_interval, step, self.train_steps, has_last=self.saves_at_end)


def _ends(interval: Interval) -> epochs.Ends | None:
  return interval if isinstance(interval, epochs.Ends) else epochs.every(interval)


def _is_end(interval: Interval, step: int) -> bool:
  ends = _ends(interval)
  return ends is not None and (step == 0 or ends.is_end(step))


def _num_ends(interval: Interval, first: int, last: int, has_last: bool) -> int:
  """The ends of an interval from a step to another; `has_last`: the last step is one in any case."""
  ends = _ends(interval)
  if first > last or ends is None:
    return int(has_last and first <= last)
  inner = ends.count(last) - ends.count(first) + ends.is_end(first)
  return inner + (has_last and not ends.is_end(last))


_POLL_SECONDS = 1.0


def new_checkpoints(
  manager: manager_lib.CheckpointManager,
  workers: workers_lib.Workers,
  timeout: float | None = None,
  has_ended: Callable[[], bool] | None = None,
  on_look: Callable[[], None] = lambda: None,
) -> Iterator[str]:
  """The paths of the checkpoints in a folder as they appear, the same on all workers.

  Args:
    manager: the folder's.
    workers: all that evaluate together.
    timeout: how many seconds to wait for a new checkpoint; None waits for ever.
    has_ended: whether training has ended, so that no more checkpoints will follow.
    on_look: called before each look, and before each checkpoint.

  Yields:
    Each path, oldest first; again, if its step was rolled back and saved again.
  """
  seen, waiting_since = set(), time.monotonic()

  def look():  # First read the end, so that the list after it is complete.
    ended = has_ended is not None and has_ended()
    timed_out = timeout is not None and time.monotonic() - waiting_since > timeout
    versions = [[path, listing.num_rollbacks(path)] for path in manager.checkpoints]
    return [ended or timed_out, [version for version in versions if tuple(version) not in seen]]

  while True:
    on_look()
    ended, new = workers.from_chief('checkpoints to evaluate', look)
    for path, num_rollbacks in new:
      on_look()
      seen.add((path, num_rollbacks))
      yield path
    if new:
      waiting_since = time.monotonic()
    elif ended:
      return
    else:
      time.sleep(_POLL_SECONDS)


def restore_unless_gone(
  path: str, restore: Callable[[str], object], manager: manager_lib.CheckpointManager, workers: workers_lib.Workers
) -> bool:
  """Restores a checkpoint on all workers, or on none if it has been deleted meanwhile or cannot be read.

  Args:
    path: of the checkpoint.
    restore: restores it.
    manager: the folder's.
    workers: all that evaluate together.

  Returns:
    Whether it is restored.
  """
  gone = False
  try:
    restore(path)
  except Exception as error:  # The type depends on the place of the reader's error.
    unreadable = isinstance(error, (tf.errors.NotFoundError, tf.errors.DataLossError))
    if not unreadable and path in manager.checkpoints:
      raise
    logging.warning('%s was gone before it could be evaluated: %s', path, error)
    gone = True
  return not workers.any('checkpoint gone', gone)


@dataclasses.dataclass(frozen=True)
class RolledBack:
  """The result of a train action that has rolled back to a checkpoint. The loop continues from there.

  Attributes:
    from_step: the step at which the run rolled back.
    checkpoint: the checkpoint's path; None for a foreign action, which has changed the step without saying how.
    rollbacks: the number of the run's rollbacks, including this one.
    data_offset: the offset that is added to the number of a later step when its batches are chosen.
    reason: the cause.
  """

  from_step: int
  checkpoint: str | None = None
  rollbacks: int = 0
  data_offset: int = 0
  reason: str = ''


class Controller(orbit.Controller):
  """Runs training, evaluation, or both.

  It derives from Orbit's class because Model Garden and users test for that, and for its attributes: `trainer`,
  `evaluator`, `strategy`, `global_step`, `train_actions`, `eval_actions`. All public methods are overridden: Orbit's
  restore in the constructor, save before the evaluation, and write summaries. Metrics go to `events` here.

  Attributes:
    events: see the constructor.
  """

  def __init__(
    self,
    *,
    global_step: tf.Variable,
    boundaries: Boundaries | None = None,
    checkpoint_manager: manager_lib.CheckpointManager | None = None,
    checkpoint: str | None = None,
    events: run_events.RunEvents | None = None,
    on_restored: Callable[[], None] = lambda: None,
    on_stage: Callable[[str, int], None] = lambda stage, step: None,
    heartbeat: Callable[[], None] = lambda: None,
    watch: signals.PreemptionWatch | None = None,
    **kwargs: Any,
  ):
    """Initializes the loop. Nothing is restored before it runs.

    Args:
      global_step: the trainer's step variable.
      boundaries: where loops end; None: at multiples of the base class's `steps_per_loop`.
      checkpoint_manager: saves and restores; None for neither.
      checkpoint: the path of the checkpoint to restore instead of the newest.
      events: its writers record them, and its actions, which may end training, are taken. The files of its
        summaries are the default ones for `tf.summary` calls inside steps.
      on_restored: called once, when the run is restored, or initialized if it has no checkpoint.
      on_stage: called with the present stage ('train', 'eval', 'save') and the step.
      heartbeat: called after every batch of an evaluation, and while there is nothing to evaluate yet.
      watch: whether the run must save and stop; None: never.
      **kwargs: the base class's.
    """
    self._boundaries = boundaries or Boundaries(steps_per_loop=kwargs.get('steps_per_loop', 1))
    self.events = events or run_events.RunEvents()
    self._actions = self.events.actions
    self._on_restored, self._on_stage, self._heartbeat = on_restored, on_stage, heartbeat
    self._watch = watch or signals.PreemptionWatch()
    self._checkpoint_path = checkpoint
    self._reported_plan = False
    self._is_restored = False
    self._weights_saved: int | None = None  # The checksum of the last checkpoint's; None if no action may change them.
    self._evaluation_is_pending = False
    self._compiled_before: float | None = None
    self._pace = pace.Pace()
    self._course = self._boundaries  # Of the present training.
    summary_interval = kwargs.pop('summary_interval', None)
    super().__init__(global_step=global_step, **{**kwargs, 'steps_per_loop': self._boundaries.steps_to_next})
    self.summary_interval: Any = summary_interval  # The base class takes none in epochs.
    # Not given to the base class, which restores in its constructor. `_require` reports None.
    self.checkpoint_manager: Any = checkpoint_manager
    self.trainer, self.evaluator = map(model_garden.adapt_trainer, (self.trainer, self.evaluator))
    self._saving = saving.Saving(checkpoint_manager, self.trainer, global_step, self.strategy, self.events, on_stage)
    if self.evaluator is not None:
      self.evaluator.stop_requested = self._after_evaluation_batch

  def _after_evaluation_batch(self) -> bool:
    """Whether to stop the evaluation."""
    if tf.executing_eagerly():  # Otherwise it is only being traced.
      self._pace.end_batch()
      if not self._evaluates_too_long():
        self._heartbeat()
    return self._watch.requested is not None and not workers_lib.are_several(self.strategy)  # Workers must agree.

  def _evaluates_too_long(self) -> bool:
    """Whether the evaluation is past its end, so that its batches are not progress."""
    return self.evaluator.length is not None and self.evaluator.length.is_exceeded

  def _step_now(self) -> int:
    return int(self.global_step.numpy())

  # The loops.

  def train(self, steps: int, checkpoint_at_completion: bool = True):
    """Trains up to step `steps`: see base class."""
    self._require('trainer', for_method='train')
    self._run_loop(dataclasses.replace(self._boundaries, train_steps=steps, saves_at_end=checkpoint_at_completion))

  def train_and_evaluate(self, train_steps: int, eval_steps: int = -1, eval_interval: Interval | None = None):
    """Trains up to step `train_steps`, evaluating at the ends of `eval_interval` and at the last step.

    Returns:
      The last evaluation's logs, even if training had ended before.
    """
    self._require('trainer', for_method='train_and_evaluate')
    self._require('evaluator', for_method='train_and_evaluate')
    course = dataclasses.replace(self._boundaries, train_steps=train_steps, eval_interval=eval_interval or train_steps)
    output = self._run_loop(course, eval_steps)
    return self.evaluate(eval_steps) if output is None else output

  def _run_loop(self, course: Boundaries, eval_steps: int = -1):
    """Restores; then stop? -> train -> act -> log -> evaluate -> save, until the end of the course.

    Args:
      course: with the end of this training, and its evaluations.
      eval_steps: the batches of an evaluation; -1 for all.

    Returns:
      The last evaluation's logs; None if there was none.
    """
    self._course = course
    self._restore_at_start()
    self._save_at_start()
    output, step = None, self._step_now()
    if self._trains(course, step):
      self.events.begin(step)
    evaluates = course.eval_interval and self._evaluation_is_pending  # Stopped between a step and its evaluation.
    while evaluates or self._trains(course, step):
      if not evaluates:
        self._stop_if_requested(step)
        end = min(course.train_steps, step + course.steps_to_next(step))
        evaluates_at_end, start = functools.partial(self._evaluates, course, end), time.perf_counter()
        with self._saving_on_the_way_out('train', end, evaluates_at_end):
          with self._around_inner_loop(step):
            train_output = self.trainer.train(tf.constant(end - step, tf.int32)) or {}
          self._report_plan()
          self._saving.look_for_failure()
          step, logs = self._step_now(), self._logs_of(train_output)
          rollback = self._act(train_output, logs)
          if rollback is None:
            self._log('train', step, logs)
        self._note_between(time.perf_counter() - start)
        if rollback is not None:  # All that belongs to this step was done when it was reached first.
          step = self._take_up(rollback)
          continue
        evaluates = self._evaluates(course, step)
      if evaluates:
        self._stop_if_requested(step, evaluation_pending=True)
        output = self._evaluate_in_training(course, step, eval_steps)
        evaluates = False
      if self._is_last(course, step):
        self._take_last_actions(course, step)
      if self._saves(course, step):
        start = time.perf_counter()
        self.save_checkpoint(may_fail=self._trains(course, step))
        self._pace.add('save', time.perf_counter() - start)
    self._saving.finish()
    if step < course.train_steps:
      self.events.report('early_stopped', step, {'reason': self._actions.stop_reason})
    return output

  def _take_last_actions(self, course: Boundaries, step: int) -> None:
    """Takes the actions between the last evaluation and the last checkpoint, such as `on_train_end` of Keras."""
    if self._actions.is_empty:
      return
    compares = self.checkpoint_manager is not None and self._saves(course, step)
    before = self.checkpoint_manager.weights_sum() if compares else None
    with self._saving_on_the_way_out('train', step, lambda: False):
      self.events.trained(step)
    # A step that is saved already, such as before its evaluation, is not saved again.
    is_saved = compares and self._saving.holds(step)
    self._weights_saved = before if is_saved or not compares else self.checkpoint_manager.weights_sum()

  def end(self) -> None:
    """Takes the actions of the end of the run. Weights that they change are in no checkpoint: that is reported."""
    step = self._step_now()
    self.events.end(step)
    if self._weights_saved is None or self._weights_saved == self.checkpoint_manager.weights_sum():
      return
    if self.strategy.extended.should_checkpoint:
      print(
        f"warning: an action at the end of training has changed the model's weights, and ckpt-{step} has them as they "
        'were before; save them in the action, or change them in on_train_end of a Keras callback',
        file=sys.stderr,
        flush=True,
      )

  # The actions due at a step.

  def _trains(self, course: Boundaries, step: int) -> bool:
    return not self._is_last(course, step)

  def _is_last(self, course: Boundaries, step: int) -> bool:
    return step >= course.train_steps or self._ends_early()

  def _evaluates(self, course: Boundaries, step: int) -> bool:
    return bool(course.eval_interval) and (course.evaluates_at(step) or self._is_last(course, step))

  def _saves(self, course: Boundaries, step: int) -> bool:
    return course.saves_at(step) or (course.saves_at_end and self._is_last(course, step))

  def _ends_early(self) -> bool:
    """Whether an action has ended training, on any worker."""
    if workers_lib.are_several(self.strategy) and workers_lib.on_any(self.strategy, bool(self._actions.stop_reason)):
      self._actions.stop_reason = self._actions.stop_reason or 'an action of another worker requested it'
    return bool(self._actions.stop_reason)

  def _stop_if_requested(self, step: int, **extra: Any) -> None:
    """Saves, if it trains, and ends the run, if a signal on any worker requested that.

    Raises:
      PreemptedError: a signal has.
    """
    name = self._watch.requested
    if not workers_lib.on_any(self.strategy, name is not None):
      return
    if step and self.trainer is not None and self.checkpoint_manager is not None:
      self.save_checkpoint(**extra)
      self._saving.finish()
    raise errors.PreemptedError(
      f'{name or "another worker was asked"}: stopped at step {step}. The same command resumes from there'
    )

  # Train, act, log.

  @contextlib.contextmanager
  def _around_inner_loop(self, step: int) -> Iterator[None]:
    """A context for one inner loop, which begins after `step`: its stage, its summaries, its deferred restore."""
    self._on_stage('train', step)
    should_record: Any = True
    if summaries := _ends(self.summary_interval or 0):
      should_record = lambda: summaries.is_end_in_graph(self.global_step)
    with self._saving.waiting_for_steps(), self._default_summary_file('train'), tf.summary.record_if(should_record):
      with self._completing_restore():
        yield

  def _act(self, output: Mapping[str, object], logs: Mapping[str, object]) -> RolledBack | None:
    """Takes the train actions. One that rolls back is the last at its boundary."""
    step = self._step_now()
    try:
      for action in self.train_actions:
        rollback = self._actions.call(action, output)
        if isinstance(rollback, RolledBack):
          return rollback
        if self._step_now() != step:
          return RolledBack(step)
    except Exception as error:
      if self._step_now() == step and self._saving.is_possible_after(error):
        self.events.writers.write('train', step, logs)  # The step is saved: nobody will train, and log, it again.
        self.events.writers.flush()
      raise
    return None

  def _take_up(self, rollback: RolledBack) -> int:
    """Restores the actions to the trainer's step, and reports it. Returns the step from which the run continues."""
    step = self._step_now()
    if rollback.checkpoint is not None:
      self._actions.restore(rollback.checkpoint)
      self.events.report('rollback', step, dataclasses.asdict(rollback))
    return step

  def _log(self, event: str, step: int, logs: Mapping[str, object]) -> None:
    writers_lib.check_names(logs, f'logs of {event}')
    self.events.report(event, step, logs)
    if event == 'eval':
      self.events.writers.sync()
    else:
      self.events.writers.flush()

  def _logs_of(self, output: Mapping[str, object]) -> dict[str, Any]:
    logs = dict(tf.nest.map_structure(orbit.utils.get_value, output))
    names = (run_files.TOKENS, run_files.LEARNED_TOKENS)
    tokens = {name: float(logs.pop(name)) for name in names if name in logs}
    step = self._step_now()
    if self.trainer is not None and self.trainer.speed is not None:
      self._pace.add_loop(self.trainer.speed.steps, self.trainer.speed.seconds)
    left = self._seconds_left(self._course, step)
    added = run_events.speed(self.trainer, step, self._boundaries.train_steps, tokens, left)
    return writers_lib.merge_logs(logs, added, f'{type(self.trainer).__name__}.train_loop_end')

  def _seconds_left(self, course: Boundaries, step: int) -> float | None:
    """The rest of the training's time after a step; None if it is not known."""
    if not course.train_steps:
      return None
    saves = course.saves_from(step) if self.checkpoint_manager is not None else 0
    return self._pace.seconds_left(max(0, course.train_steps - step), course.evaluations_from(step), saves)

  def _note_between(self, seconds: float) -> None:
    """Notes the part of a loop's time that is not in its steps; a loop that compiles is not typical."""
    speed = None if self.trainer is None else self.trainer.speed
    if speed is not None and speed.compile_seconds == self._compiled_before:
      self._pace.add('between', seconds - speed.seconds)
    self._compiled_before = None if speed is None else speed.compile_seconds

  def _default_summary_file(self, event: str):
    if self._actions.summaries is None:
      return tf.summary.create_noop_writer().as_default()
    return self._actions.summaries.default_file(event).as_default()

  def _report_plan(self):
    values = None if self._reported_plan else run_events.compiled(self.trainer)
    if values is not None:
      self._reported_plan = True
      self.events.report('compiled', self._step_now(), values)

  # Evaluation.

  def evaluate(self, steps: int = -1):
    """Evaluates `steps` batches, or all (-1): see base class."""
    self._require('evaluator', for_method='evaluate')
    if steps != -1 and steps <= 0:
      raise ValueError(f'`steps` ({steps}) should be > 0, or == -1.')
    self._restore_at_start()
    step = self._step_now()
    begin = time.perf_counter()
    self._on_stage('eval', step)
    self._pace.begin_evaluation()
    start = time.perf_counter()
    try:
      with self._default_summary_file('eval'), self._completing_restore():
        output = self.evaluator.evaluate(tf.constant(steps, tf.int32)) or {}
    except errors.EvaluationInterruptedError:
      self._stop_if_requested(step, evaluation_pending=True)
      raise
    seconds = time.perf_counter() - start
    run_events.note_seconds(self.trainer, profiling.EVALUATION, seconds)
    for action in self.eval_actions:
      self._actions.call(action, output)
    output = tf.nest.map_structure(orbit.utils.get_value, output)
    added = {**run_events.epoch(self.trainer, step), 'seconds': seconds}
    self._log('eval', step, writers_lib.merge_logs(output, added, f'{type(self.evaluator).__name__}.eval_end'))
    self._pace.add_evaluation(begin, time.perf_counter())
    return output

  def _evaluate_in_training(self, course: Boundaries, step: int, steps: int) -> Mapping[str, Any]:
    """Evaluates so that a failure costs no training."""
    # The evaluation includes its actions.
    state: dict[str, Any] = {triggers.STATE: self._actions.state()}
    if workers_lib.are_several(self.strategy) and self._saves(
      course, step
    ):  # Several workers cannot save on the way out.
      self.save_checkpoint(evaluation_pending=True, **state)
    with self._saving_on_the_way_out('eval', step, **state):
      return self.evaluate(steps)

  def evaluate_continuously(
    self,
    steps: int = -1,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
  ):
    """Evaluates every checkpoint that appears, once, in the order of steps.

    Args:
      steps: the batches of one evaluation; -1 for all.
      timeout: how many seconds to wait for a new checkpoint; None waits for ever.
      timeout_fn: whether training has ended, so that no more checkpoints will follow.

    Returns:
      The last evaluation's logs; None if there was nothing to evaluate.
    """
    self._require('evaluator', for_method='evaluate_continuously')
    self._require('checkpoint_manager', for_method='evaluate_continuously')
    manager, everybody, output = self.checkpoint_manager, workers_lib.get(self.strategy), None

    def on_look():
      self._stop_if_requested(self._step_now())
      self._heartbeat()

    for path in new_checkpoints(manager, everybody, timeout, timeout_fn, on_look):
      if restore_unless_gone(path, self.restore_checkpoint, manager, everybody):
        output = self.evaluate(steps)
    return output

  # Checkpoints.

  def _restore_at_start(self) -> None:
    """Restores the checkpoint that the run begins with, if nothing was restored yet."""
    if self.checkpoint_manager is not None and not self._is_restored:
      self.restore_checkpoint()
      self._on_restored()

  def restore_checkpoint(self, checkpoint_path: str | None = None) -> str | None:
    """Restores a checkpoint: `checkpoint_path`, the one that the constructor was given, or the newest.

    Returns:
      Its path; None if there is none, and the model was initialized.
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
      self.trainer.checkpoint_restored(**self.checkpoint_manager.continuation(path))
      run_events.report_replicas(self.strategy, self.checkpoint_manager.num_replicas(path))
      self._actions.restore(path)
      self.events.report('restored', self._step_now(), {'checkpoint': path, **self._pending()})
    return path

  def _pending(self) -> dict[str, bool]:
    return {'evaluation_pending': True} if self._evaluation_is_pending else {}

  def _completing_restore(self) -> contextlib.AbstractContextManager[None]:
    """A context for the steps that may build a model: a restore must be complete after them."""
    manager = self.checkpoint_manager
    return contextlib.nullcontext() if manager is None else manager.restoring.completing()

  def _save_at_start(self) -> None:
    """Saves the step at which training starts, if the run may have to roll back to it."""
    if not self._boundaries.saves_at_start or self._saving.holds(self._step_now()):
      return
    self.trainer.prepare_training()  # Makes variables that a task leaves to its first step.
    self.save_checkpoint(**self._pending())

  def save_checkpoint(self, may_fail: bool = False, **extra: object) -> None:
    """Saves this step, once.

    Args:
      may_fail: whether another save will follow: if this one cannot be written, the run reports it and continues, until
        too many saves have failed in a row.
      **extra: further entries of the checkpoint's manifest.

    Raises:
      CheckpointError: it could not be written.
    """
    self._require('checkpoint_manager', for_method='save_checkpoint')
    self._saving.save(may_fail, **extra)

  @contextlib.contextmanager
  def _saving_on_the_way_out(
    self, stage: str, step: int, evaluation_is_due: Callable[[], bool] = lambda: True, **extra: object
  ) -> Iterator[None]:
    """A context that saves a step whose training is done, before another error in it ends the run.

    Args:
      stage: the stage of the run.
      step: the step that training must have reached.
      evaluation_is_due: whether the evaluation of that step is still due.
      **extra: further entries of the manifest.
    """
    try:
      yield
    except Exception as error:
      if self._saving.steps_are_done and self._step_now() == step and self._saving.is_possible_after(error):
        pending = {'evaluation_pending': True} if evaluation_is_due() else {}
        self._save_on_the_way_out(stage, step, {**extra, **pending})
      raise

  def _save_on_the_way_out(self, stage: str, step: int, extra: Mapping[str, Any]) -> None:
    """Saves, but raises nothing: the error that has ended the run is the one to report."""
    try:
      self.save_checkpoint(**extra)
      self._saving.finish()
    except Exception as failure:  # pylint: disable=broad-except
      logging.error('Step %d could not be saved on the way out: %s', step, failure)
    else:
      pending = ', and begins with its evaluation' if 'evaluation_pending' in extra else ''
      logging.error('Training up to step %d is saved: the same command resumes from there%s.', step, pending)
    try:
      self._on_stage(stage, step)  # The record has the error.
    except Exception as failure:  # pylint: disable=broad-except
      logging.error('That the stage %s has failed at step %d could not be noted: %s', stage, step, failure)
