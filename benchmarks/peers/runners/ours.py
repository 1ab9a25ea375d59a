"""This library's trainer, in the execution that its rule picks."""

from typing import Any

from benchmarks.peers import protocol
from benchmarks.peers.runners import tasks
from benchmarks.peers.work import training
from official_ext.training.loop import base_trainer


def measurement(
  work: training.Work,
  steps_per_loop: int,
  phase: str = 'train',
  model_options: dict[str, Any] | None = None,
  **fields: Any,
) -> protocol.Measurement:
  """Steps, or examples of evaluations.

  Args:
    work: its computation.
    steps_per_loop: of the trainer.
    phase: 'train' or 'evaluate'.
    model_options: see `tasks.task_class`.
    **fields: see `tasks.experiment`.
  """
  params = tasks.experiment(work, steps_per_loop=steps_per_loop, **fields)
  task_cls = tasks.task_class(work, pipeline=False, **(model_options or {}))
  strategy, trainer = tasks.make_trainer(work, params, task_cls, base_trainer.Trainer)
  note = lambda: str(trainer.plan) if phase == 'train' else ''
  return tasks.measured(
    work, strategy, trainer, steps_per_loop, phase, note, fields.get('mixed_precision_dtype') == 'bfloat16'
  )
