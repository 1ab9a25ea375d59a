"""AdamW with update clipping, and slots in bfloat16."""

import tensorflow as tf
import tf_keras

from official_ext.training.optimization import base_optimizer
from official_ext.training.optimization import rounding

SLOT_DTYPES = ('bfloat16', 'float32')


class StableAdamW(base_optimizer.Optimizer):
  """AdamW that lowers the learning rate of each variable whose gradients outgrow their second moment.

  Wortsman et al. 2023, https://arxiv.org/abs/2304.13013, algorithm 2; the clipping is Adafactor's (Shazeer and Stern
  2018, https://arxiv.org/abs/1804.04235). With gradient g, moments m and v corrected for their start, learning rate a:

    rms = sqrt(mean(g^2 / max(v, epsilon^2)))            for each variable
    a'  = a / max(1, rms / clip_threshold)
    x  -= a' * (m / (sqrt(v) + epsilon) + weight_decay * x)

  In bfloat16 the slots take half the memory. With eight bits of mantissa, rounding to the nearest loses a change of one
  in a thousand, so that a second moment under beta_2 = 0.999 never changes; rounded at random, it is right in the mean.
  The random numbers are a function of the number of the update, so that a resumed run draws the same.
  """

  def __init__(
    self,
    learning_rate: float | tf.Tensor | tf_keras.optimizers.schedules.LearningRateSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    clip_threshold: float = 1.0,
    slot_dtype: str = 'bfloat16',
    slot_rounding: str = 'stochastic',
    name: str = 'StableAdamW',
    **kwargs: object,
  ):
    """Initializes the optimizer.

    Args:
      learning_rate: a number, or a schedule.
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: added to the root of the second moment.
      weight_decay: decay of the weights, times the learning rate.
      clip_threshold: an update is scaled down if `rms` is above this; 0: never.
      slot_dtype: one of SLOT_DTYPES.
      slot_rounding: how to round to bfloat16, one of rounding.ROUNDINGS.
      name: of the optimizer.
      **kwargs: see base class.
    """
    super().__init__(name, learning_rate, weight_decay=weight_decay, **kwargs)
    self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
    self.clip_threshold = clip_threshold
    self.slot_dtype, self.slot_rounding = slot_dtype, slot_rounding
    self._num_updated = self.add_sum('num_updated')
    self._num_clipped = self.add_sum('num_clipped')

  def build(self, var_list):
    """Creates the slots: see base class."""
    super().build(var_list)
    if getattr(self, '_built', False):
      return
    self._momentums = [self.add_slot(variable, 'm', self.slot_dtype) for variable in var_list]
    self._velocities = [self.add_slot(variable, 'v', self.slot_dtype) for variable in var_list]
    self._built = True

  def update_step(self, gradient, variable):
    """Updates one variable: see base class."""
    index = self.index_of(variable)
    gradient = base_optimizer.dense(gradient, variable)
    first, second = base_optimizer.adam_moments(
      gradient, self._momentums[index], self._velocities[index], self.beta_1, self.beta_2
    )
    self._assign_slots(index, first, second)
    first = first / base_optimizer.correction(self.beta_1, self.iterations)
    second = second / base_optimizer.correction(self.beta_2, self.iterations)
    update = first / (tf.sqrt(second) + self.epsilon)
    factor = self._clip_factor(gradient, second)
    self.note_update(update * factor)
    weight = tf.cast(variable, tf.float32)
    if self.weight_decay and self._use_weight_decay(variable):
      update += self.weight_decay * weight
    variable.assign_sub(tf.cast(tf.cast(self.learning_rate, tf.float32) * factor * update, variable.dtype))

  def _clip_factor(self, gradient, second):
    self._num_updated.assign_add(1.0)
    if not self.clip_threshold:
      return tf.constant(1.0)
    ratios = tf.square(gradient) / tf.maximum(second, self.epsilon**2)
    excess = tf.sqrt(tf.reduce_mean(ratios)) / self.clip_threshold
    self._num_clipped.assign_add(tf.cast(excess > 1.0, tf.float32))
    return 1.0 / tf.maximum(1.0, excess)

  def _assign_slots(self, index, first, second):
    slots = self._momentums[index], self._velocities[index]
    values = first, second
    if self.slot_dtype == 'bfloat16' and self.slot_rounding == 'stochastic':
      bits = rounding.halves(rounding.random_bits(first.shape, index, self.iterations))
      values = tuple(map(rounding.to_bfloat16, values, bits))
    for slot, value in zip(slots, values):
      slot.assign(tf.cast(value, slot.dtype))

  def _apply_weight_decay(self, variables):
    """Does nothing: `update_step` decays, under the learning rate that it may lower."""

  def logs(self) -> dict[str, tf.Tensor]:
    """Returns values of the last update to log: see base class.

    Returns:
      update_rms; clipped_fraction, the fraction of the variables whose update was scaled down.
    """
    return {**super().logs(), 'clipped_fraction': tf.math.divide_no_nan(self._num_clipped, self._num_updated)}

  def get_config(self) -> dict[str, object]:
    fields = ('beta_1', 'beta_2', 'epsilon', 'clip_threshold', 'slot_dtype', 'slot_rounding')
    return {**super().get_config(), **{field: getattr(self, field) for field in fields}}
