"""A context around everything that a run does: its record and events say how it ended, for any end."""

from typing import Any, Literal

from absl import logging

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import tf_internals
from official_ext.training.checkpoints import rollbacks as rollbacks_lib
from official_ext.training.devices import failures
from official_ext.training.devices import hang_watch
from official_ext.training.loop import profiling
from official_ext.training.loop import run_events
from official_ext.training.loop import run_record


class RecordedRun:
  """A context manager: from its beginning to its end the run has a record, which is finished with it.

  Attributes:
    record: run.json.
    events: the run's events.
    trainer: the run's.
    hang: ends a run that hangs; a context manager too, for the time in which it can.
    checkpoint: the tf.train.Checkpoint that the run writes, whose thread ends with the run; None: it writes none.
  """

  def __init__(
    self,
    record: run_record.RunRecord,
    events: run_events.RunEvents,
    trainer: Any,
    hang_seconds: float,
    model_dir: str,
    worker_index: int,
  ):
    """Initializes the context.

    Args:
      record: see attributes; it says that the run is running.
      events: see attributes.
      trainer: see attributes.
      hang_seconds: a run hangs if it has made no progress for so long.
      model_dir: the run's folder.
      worker_index: the number of this process.
    """
    self.record, self.events, self.trainer = record, events, trainer
    self.hang = hang_watch.HangWatch(
      hang_seconds,
      trainer.global_step.numpy,
      model_dir,
      worker_index,
      self._tell_that_it_hangs,
      at_last=record.give_folder_back,
    )
    self.checkpoint: object = None
    self._rollbacks: rollbacks_lib.Rollbacks | None = None

  def count_skips(self, rollbacks: rollbacks_lib.Rollbacks) -> None:
    """Starts to count skipped updates. Call it when the run is restored, if it may skip updates.

    Args:
      rollbacks: those of the run.
    """
    self._rollbacks = rollbacks

  def skipped_updates(self) -> int | None:
    """The updates that the whole run has skipped, even before a restore or a rollback; None if they are not counted."""
    return None if self._rollbacks is None else self._rollbacks.skipped_updates + self.trainer.num_skips

  def enter_stage(self, stage: str, step: int) -> None:
    """Notes the present stage.

    Raises:
      LockLostError: the folder belongs to another run by now.
    """
    self.hang.enter(stage)
    self.record.check_lock()
    self.record.update(stage=stage, step=step, skipped_updates=self.skipped_updates())

  def __enter__(self) -> 'RecordedRun':
    return self

  def __exit__(self, error_type: Any, error: BaseException | None, traceback: Any) -> Literal[False]:
    status = 'finished' if error is None else getattr(error, 'status', 'failed')
    message = None if error is None else failures.message_of(error)
    self._close_profile()
    tf_internals.end_async_saves(self.checkpoint)
    try:
      step, skipped = self._note_progress()
    except Exception as failure:  # pylint: disable=broad-except  # A device may be gone with a worker.
      logging.exception('How far the run has come cannot be read: %s', failure)
      step, skipped = self.record.values['step'] or 0, None
    self.record.finish(status, message)
    if self.events.nothing_to_do and self.trainer.strategy.extended.should_checkpoint:
      print(f'finished before, at step {step}: nothing to do', flush=True)
    values: json_types.JsonObject = {} if error is None else {'error': message}
    if not self.record.is_anothers:
      event = 'failed' if status == 'diverged' else status
      self.events.tell(event, step, {**values, 'skipped_updates': skipped} if skipped else values)
    self.events.writers.close()
    return False

  def _close_profile(self) -> None:
    try:
      getattr(self.trainer, 'profiler', profiling.Profiler()).close()
    except Exception as failure:  # pylint: disable=broad-except  # The end of the run is more important to report.
      logging.exception('The profile was not written: %s', failure)

  def _note_progress(self) -> tuple[int, int | None]:
    """Returns the step, and how many updates were skipped."""
    step = int(self.trainer.global_step.numpy())
    self.record.update(step=step, **_plan_record(self.trainer))
    if self.events.actions.stop_reason:
      self.record.update(early_stopped=self.events.actions.stop_reason)
    skipped = self.skipped_updates()
    if skipped is not None:
      self.record.update(skipped_updates=skipped)
    return step, skipped

  def _tell_that_it_hangs(self, error: errors.HungError, step: int) -> None:
    self.record.update(step=step)
    self.record.finish(error.status, error, gives_folder_back=False)  # A run that hangs may still continue, and write.
    self.events.writers.write(error.status, step, {'error': str(error)})  # Actions may hang too.
    self.events.writers.close()


def _plan_record(trainer: object) -> json_types.JsonMapping:
  plan = getattr(trainer, 'plan', None)
  if plan is None:
    return {}
  return {
    'step_shape': plan.execution,
    'jit_compile': plan.jit_compile,
    'steps_per_execution': plan.steps_per_execution,
    'step_shape_reason': plan.reason,
  }
