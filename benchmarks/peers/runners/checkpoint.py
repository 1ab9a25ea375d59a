"""How long a save stops a training loop, and how slow the loop is while the files are written.

A turn is a save: some steps before it, the save, steps until its files are on disk. `slower_meanwhile` is how much
longer than those before it a step takes that runs beside the writing; `seconds_lost` is what the loop loses in all, by
the stop and by slower steps.
"""

from collections.abc import Callable, Mapping
import pathlib
import shutil
import tempfile
import time
from typing import Any

import official_ext as ext  # noqa: F401  Before tensorflow.

# isort: split
import tensorflow as tf

from benchmarks.peers import protocol
from benchmarks.peers.runners import tasks
from benchmarks.peers.work import training
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.loop import base_trainer

_STEPS, _MOST = 4, 200


def measurement(work: training.Work, kind: str) -> protocol.Measurement:
  """Saves; the time of one is that for which the loop stops.

  Args:
    work: of the training.
    kind: 'asynchronous' or 'synchronous' for this library's manager, 'stock' for TensorFlow's as Model Garden uses it.
  """
  params = tasks.experiment(work, steps_per_loop=1)
  strategy, trainer = tasks.make_trainer(work, params, tasks.task_class(work, pipeline=False), base_trainer.Trainer)
  folder = pathlib.Path(tempfile.mkdtemp(prefix='bench-checkpoint-'))
  save, is_written, wait = _saver(trainer, folder, kind)

  def steps(num_steps: int) -> float:
    """Seconds of a step."""
    start = time.perf_counter()
    with strategy.scope():
      for _ in range(num_steps):
        trainer.train(tf.constant(1))
    return (time.perf_counter() - start) / num_steps

  def run(num_saves: int) -> Mapping[str, float]:
    stalls, slower, written, lost = 0.0, [1.0], 0.0, 0.0
    for _ in range(num_saves):
      before = steps(_STEPS)
      start = time.perf_counter()
      save()
      stalls += time.perf_counter() - start
      during = [steps(1)]
      while not is_written() and len(during) < _MOST:
        during.append(steps(1))
      if kind == 'asynchronous':
        slower.append(sum(during) / len(during) / before)
      lost += time.perf_counter() - start - len(during) * before
      wait()
      written = time.perf_counter() - start
    return {
      'seconds': stalls,
      'slower_meanwhile': max(slower),
      'seconds_until_written': written,
      'seconds_lost': lost / num_saves,
    }

  parameters = sum(variable.shape.num_elements() for variable in trainer.model.trainable_variables)
  close = lambda: shutil.rmtree(folder, ignore_errors=True)
  return protocol.Measurement(run, parameters=parameters, note=lambda: str(trainer.plan), close=close)


def _saver(
  trainer: Any, folder: pathlib.Path, kind: str
) -> tuple[Callable[[], object], Callable[[], bool], Callable[[], object]]:
  """(saves, whether all is on disk, waits until it is)."""
  if kind == 'stock':
    stock = tf.train.CheckpointManager(trainer.checkpoint, str(folder), 1, step_counter=trainer.global_step)
    return (lambda: stock.save(checkpoint_number=trainer.global_step)), (lambda: True), (lambda: None)
  manager = manager_lib.CheckpointManager(
    trainer.checkpoint,
    str(folder),
    max_to_keep=1,
    step_counter=trainer.global_step,
    asynchronous=kind == 'asynchronous',
  )
  saved = ['']

  def save():
    saved[0] = manager.save()

  return save, (lambda: manager.latest_checkpoint == saved[0]), manager.sync
