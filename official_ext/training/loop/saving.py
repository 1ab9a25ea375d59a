"""Saves the steps of a run, and counts the saves that fail."""

from collections.abc import Callable, Iterator
import contextlib
import time
from typing import Any

from absl import logging
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.training.actions import triggers
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.devices import workers
from official_ext.training.record import profiling
from official_ext.training.record import run_events

_MAX_FAILED_SAVES = 3  # How many may fail in a row: so much work is risked on a disk that may have room again.
# Errors that name the saved step themselves, or forbid a save.
_NOT_TO_SAVE = (
  errors.DivergedError,
  errors.PreemptedError,
  errors.WorkerError,
  errors.CheckpointError,
  errors.EvaluationInterruptedError,
)


class Saving:
  """The saves of the outer loop: which step is saved, and the result of the save in flight."""

  def __init__(
    self,
    manager: manager_lib.CheckpointManager | None,
    trainer: protocols.Trainer,
    global_step: tf.Variable,
    strategy: tf.distribute.Strategy,
    events: run_events.RunEvents,
    on_stage: Callable[[str, int], None],
  ):
    """Initializes it; saves nothing.

    Args:
      manager: saves checkpoints; None if there is none, and then nothing may be saved.
      trainer: the run's trainer; None in a run that only evaluates.
      global_step: its step.
      strategy: that of the run.
      events: the run's events, to which saves and failed saves are reported.
      on_stage: called with the present stage and the step.
    """
    self._manager: Any = manager  # `Controller.save_checkpoint` reports that it is missing.
    self._trainer = trainer
    self._global_step = global_step
    self._strategy = strategy
    self._events = events
    self._on_stage = on_stage
    self._num_failed = 0  # Since the last one that succeeded.
    self._steps_are_under_way = False

  @contextlib.contextmanager
  def waiting_for_steps(self) -> Iterator[None]:
    """A context for a loop of steps. If they fail, nothing can be saved."""
    self._steps_are_under_way = True
    yield
    self._steps_are_under_way = False

  @property
  def steps_are_done(self) -> bool:
    """Whether no step is under way: the trainer's state is after a whole step."""
    return not self._steps_are_under_way or self._trainer.steps_are_done

  def holds(self, step: int) -> bool:
    """Whether a step is saved, on all workers."""
    # Not from the files on disk: workers would see them at different times. One whose save has failed saves with all.
    lacks = not self._manager.holds(step)
    return not workers.on_any(self._strategy, lacks)

  def save(self, may_fail: bool = False, **extra: object) -> None:
    """Saves the present step, once: see `Controller.save_checkpoint`."""
    step = self._step_now()
    self._on_stage('save', step)
    self._settle(is_last=not may_fail)
    if self.holds(step):
      return
    self._events.writers.sync()  # A run that is restored from this checkpoint does not write these events again.
    start = time.perf_counter()
    extra = {
      triggers.STATE: self._events.actions.state(),
      **extra,
      'num_replicas': self._strategy.num_replicas_in_sync,
    }
    try:
      path = self._manager.save(checkpoint_number=step, check_interval=False, **extra)
    except errors.CheckpointError as error:
      self._note_failure(error, is_last=not may_fail)
      if not may_fail:
        raise
      return
    seconds = time.perf_counter() - start
    run_events.note_seconds(self._trainer, profiling.SAVE, seconds)
    self._events.report('checkpoint', step, {'checkpoint': path, 'stall_seconds': seconds})

  def look_for_failure(self) -> None:
    """Notes a failure of the save in flight, if it is known by now. Does not wait.

    Raises:
      CheckpointError: too many have failed in a row.
    """
    if self._manager is not None and self._manager.has_failed:
      self._settle()

  def finish(self) -> None:
    """Waits for the save in flight, which is the last one.

    Raises:
      CheckpointError: it could not be written.
    """
    if self._manager is None:
      return
    try:
      self._manager.sync()
    except errors.CheckpointError as error:
      self._note_failure(error, is_last=True)
      raise

  def _settle(self, is_last: bool = False) -> None:
    """Waits for the save in flight, and notes its result."""
    try:
      if self._manager.sync():
        self._num_failed = 0
    except errors.CheckpointError as error:
      self._note_failure(error, is_last)

  def _note_failure(self, error: errors.CheckpointError, is_last: bool) -> None:
    """Reports a save that has failed.

    Args:
      error: the reason.
      is_last: whether this save, or the one being made now, is the last of the run, and so decides how it ends.

    Raises:
      CheckpointError: too many have failed in a row.
    """
    self._num_failed += 1
    self._events.report('checkpoint_failed', self._step_now(), {'checkpoint': error.path, 'error': str(error)})
    if is_last:
      return
    if self._num_failed >= _MAX_FAILED_SAVES:
      raise errors.CheckpointError(f'{error}; {self._num_failed} saves in a row have failed') from error
    logging.error('%s. Training continues; the next checkpoint is tried at its time.', error)

  def is_possible_after(self, error: Exception) -> bool:
    """Whether a completed step may be saved although something has failed.

    If one of several workers has failed while the others wait for it, they can no longer save together.
    """
    return not (isinstance(error, _NOT_TO_SAVE) or self._manager is None or workers.are_several(self._strategy))

  def _step_now(self) -> int:
    return int(self._global_step.numpy())
