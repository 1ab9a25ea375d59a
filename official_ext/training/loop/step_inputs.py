"""Takes the micro-batches of training steps, and measures the time that this takes.

They come from the trainer's iterator; if the steps of a program gather them, from their numbers, and the iterator is
unchanged.
"""

from collections.abc import Callable
import time
from typing import Any

import tensorflow as tf

from official_ext.base import tf_internals
from official_ext.data import in_memory as in_memory_lib
from official_ext.training.step import step_random


class StepInputs:
  """Calls `next_train_inputs` for a step.

  Attributes:
    wait: float64 scalar variable, the seconds spent waiting for input since it was set to zero. Gathering is a part of
      the step, and not in it.
    in_memory: how to compute the batch of a number; None if batches come from the iterator.
    data_offset: int64 scalar variable: steps find their batches so many updates further than their numbers.
  """

  def __init__(self, next_inputs: Callable[[Any], object], global_step: tf.Variable, seed: int, num_micro_steps: int):
    """Initializes it, inside the strategy's scope.

    Args:
      next_inputs: the trainer's `next_train_inputs`: takes a micro-batch from the training iterator.
      global_step: the number of steps done.
      seed: `runtime.seed`.
      num_micro_steps: micro-batches of one step.
    """
    self.wait = tf.Variable(
      0.0, dtype=tf.float64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )
    self.in_memory: in_memory_lib.InMemoryBatches | None = None
    self.data_offset = tf.Variable(
      0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )
    self._next_inputs = next_inputs
    self._global_step = global_step
    self._seed = seed
    self._num_micro_steps = num_micro_steps

  @tf_internals.autograph_unconverted
  def take(self, iterator: tf.data.Iterator, steps_ahead: int = 0) -> list[Any]:
    """Takes the micro-batches of one step, and notes how long that took. Cross-replica context, on the host.

    Args:
      iterator: the training iterator.
      steps_ahead: the number of the step, counted from the next one.
    """
    if self.in_memory is not None:
      first = self.next_batch(steps_ahead)
      return [self.in_memory.batch(first + i) for i in range(self._num_micro_steps)]
    with tf.control_dependencies([self._global_step.read_value()]):
      start = _timestamp()
    with tf.control_dependencies([start]):
      batches = [self.take_one(iterator, i, steps_ahead) for i in range(self._num_micro_steps)]
    arrived = [t for t in tf.nest.flatten(batches, expand_composites=True) if tf.is_tensor(t)]
    with tf.control_dependencies(arrived):
      self.wait.assign_add(_timestamp() - start)
    return batches

  @tf.autograph.experimental.do_not_convert
  def next_batch(self, steps_ahead: int = 0) -> tf.Tensor:
    """The number of the first batch of the next step, or of one further ahead: int64 scalar."""
    return (self._global_step.read_value() + steps_ahead + self.data_offset.read_value()) * self._num_micro_steps

  @tf_internals.autograph_unconverted
  def take_one(self, iterator: tf.data.Iterator, micro_step: int = 0, steps_ahead: int = 0) -> Any:
    """Calls `next_train_inputs`, which may read the step and its seeds. Cross-replica context.

    Args:
      iterator: the training iterator.
      micro_step: the number of the micro-batch in the step.
      steps_ahead: the number of the step, counted from the next one.
    """
    with step_random.step_key(self._key(micro_step, steps_ahead)):
      return tf_internals.autograph_called(self._next_inputs)(iterator)

  @tf.autograph.experimental.do_not_convert
  def _key(self, micro_step, steps_ahead):
    return step_random.StepKey(
      seed=self._seed,
      step=self._global_step.read_value() + steps_ahead,
      micro_step=micro_step,
      num_micro_steps=self._num_micro_steps,
      purpose='inputs',
    )


@tf.autograph.experimental.do_not_convert
def _timestamp() -> tf.Tensor:
  """Seconds since 1970: float64 scalar. TensorFlow's own op is refused under op determinism."""
  if tf_internals.is_op_determinism_enabled():
    return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
  return tf.timestamp()
