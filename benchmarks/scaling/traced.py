"""The collective operations of a trainer's step, counted while it is traced."""

from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.ops import collective_ops


def reduced_tensors(trainer: Any) -> list[int]:
  """Bytes of each tensor that is summed over the replicas in one step, for all replicas of this process.

  Args:
    trainer: of this library, on replicas that reduce by collective operations: several processes, several GPUs, or a
      `tf.distribute.MirroredStrategy` with default settings. Its step is traced, and not run.
  """
  found: list[int] = []
  all_reduce = collective_ops.all_reduce_v2

  def noting(t, *args, **kwargs):
    found.append(t.shape.num_elements() * t.dtype.size)
    return all_reduce(t, *args, **kwargs)

  with trainer.strategy.scope():
    trainer.prepare_training()
    with mock.patch.object(collective_ops, 'all_reduce_v2', noting):
      tf.function(trainer.train_step, autograph=False).get_concrete_function(trainer.train_iterator)
  return found


def reduced_bytes(trainer: Any) -> float:
  """The all-reduce traffic of one replica in a step."""
  return sum(reduced_tensors(trainer)) / len(trainer.strategy.extended.worker_devices)
