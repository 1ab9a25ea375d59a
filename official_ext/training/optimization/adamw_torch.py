"""AdamW with the epsilon of PyTorch, for comparisons with its training loops."""

import tensorflow as tf
import tf_keras

from official_ext.training.optimization import base_optimizer


class AdamWTorch(base_optimizer.Optimizer):
  """AdamW (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101) in the form of `torch.optim.AdamW`.

  With moments m and v of the gradient, both corrected for their start at 0, and learning rate a:

    x -= a * (m / (sqrt(v) + epsilon) + weight_decay * x)

  tf_keras adds its epsilon to the root of the uncorrected second moment. The same number is then larger by the factor
  1 / sqrt(1 - beta_2^t): 32 in the first update with beta_2 = 0.999. Slots are float32.
  """

  def __init__(
    self,
    learning_rate: float | tf.Tensor | tf_keras.optimizers.schedules.LearningRateSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    name: str = 'AdamWTorch',
    **kwargs: object,
  ):
    """Initializes the optimizer.

    Args:
      learning_rate: a number, or a schedule.
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: added to the root of the corrected second moment.
      weight_decay: decay of the weights, times the learning rate.
      name: of the optimizer.
      **kwargs: see base class.
    """
    super().__init__(name, learning_rate, weight_decay=weight_decay, **kwargs)
    self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

  def build(self, var_list):
    """Creates the slots: see base class."""
    super().build(var_list)
    if getattr(self, '_built', False):
      return
    self._momentums = [self.add_slot(variable, 'm') for variable in var_list]
    self._velocities = [self.add_slot(variable, 'v') for variable in var_list]
    self._built = True

  def update_step(self, gradient, variable):
    """Updates one variable, after its weight decay: see base class."""
    index = self.index_of(variable)
    slots = self._momentums[index], self._velocities[index]
    gradient = base_optimizer.dense(gradient, variable)
    first, second = base_optimizer.adam_moments(gradient, *slots, self.beta_1, self.beta_2)
    slots[0].assign(first)
    slots[1].assign(second)
    first = first / base_optimizer.correction(self.beta_1, self.iterations)
    second = second / base_optimizer.correction(self.beta_2, self.iterations)
    update = first / (tf.sqrt(second) + self.epsilon)
    self.note_update(update)
    variable.assign_sub(tf.cast(tf.cast(self.learning_rate, tf.float32) * update, variable.dtype))

  def get_config(self) -> dict[str, object]:
    fields = ('beta_1', 'beta_2', 'epsilon')
    return {**super().get_config(), **{field: getattr(self, field) for field in fields}}
