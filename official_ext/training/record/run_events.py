"""Passes the events of a run to its writers first, then to the actions that wait for them.

Also makes the logs that the loop adds: the speed of training, how its step is run, on how many replicas.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from official_ext.base import json_values
from official_ext.base import protocols
from official_ext.base.run_folder import run_files
from official_ext.training.actions import triggers
from official_ext.training.writers import writers as writers_lib

# Events that show that a run that had finished before is at work again, or in trouble.
_NEWS = frozenset(run_files.EVENTS) - {'start', 'restored', 'eval', 'early_stopped', 'finished'}


class RunEvents:
  """The events of a run: see base/run_folder/run_files.py for their names.

  Attributes:
    writers: write them.
    actions: are taken at them.
  """

  def __init__(
    self,
    writers: writers_lib.Writer | None = None,
    actions: triggers.EventActions | None = None,
    was_finished: bool = False,
  ):
    """Initializes it, and receives the actions' own events.

    Args:
      writers: of the run; none on a worker that is not the chief.
      actions: of the run.
      was_finished: whether the run had finished before it was started again. Then its events are held back, and its
        actions are not taken, until there is something to train, or it fails.
    """
    self.writers = writers or writers_lib.Writers([])
    self.actions = actions or triggers.EventActions()
    self._held: list[tuple[str, int, json_values.JsonMapping]] | None = [] if was_finished else None
    self._held_lines: list[str] = []
    self.actions.report_to(self.report)

  @property
  def nothing_to_do(self) -> bool:
    """Whether the run had finished before, and nothing has happened since that must be reported."""
    return self._held is not None

  def report(self, event: str, step: int, values: Mapping[str, object]) -> None:
    """Writes an event, and takes the actions that wait for it."""
    if self._held is not None:
      if event not in _NEWS:
        self._held.append((event, step, values))
        return
      self._release()
    self.writers.write(event, step, values)
    self.actions.take(event, step, values)

  def print_lines(self, lines: Iterable[str]) -> None:
    """Prints lines about the start; for a run that had finished before, together with the events held back."""
    self._held_lines += lines
    if self._held is None:
      self._print_held()

  def report_fresh_start(self, step: int = 0) -> None:
    """Reports a start without a checkpoint: earlier reports of later steps no longer count."""
    self.report('restored', step, {'checkpoint': 'nothing: it begins anew'})

  def begin(self, step: int) -> None:
    """Begins training. Call it when there is something to train, after the restore and before the first step."""
    self._release()
    self.actions.take(triggers.BEGIN, step, {})

  def trained(self, step: int) -> None:
    """Takes the actions that come after the last step and its evaluation, before the last checkpoint."""
    self.actions.take_at_end(step, triggers.TRAINED)

  def end(self, step: int) -> None:
    """Ends training. Call it when everything is done."""
    if not self.nothing_to_do:
      self.actions.take_at_end(step)

  def _release(self) -> None:
    """Reports the events held back, except an evaluation or an end of the finished run, which was reported before."""
    held, self._held = self._held or [], None
    self._print_held()
    for event, step, values in held:
      if event in ('start', 'restored'):
        self.writers.write(event, step, values)
        self.actions.take(event, step, values)

  def _print_held(self) -> None:
    lines, self._held_lines = self._held_lines, []
    for line in lines:
      print(line, flush=True)


def speed(
  trainer: Any,
  step: int,
  train_steps: int,
  tokens: Mapping[str, float] | None = None,
  seconds_left: float | None = None,
) -> dict[str, float]:
  """The speed of the last loop. It counts only training: no compilation, evaluation or saving.

  Args:
    trainer: one without a `speed` has no logs of it.
    step: of the run.
    train_steps: the step at which training ends; 0 if it is not known.
    tokens: of an example, from the logs of the loop: see `run_files.TOKENS`.
    seconds_left: the time that the training still takes, with evaluations and saves; None if it is not known.
  """
  values: dict[str, float] = {}
  if train_steps:
    values['percent'] = 100.0 * step / train_steps
  found = None if trainer is None else trainer.speed
  if found is None:
    return values
  values.update(epoch(trainer, step))
  if found.steps and found.seconds > 0:
    rate = found.steps / found.seconds
    values['steps_per_second'] = rate
    values['examples_per_second'] = rate * found.examples_per_step
    for name, count in (tokens or {}).items():
      values[name.replace('_per_example', '_per_second')] = values['examples_per_second'] * count
    values['data_wait'] = min(1.0, found.data_wait_seconds / found.seconds)
    if train_steps and seconds_left is not None:
      values['eta_seconds'] = seconds_left
  return values


def epoch(trainer: Any, step: int) -> dict[str, float]:
  """The epochs of the training data up to a step, as the log `epoch`; {} if their length is not known."""
  found = None if trainer is None else trainer.speed
  if found is None or found.lengths.epochs is None:
    return {}
  return {'epoch': float(found.lengths.epochs.parts(step + trainer.data_offset))}


def compiled(trainer: Any) -> json_values.JsonObject | None:
  """The values of the event 'compiled'; None while the trainer has not chosen how its step is run."""
  plan = trainer.plan
  if plan is None:
    return None
  return {
    'step_shape': plan.execution,
    'jit_compile': plan.jit_compile,
    'steps_per_execution': plan.steps_per_execution,
    'reason': plan.reason,
    'seconds': trainer.speed.compile_seconds,
  }


def report_replicas(strategy: tf.distribute.Strategy, before: int | None) -> None:
  """Prints the effects of another number of replicas on a resumed run.

  Args:
    strategy: of the run.
    before: the number before; None if it is not known.
  """
  now = strategy.num_replicas_in_sync
  if before not in (None, now) and strategy.extended.should_checkpoint:
    print(
      f'Replicas: {now}, {before} before. Input that is indexed by step gives the same global batches; weights '
      'agree with those of an unchanged run up to float rounding.',
      flush=True,
    )


def note_seconds(trainer: protocols.Trainer | None, kind: str, seconds: float) -> None:
  """Counts time that was spent outside of the steps, if a trainer keeps a profile: see profiling.py for the kinds."""
  if trainer is not None and trainer.profiler is not None:
    trainer.profiler.add(kind, seconds)
