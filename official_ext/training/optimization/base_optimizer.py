"""The base of this library's own optimizers: values to log, slots of any dtype, weight decay."""

import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals


class Optimizer(tf_keras.optimizers.Optimizer):
  """A tf_keras optimizer that reports values of its last update.

  The trainer writes the result of `logs` into its training logs, as means over the updates of a loop. Any optimizer may
  have such a method, with other values.
  """

  def __init__(
    self,
    name: str,
    learning_rate: float | tf.Tensor | tf_keras.optimizers.schedules.LearningRateSchedule,
    **kwargs: object,
  ):
    """Initializes the optimizer.

    Args:
      name: of the optimizer.
      learning_rate: a number, or a schedule.
      **kwargs: see base class.
    """
    super().__init__(name, **kwargs)
    self._learning_rate = self._build_learning_rate(learning_rate)
    self._sums: list[tf.Variable] = []
    self._update_squares = self.add_sum('update_squares')
    self._update_size = self.add_sum('update_size')

  def add_sum(self, name: str) -> tf.Variable:
    """Makes a float32 scalar that is reset to 0 at the start of every update, for `update_step` to add to."""
    with tf.init_scope():
      variable = tf.Variable(
        0.0, name=name, dtype=tf.float32, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
      )
    self._variables.append(variable)
    self._sums.append(variable)
    return variable

  def add_slot(self, variable: tf.Variable, name: str, dtype: tf.DType | str = tf.float32) -> tf.Variable:
    """Makes a variable of zeros, with the shape and on the device of one of the model's."""
    with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
      slot_name = f'{name}/{tf_internals.shared_name(variable)}'
      slot = tf.Variable(tf.zeros(variable.shape, dtype), name=slot_name, trainable=False)
    self._variables.append(slot)
    return slot

  def note_update(self, update: tf.Tensor) -> None:
    """Counts an update; `update_step` calls it with the update before it is multiplied by the learning rate."""
    self._update_squares.assign_add(tf.reduce_sum(tf.square(update)))
    self._update_size.assign_add(float(update.shape.num_elements()))

  def logs(self) -> dict[str, tf.Tensor]:
    """Returns values of the last update to log: float32 scalars read from this optimizer's variables.

    The names are always the same, even before the first update.

    Returns:
      update_rms: the root mean square of the update, over all numbers that were updated, before it is multiplied by the
        learning rate, and without weight decay.
    """
    return {'update_rms': tf.sqrt(tf.math.divide_no_nan(self._update_squares, self._update_size))}

  def _distributed_apply_gradients_fn(self, distribution, grads_and_vars, **kwargs):
    for variable in self._sums:
      variable.assign(0.0)
    return super()._distributed_apply_gradients_fn(distribution, grads_and_vars, **kwargs)

  def index_of(self, variable: tf.Variable) -> int:
    """The index of a variable in the list that `build` got."""
    return self._index_dict[self._var_key(variable)]

  def get_config(self) -> dict[str, object]:
    return {**super().get_config(), 'learning_rate': self._serialize_hyperparameter(self._learning_rate)}


def dense(gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable) -> tf.Tensor:
  """Converts a gradient, dense or IndexedSlices, to a float32 tensor of the variable's shape."""
  gradient = tf.convert_to_tensor(gradient)
  gradient.set_shape(variable.shape)
  return tf.cast(gradient, tf.float32)


def adam_moments(
  gradient: tf.Tensor, first: tf.Tensor, second: tf.Tensor, beta_1: float, beta_2: float
) -> tuple[tf.Tensor, tf.Tensor]:
  """Adam's two moving averages after one more gradient: float32, without the correction of their start at 0."""
  first = tf.cast(first, tf.float32)
  second = tf.cast(second, tf.float32)
  return first + (1 - beta_1) * (gradient - first), second + (1 - beta_2) * (tf.square(gradient) - second)


def correction(beta: float, iterations: tf.Tensor) -> tf.Tensor:
  """The divisor that corrects a moving average that began at 0, after `iterations` + 1 updates."""
  return 1.0 - tf.pow(tf.constant(beta, tf.float32), tf.cast(iterations + 1, tf.float32))
