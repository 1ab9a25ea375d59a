"""Model Garden's trainer on the same task, with an input of the kind that its own tasks have."""

from typing import Any

from benchmarks.peers import protocol
from benchmarks.peers.runners import tasks
from benchmarks.peers.work import training

# isort: split
from official.core import base_trainer


def measurement(
  work: training.Work, steps_per_loop: int, phase: str = 'train', pipeline: bool = True, **fields: Any
) -> protocol.Measurement:
  """Steps, or examples of evaluations; see ours.py. It compiles nothing, which is Model Garden's default on a CPU.

  Args:
    work: its computation.
    steps_per_loop: of the trainer.
    phase: 'train' or 'evaluate'.
    pipeline: whether its input is a tf.data pipeline; False for this library's.
    **fields: see `tasks.experiment`.
  """
  params = tasks.experiment(work, steps_per_loop=steps_per_loop, enable_xla=False, **fields)
  task_cls = tasks.task_class(work, pipeline=pipeline)
  strategy, trainer = tasks.make_trainer(work, params, task_cls, base_trainer.Trainer)
  note = lambda: 'tf.data' if pipeline else "this library's input"
  return tasks.measured(
    work, strategy, trainer, steps_per_loop, phase, note, fields.get('mixed_precision_dtype') == 'bfloat16'
  )
