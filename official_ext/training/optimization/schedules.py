"""Implements schedules of the learning rate that Model Garden lacks, and a factor that changes a rate during training.

A schedule is a function of the number of updates alone. `offset` shifts it, as in Model Garden's: before that step it
has its first value. A warm-up (`optimizer_config.warmup`) replaces the schedule's first steps; if `offset` equals its
`warmup_steps`, the schedule begins when the warm-up ends.

The factor works for any schedule or constant rate, in legacy and new tf_keras optimizers, in compiled steps and on
several replicas. It adds no variable to checkpoints.
"""

import dataclasses
import math
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.base import json_values
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

  def state(self) -> json_values.JsonObject:
    """The factor; and the constant rate, to which other actions contribute too."""
    state = {'scale': self.value}
    return state if self._schedule is not None else {**state, 'learning_rate': _number(self._optimizer.learning_rate)}

  def restore(self, state: json_values.JsonMapping) -> None:
    """Takes up a state, after the optimizer's variables were restored; {} is a factor of 1."""
    before, self.value = self.value, float(state.get('scale', 1.0))
    if self._schedule is not None:
      self._variable.assign(self.value)
    elif state.get('learning_rate') != _number(self._optimizer.learning_rate) and (before, self.value) != (1.0, 1.0):
      self._optimizer.learning_rate = self._constant * self.value  # The rate of the configuration has changed.


def _number(rate: tf.types.experimental.TensorLike) -> float:
  """A constant rate, which may be a variable of several replicas."""
  return float(tf.convert_to_tensor(rate))


CYCLES = ('triangular', 'triangular2', 'exp_range')
ANNEAL_STRATEGIES = ('cosine', 'linear')
DECAY_SHAPES = ('linear', 'cosine', 'sqrt')


class _Schedule(tf_keras.optimizers.schedules.LearningRateSchedule):
  """A schedule that subtracts whole steps: their difference is exact even for steps that no float32 can represent.

  Subclasses are dataclasses, whose fields are the arguments of the constructor and the configuration. Each has
  `offset`, the step at which it begins, and `name`.
  """

  offset: int

  def __call__(self, step):
    return self.value_at(tf.maximum(tf.cast(step, tf.int64) - self.offset, 0))

  def value_at(self, step: tf.Tensor) -> tf.Tensor:
    """The learning rate, a float32 scalar, at a number of steps since `offset`, an int64 scalar of at least 0."""
    raise NotImplementedError

  def get_config(self) -> dict[str, object]:
    return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(eq=False)
class Cyclical(_Schedule):
  """A triangular wave between two learning rates (Smith 2017, https://arxiv.org/abs/1506.01186).

  The learning rate is b + (m - b) * x * scale, with base b, maximum m, and an x that goes linearly from 0 to 1 and back
  within a cycle. The scale is 1 (triangular), 2^-c in cycle c = 0, 1, ... (triangular2) or gamma^step (exp_range).

  Attributes:
    initial_learning_rate: the lower bound, at which every cycle begins and ends.
    maximal_learning_rate: the upper bound of the first cycle.
    step_size: the number of steps in half a cycle, from one bound to the other.
    mode: one of CYCLES.
    gamma: the factor of 'exp_range' for every step.
  """

  initial_learning_rate: float
  maximal_learning_rate: float
  step_size: int
  mode: str = 'triangular'
  gamma: float = 1.0
  offset: int = 0
  name: str = 'Cyclical'

  def value_at(self, step):
    cycle = step // (2 * self.step_size)
    position = step - cycle * 2 * self.step_size
    x = tf.cast(tf.minimum(position, 2 * self.step_size - position), tf.float32) / self.step_size
    scale = tf.constant(1.0)
    if self.mode == 'triangular2':
      scale = tf.pow(2.0, -tf.cast(cycle, tf.float32))
    elif self.mode == 'exp_range':
      scale = tf.pow(tf.constant(self.gamma, tf.float32), tf.cast(step, tf.float32))
    return self.initial_learning_rate + (self.maximal_learning_rate - self.initial_learning_rate) * x * scale


@dataclasses.dataclass(eq=False)
class OneCycle(_Schedule):
  """One rise to a maximum and one fall to almost 0 (Smith and Topin 2018, https://arxiv.org/abs/1708.07120).

  Rises from `maximal_learning_rate / div_factor` to the maximum during the first `pct_start` of the steps, and falls to
  `maximal_learning_rate / (div_factor * final_div_factor)` at `total_decay_steps`. The parameters are as in
  PyTorch's OneCycleLR with two phases. Momentum does not change.

  Attributes:
    maximal_learning_rate: the peak.
    total_decay_steps: the length of the cycle in steps.
    pct_start: the fraction of the cycle in which the learning rate rises.
    div_factor: the peak divided by the first learning rate.
    final_div_factor: the first learning rate divided by the last.
    anneal_strategy: one of ANNEAL_STRATEGIES, the shape of both the rise and the fall.
  """

  maximal_learning_rate: float
  total_decay_steps: int
  pct_start: float = 0.3
  div_factor: float = 25.0
  final_div_factor: float = 1e4
  anneal_strategy: str = 'cosine'
  offset: int = 0
  name: str = 'OneCycle'

  def value_at(self, step):
    peak, total, rise = self.maximal_learning_rate, self.total_decay_steps, self.pct_start * self.total_decay_steps
    first = peak / self.div_factor
    now = tf.cast(tf.minimum(step, total), tf.float32)
    up = self._between(first, peak, now / rise)
    down = self._between(peak, first / self.final_div_factor, (now - rise) / (total - rise))
    return tf.where(now < rise, up, down)

  def _between(self, start, end, fraction):
    if self.anneal_strategy == 'cosine':
      fraction = (1.0 - tf.cos(math.pi * fraction)) / 2.0
    return start + (end - start) * fraction


@dataclasses.dataclass(eq=False)
class WarmupStableDecay(_Schedule):
  """A rise, a constant level, a decay (Hu et al. 2024, https://arxiv.org/abs/2404.06395).

  Rises linearly from 0 during `warmup_steps`, stays at `initial_learning_rate`, and falls to `alpha` times it during
  the last `decay_fraction` of `total_decay_steps`: linearly, along half a cosine, or as 1 - sqrt(x) (Haegele et al.
  2024, https://arxiv.org/abs/2405.18392).

  Attributes:
    initial_learning_rate: the level.
    total_decay_steps: the length of all three parts in steps.
    warmup_steps: the length of the first.
    decay_fraction: the length of the last, as a fraction of `total_decay_steps`.
    decay_shape: one of DECAY_SHAPES.
    alpha: the last learning rate as a fraction of the level.
  """

  initial_learning_rate: float
  total_decay_steps: int
  warmup_steps: int = 0
  decay_fraction: float = 0.1
  decay_shape: str = 'linear'
  alpha: float = 0.0
  offset: int = 0
  name: str = 'WarmupStableDecay'

  def value_at(self, step):
    factor, decay = tf.constant(1.0), round(self.decay_fraction * self.total_decay_steps)
    if decay:
      x = tf.cast(tf.clip_by_value(step - (self.total_decay_steps - decay), 0, decay), tf.float32) / decay
      left = {'linear': 1.0 - x, 'cosine': (1.0 + tf.cos(math.pi * x)) / 2.0, 'sqrt': 1.0 - tf.sqrt(x)}
      factor = self.alpha + (1.0 - self.alpha) * left[self.decay_shape]
    if self.warmup_steps:
      factor *= tf.cast(tf.minimum(step, self.warmup_steps), tf.float32) / self.warmup_steps
    return self.initial_learning_rate * factor


class CosineRestarts(tf_keras.optimizers.schedules.CosineDecayRestarts):
  """Cosine decay with warm restarts (SGDR; Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983).

  Cycle i = 0, 1, ... is first_decay_steps * t_mul^i steps long and falls along half a cosine from its maximum,
  initial_learning_rate * (alpha + (1 - alpha) * m_mul^i), to the minimum, alpha * initial_learning_rate.
  """

  def __init__(self, *args: object, offset: int = 0, **kwargs: object):
    """Initializes the schedule.

    Args:
      *args: see base class.
      offset: the step at which the first cycle begins.
      **kwargs: see base class.
    """
    super().__init__(*args, **kwargs)
    self._offset = offset

  def __call__(self, step):
    return super().__call__(tf.maximum(tf.cast(step, tf.int64) - self._offset, 0))

  def get_config(self) -> dict[str, object]:
    return {**super().get_config(), 'offset': self._offset}
