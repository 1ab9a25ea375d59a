"""Implements this library's own optimizers, except Muon (muon.py).

In this order: rounding to bfloat16; `share_updates`, which traces Adam's update once for all variables of a shape; the
base class; StableAdamW; AdamW with PyTorch's epsilon, for comparisons.

tf_keras adds 40 operations to the graph for each variable, half of them for numbers that all variables share. For the
300 variables of a decoder of 24 layers that takes a third of the seconds before the first step.
"""

import threading
from typing import Any
import weakref

import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals

ROUNDINGS = ('stochastic', 'nearest')


def random_bits(shape: tf.TensorShape, index: int, iterations: tf.Tensor) -> tf.Tensor:
  """Draws 32 random bits for each number of a variable, as a function of the variable's index and of the update.

  Args:
    shape: of the variable.
    index: of the variable in the optimizer's list.
    iterations: number of updates so far.

  Returns:
    uint32 of `shape`. The same on every replica, in a resumed run, and inside and outside of XLA.
  """
  seed = tf.stack([tf.constant(index, tf.int64), tf.cast(iterations, tf.int64)])
  return tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.uint32, alg='philox')


def to_bfloat16(values: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
  """Rounds up or down at random, so that the mean is the number itself.

  A bfloat16 is a float32 without its last 16 bits. If 16 random bits are added to these, the sum carries into the upper
  bits with a probability equal to the fraction of the way to the upper neighbour.

  Args:
    values: float32, finite.
    bits: uint32 of the same shape, below 2^16.
  """
  upper = tf.bitwise.right_shift(tf.bitcast(values, tf.uint32) + bits, tf.constant(16, tf.uint32))
  return tf.bitcast(tf.cast(upper, tf.uint16), tf.bfloat16)


def halves(bits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """uint32 -> two independent uint32 below 2^16."""
  sixteen = tf.constant(16, tf.uint32)
  return tf.bitwise.bitwise_and(bits, tf.constant(0xFFFF, tf.uint32)), tf.bitwise.right_shift(bits, sixteen)


_CLASSES = (tf_keras.optimizers.Adam, tf_keras.optimizers.AdamW)


def share_updates(optimizer: tf_keras.optimizers.Optimizer) -> None:
  """Lets tf_keras' Adam or AdamW update all variables of a shape by one function, to the same values.

  Args:
    optimizer: without wrappers, before its first update. Others, also with `amsgrad`, stay as they are.
  """
  # A class derived from them may mean something else by its attributes, and so may who has replaced the method.
  if type(optimizer) in _CLASSES and not optimizer.amsgrad and 'update_step' not in vars(optimizer):
    optimizer.update_step = _SharedUpdate(optimizer).step


class _SharedUpdate:
  """The `update_step` of an optimizer."""

  def __init__(self, optimizer: Any):
    self._optimizer = optimizer
    self._original = optimizer.update_step
    self._scalars: weakref.WeakKeyDictionary[tf.Graph, dict[Any, Any]] = weakref.WeakKeyDictionary()
    self._lock = threading.Lock()  # Replicas may be traced in threads.
    self._update = tf.function(self._of_arguments, autograph=False)

  def step(self, gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable) -> None:
    """Updates a variable: see tf_keras."""
    slots = list(tf_internals.adam_slots(self._optimizer, variable))
    if tf_internals.is_resource_variable(variable) and tf.distribute.get_replica_context() is not None:
      slots = [tf_internals.part_here(slot) for slot in slots]
    # A function that takes slots with a part for each replica or device would take the first call's for all.
    are_plain = all(map(tf_internals.is_resource_variable, (variable, *slots)))
    if tf.executing_eagerly() or isinstance(gradient, tf.IndexedSlices) or not are_plain:
      self._original(gradient, variable)
    else:
      self._update(gradient, variable, *slots, *self._of_step(variable))

  def _of_step(self, variable):
    """The factor and the epsilon of this step: scalars that are made once in a graph, for a device and a type."""
    graph = tf.compat.v1.get_default_graph()
    key = variable.dtype, variable.device
    with self._lock:
      known = self._scalars.setdefault(graph, {})
      if key not in known:
        known[key] = self._make_scalars(variable.dtype)
      return known[key]

  def _make_scalars(self, dtype):
    optimizer = self._optimizer
    learning_rate, step = tf.cast(optimizer.learning_rate, dtype), tf.cast(optimizer.iterations + 1, dtype)
    first, second = (1 - tf.pow(tf.cast(beta, dtype), step) for beta in (optimizer.beta_1, optimizer.beta_2))
    epsilon = optimizer.epsilon
    if getattr(optimizer, 'adaptive_epsilon', False):
      epsilon = optimizer.epsilon * tf.sqrt(second)
    return learning_rate * tf.sqrt(second) / first, tf.convert_to_tensor(epsilon, dtype)

  def _of_arguments(self, gradient, variable, momentum, velocity, factor, epsilon):
    # The formulas of tf_keras, in its order.
    momentum.assign_add((gradient - momentum) * (1 - self._optimizer.beta_1))
    velocity.assign_add((tf.square(gradient) - velocity) * (1 - self._optimizer.beta_2))
    variable.assign_sub((momentum * factor) / (tf.sqrt(velocity) + epsilon))


class Optimizer(tf_keras.optimizers.Optimizer):
  """A tf_keras optimizer that reports values of its last update.

  The trainer writes the result of `logs` into its training logs, as means over the updates of a loop. Any optimizer may
  have such a method, with other values.

  Example:

    >>> class SignDescent(ext.Optimizer):
    ...   def __init__(self, learning_rate=0.1, name='SignDescent', **kwargs):
    ...     super().__init__(name, learning_rate, **kwargs)
    ...
    ...   def update_step(self, gradient, variable):
    ...     update = tf.sign(gradient)
    ...     self.note_update(update)
    ...     variable.assign_sub(self.learning_rate * update)
    >>> optimizer, weights = SignDescent(), tf.Variable([1.0, 2.0])
    >>> _ = optimizer.apply_gradients([(tf.constant([3.0, -0.5]), weights)])
    >>> weights.numpy(), float(optimizer.logs()['update_rms'])
    (array([0.9, 2.1], dtype=float32), 1.0)
  """

  _built = False  # Whether a subclass has made its slots.

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


SLOT_DTYPES = ('bfloat16', 'float32')


class StableAdamW(Optimizer):
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
      slot_rounding: how to round to bfloat16, one of ROUNDINGS.
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
    if self._built:
      return
    self._momentums = [self.add_slot(variable, 'm', self.slot_dtype) for variable in var_list]
    self._velocities = [self.add_slot(variable, 'v', self.slot_dtype) for variable in var_list]
    self._built = True

  def update_step(self, gradient, variable):
    """Updates one variable: see base class."""
    index = self.index_of(variable)
    gradient = dense(gradient, variable)
    first, second = adam_moments(gradient, self._momentums[index], self._velocities[index], self.beta_1, self.beta_2)
    self._assign_slots(index, first, second)
    first = first / correction(self.beta_1, self.iterations)
    second = second / correction(self.beta_2, self.iterations)
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
      bits = halves(random_bits(first.shape, index, self.iterations))
      values = tuple(map(to_bfloat16, values, bits))
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


class AdamWTorch(Optimizer):
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
    if self._built:
      return
    self._momentums = [self.add_slot(variable, 'm') for variable in var_list]
    self._velocities = [self.add_slot(variable, 'v') for variable in var_list]
    self._built = True

  def update_step(self, gradient, variable):
    """Updates one variable, after its weight decay: see base class."""
    index = self.index_of(variable)
    slots = self._momentums[index], self._velocities[index]
    gradient = dense(gradient, variable)
    first, second = adam_moments(gradient, *slots, self.beta_1, self.beta_2)
    slots[0].assign(first)
    slots[1].assign(second)
    first = first / correction(self.beta_1, self.iterations)
    second = second / correction(self.beta_2, self.iterations)
    update = first / (tf.sqrt(second) + self.epsilon)
    self.note_update(update)
    variable.assign_sub(tf.cast(tf.cast(self.learning_rate, tf.float32) * update, variable.dtype))

  def get_config(self) -> dict[str, object]:
    fields = ('beta_1', 'beta_2', 'epsilon')
    return {**super().get_config(), **{field: getattr(self, field) for field in fields}}
