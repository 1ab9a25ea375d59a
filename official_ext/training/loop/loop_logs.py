"""The logs that the loop itself adds: the speed of training, how its step is run, on how many replicas."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_ext.base import json_types
from official_ext.base import protocols


def speed(trainer: Any, step: int, train_steps: int, tokens: Mapping[str, float] | None = None) -> dict[str, float]:
  """The speed of the last loop. It counts only training: no compilation, evaluation or saving.

  Args:
    trainer: one without a `speed` has no logs of it.
    step: that of the run.
    train_steps: the step at which training ends; 0 if it is not known.
    tokens: of an example, from the logs of the loop: see `event_names.TOKENS`.
  """
  values: dict[str, float] = {}
  if train_steps:
    values['percent'] = 100.0 * step / train_steps
  found = getattr(trainer, 'speed', None)
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
    if train_steps:
      values['eta_seconds'] = max(0, train_steps - step) / rate
  return values


def epoch(trainer: Any, step: int) -> dict[str, float]:
  """The epochs of the training data up to a step, as the log `epoch`; {} if their length is not known."""
  found = getattr(trainer, 'speed', None)
  if found is None or not found.examples_per_epoch:
    return {}
  return {'epoch': (step + trainer.data_offset) * found.examples_per_step / found.examples_per_epoch}


def compiled(trainer: Any) -> json_types.JsonObject | None:
  """The values of the event 'compiled'; None while the trainer has not chosen how its step is run."""
  plan = getattr(trainer, 'plan', None)
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
    strategy: that of the run.
    before: the number before; None if it is not known.
  """
  now = strategy.num_replicas_in_sync
  if before not in (None, now) and strategy.extended.should_checkpoint:
    print(
      f'Replicas: {now}, {before} before. Input that is indexed by step gives the same global batches; weights '
      'agree with those of an unchanged run up to float rounding.',
      flush=True,
    )


def note_seconds(trainer: protocols.Trainer, kind: str, seconds: float) -> None:
  """Counts time that was spent beside the steps, if a trainer keeps a profile: see profiling.py for the kinds."""
  profiler = getattr(trainer, 'profiler', None)
  if profiler is not None:
    profiler.add(kind, seconds)
