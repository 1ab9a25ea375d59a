"""A factor on an optimizer's learning rate that can be changed during training.

It works for a constant rate and for any schedule, in legacy and new tf_keras optimizers, in compiled steps and on
several replicas. A checkpoint has the same variables with it as without it.
"""

import math
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.base import json_types
from official_ext.base import tf_internals

_SCHEDULE: Any = tf_keras.optimizers.schedules.LearningRateSchedule
_ROUNDING = 1e-6  # Of a number as a float32 variable.


class ScaledSchedule(tf_keras.optimizers.schedules.LearningRateSchedule):
  """A schedule multiplied by a variable."""

  def __init__(self, schedule: tf_keras.optimizers.schedules.LearningRateSchedule, scale: tf.Variable):
    """Initializes the schedule.

    Args:
      schedule: a function of the number of updates.
      scale: a float32 scalar, which is read at every update.
    """
    self.schedule, self._scale = schedule, scale

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    """The learning rate at a number of updates: a float32 scalar."""
    rate = tf.convert_to_tensor(self.schedule(step))
    return rate * tf.cast(self._scale.read_value(), rate.dtype)

  def get_config(self) -> dict[str, object]:
    """See base class. The factor is state, not configuration."""
    return self.schedule.get_config()


class LearningRateScale:
  """The factor on the learning rate of one optimizer.

  Attributes:
    value: the factor; `set` changes it.
  """

  def __init__(self, optimizer: tf_keras.optimizers.Optimizer):
    """Gives an optimizer a factor of 1. Call it inside the strategy's scope, before training.

    Args:
      optimizer: a tf_keras optimizer, without wrappers around it.

    Raises:
      ValueError: its learning rate is neither a number nor a schedule.
    """
    self._optimizer = optimizer
    self.value = 1.0
    rate = tf_internals.learning_rate_or_schedule(optimizer)
    self._schedule = rate if isinstance(rate, _SCHEDULE) else None
    if self._schedule is None:
      if callable(rate) and not isinstance(rate, tf.Variable):
        raise ValueError(
          f'the learning rate of {type(optimizer).__name__} is a function; give it a number or a schedule'
        )
      self._constant = _number(rate)
      return
    self._variable = tf.Variable(
      1.0,
      dtype=tf.float32,
      trainable=False,
      name='learning_rate_scale',
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
    tf_internals.replace_schedule(optimizer, ScaledSchedule(self._schedule, self._variable))

  def learning_rate(self) -> float:
    """The learning rate of the next update."""
    if self._schedule is not None:
      return float(self._schedule(self._optimizer.iterations)) * self.value
    scaled, present = self._constant * self.value, _number(self._optimizer.learning_rate)
    return scaled if math.isclose(present, scaled, rel_tol=_ROUNDING) else present  # Another action may have set it.

  def assign(self, value: float) -> None:
    """Changes the factor, from the next update on."""
    if self._schedule is not None:
      self._variable.assign(value)
    else:  # A variable, which checkpoints hold; a legacy optimizer makes it with its first update.
      self._optimizer.learning_rate = self.learning_rate() / self.value * value
    self.value = float(value)

  def state(self) -> json_types.JsonObject:
    """The factor; and the constant rate, to which other actions contribute too."""
    state = {'scale': self.value}
    return state if self._schedule is not None else {**state, 'learning_rate': _number(self._optimizer.learning_rate)}

  def restore(self, state: json_types.JsonMapping) -> None:
    """Takes up a state, after the optimizer's variables were restored; {} is a factor of 1."""
    before, self.value = self.value, float(state.get('scale', 1.0))
    if self._schedule is not None:
      self._variable.assign(self.value)
    elif state.get('learning_rate') != _number(self._optimizer.learning_rate) and (before, self.value) != (1.0, 1.0):
      self._optimizer.learning_rate = self._constant * self.value  # The rate of the configuration has changed.


def _number(rate: tf.types.experimental.TensorLike) -> float:
  """A constant rate, which may be a variable of several replicas."""
  return float(tf.convert_to_tensor(rate))
