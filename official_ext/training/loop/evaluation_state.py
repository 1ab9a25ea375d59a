"""Counts the batches of an evaluation, and its examples that are not finite."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_ext.training.loop import base_task
from official_ext.training.step import step_plan

NUM_REMEMBERED_BATCHES = 8


class EvaluationState(tf.Module):
  """The counters of the present evaluation. No checkpoint holds them.

  Attributes:
    batch: int64 scalar variable, the number of the present batch, from 0.
    num_not_finite: float32 scalar variable, how many of this worker's examples were not finite.
    num_bad_batches: int64 scalar variable, how many batches they were in.
    bad_batches: int64 variable of shape [8], the numbers of the first of these.
  """

  def __init__(self):
    super().__init__(name='evaluation_state')
    kwargs = dict(trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    self.batch = tf.Variable(0, dtype=tf.int64, name='batch', **kwargs)
    self.num_not_finite = tf.Variable(0.0, dtype=tf.float32, name='num_not_finite', **kwargs)
    self.num_bad_batches = tf.Variable(0, dtype=tf.int64, name='num_bad_batches', **kwargs)
    self.bad_batches = tf.Variable([0] * NUM_REMEMBERED_BATCHES, dtype=tf.int64, name='bad_batches', **kwargs)

  def begin(self) -> None:
    """Counts anew."""
    self.batch.assign(0)
    self.num_not_finite.assign(0.0)
    self.num_bad_batches.assign(0)

  def end_batch(self, num_not_finite: tf.Tensor) -> None:
    """Advances to the next batch. Cross-replica context.

    Args:
      num_not_finite: float32 scalar, the number in the present batch.
    """
    is_bad = num_not_finite > 0
    slot = tf.range(NUM_REMEMBERED_BATCHES, dtype=tf.int64) == self.num_bad_batches
    self.bad_batches.assign(tf.where(tf.logical_and(slot, is_bad), self.batch, self.bad_batches))
    self.num_bad_batches.assign_add(tf.cast(is_bad, tf.int64))
    self.num_not_finite.assign_add(num_not_finite)
    self.batch.assign_add(1)

  def bad_batch_numbers(self) -> list[int]:
    """The numbers of the first batches in which examples were not finite, 8 at most."""
    return self.bad_batches.numpy()[: int(self.num_bad_batches.numpy())].tolist()


def count_not_finite(inputs: Any, logs: Mapping[str, Any]) -> tf.Tensor:
  """Counts a replica's examples that are not finite: in an input, or in a result of the step.

  Some kernels, such as that of ReLU, turn NaN into a number, so that the loss alone does not show it. If a loss or a
  log that is a mean over examples is not finite, the number of examples at fault is not known, and counts as one.

  Args:
    inputs: of the step, a structure of tensors.
    logs: of the step.

  Returns:
    A float32 scalar; 0 if there are no examples.
  """
  counts = [tf.constant(0.0)]
  for tensor in tf.nest.flatten(inputs, expand_composites=True):
    if tf.is_tensor(tensor) and tensor.dtype.is_floating and tensor.shape.rank:
      is_bad = tf.logical_not(tf.math.is_finite(tensor))
      rows = tf.reduce_any(is_bad, axis=list(range(1, tensor.shape.rank)))
      counts.append(tf.reduce_sum(tf.cast(rows, tf.float32)))
  for value in logs.values():
    if step_plan.is_number(value) and value.dtype.is_floating:
      counts.append(tf.cast(tf.logical_not(tf.math.is_finite(value)), tf.float32))
  return tf.where(base_task.num_examples_in(inputs) > 0, tf.reduce_max(tf.stack(counts)), 0.0)
