"""Finds learning rates that cannot train, before training."""

import math
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.base import model_garden_internals
from official_ext.base import tf_internals


def problem(optimizer: tf_keras.optimizers.Optimizer, first: int, end: int) -> str:
  """Describes the learning rate of updates `first` to `end` - 1 if it cannot train.

  A constant of 0 is not a problem, with or without a warm-up: somebody has chosen it.

  Args:
    optimizer: a tf_keras optimizer, without wrappers around it.
    first: the number of updates before the first one.
    end: the number of updates after the last one.

  Returns:
    A message, if the learning rate is 0 at every step, or is not finite at the first or the last; else ''.
  """
  schedule = tf_internals.learning_rate_or_schedule(optimizer)
  if first >= end or not isinstance(schedule, tf_keras.optimizers.schedules.LearningRateSchedule):
    return ''
  constant = model_garden_internals.constant_after_warmup(schedule)
  if constant == 0:
    return ''
  for step in (first, end - 1):
    rate = float(schedule(tf.constant(step, tf.int64)))
    if not math.isfinite(rate):
      return f'the learning rate is {rate} at step {step}'
  if _first_nonzero(schedule, first, end) < end:
    return ''
  return f'the learning rate is 0 at each of the steps {first} to {end - 1}, so nothing would be learned'


def _first_nonzero(schedule: Any, first: int, end: int) -> int:
  """The first step whose learning rate is not 0; `end` if there is none."""
  for step in range(first, min(first + 2, end)):  # Nearly all schedules end here, without a trace.
    if float(schedule(tf.constant(step, tf.int64))):
      return step

  @tf.function
  def search():
    is_zero = lambda step: tf.logical_and(step < end, tf.equal(tf.cast(schedule(step), tf.float32), 0.0))
    return tf.while_loop(is_zero, lambda step: step + 1, [tf.constant(first, tf.int64)])[0]

  return int(search())
