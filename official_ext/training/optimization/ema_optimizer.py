"""Model Garden's moving average of the weights, from their first values, with an exact swap, under loss scaling."""

from collections.abc import Collection
from typing import Any

from official.modeling.optimization import ema_optimizer
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import tf_internals

SLOT = 'average'
EXACT_SLOT = 'average_float32'


class ExponentialMovingAverage(ema_optimizer.ExponentialMovingAverage):
  """Keeps an exponential moving average of the weights of an optimizer inside it, legacy or new: see base class.

  An average starts at the value that its weight has before the first update, where Model Garden's starts at 0. The slot
  `average` has the weight's dtype:

  | weight | average |
  | --- | --- |
  | float32, float64, complex | avg <- avg - (1 - decay) (avg - weight) |
  | float16, bfloat16 | the same in the float32 slot `average_float32`, rounded: small moves are not lost |
  | integer, boolean, text | the weight's present value: a counter has no mean |

  Statistics that replicas keep separately, such as the moving mean of batch normalisation, have an average on each
  replica.

  Attributes:
    is_swapped: Whether the averages and the weights have changed places.
    zero_start: Whether averages start at 0, as Model Garden's do. Set it before `shadow_copy`.
    has_begun: Whether the averages may have moved: from then on `begin` changes nothing.

  Example:

    >>> from official_ext.training.optimization import ema_optimizer
    >>> model = tf_keras.Sequential([tf_keras.Input([1]), tf_keras.layers.Dense(1, kernel_initializer='ones')])
    >>> average = ema_optimizer.ExponentialMovingAverage(tf_keras.optimizers.legacy.SGD(0.1), average_decay=0.99)
    >>> average.shadow_copy(model)
    >>> average.get_slot(model.weights[0], 'average').numpy().tolist()
    [[1.0]]
  """

  is_swapped = False
  zero_start = False
  has_begun = False

  def shadow_copy(self, model: tf.Module) -> None:
    """Makes an average for each weight that has none, at the weight's value, or at 0 with `zero_start`.

    Args:
      model: its trainable variables have averages; all of its variables if `trainable_weights_only` is false.
    """
    self._model_weights = (
      model.trainable_variables if self._trainable_weights_only else tf_internals.variables_of(model)
    )
    for weight in self._model_weights:
      if _is_rounded(weight):
        self._add(weight, EXACT_SLOT, tf.float32)
      self._add(weight, SLOT, weight.dtype)
    self._average_weights = [self.get_slot(weight, SLOT) for weight in self._model_weights]

  def _add(self, weight: tf.Variable, name: str, dtype: tf.DType) -> None:
    """Makes a slot that replicas keep as they keep the weight."""

    def first_value():
      value = tf.distribute.get_strategy().experimental_local_results(weight)[0].read_value()
      return tf.zeros_like(value, dtype) if self.zero_start and _is_mean(weight) else tf.cast(value, dtype)

    def creator(next_creator, **kwargs):
      alike = dict(synchronization=weight.synchronization, aggregation=weight.aggregation)
      return next_creator(**{**kwargs, **alike, 'dtype': dtype, 'initial_value': first_value})

    with tf.variable_creator_scope(creator):
      self.add_slot(weight, name, initializer='zeros')

  def begin(self) -> None:
    """Puts the averages at the weights, which may have been loaded since `shadow_copy`, if no update was made yet.

    Cross-replica context. With `zero_start`, or after a restore, it changes nothing.
    """
    if self.has_begun or self.zero_start or self.is_swapped or int(self.iterations.numpy()):
      return
    for weight, average, exact in self._triples():
      for each in (average, exact) if exact is not None else (average,):
        _update(each, _copy, weight)

  def complete_restore(self, have_exact: Collection[int]) -> None:
    """Completes averages that another version of this class has saved. Cross-replica context.

    Args:
      have_exact: the `id` of each weight whose float32 average was restored; the others get the rounded values.
    """
    for weight, average, exact in self._triples():
      if exact is not None and id(weight) not in have_exact:
        _update(exact, _copy, average)
      elif not _is_mean(weight):
        _update(average, _copy, weight)

  def _triples(self) -> list[tuple[tf.Variable, tf.Variable, tf.Variable | None]]:
    """(weight, average, its float32 slot or None) of each weight."""
    pairs = zip(self._model_weights or (), self._average_weights or ())
    return [(weight, average, self._exact(weight)) for weight, average in pairs]

  def _exact(self, weight: tf.Variable) -> tf.Variable | None:
    if not _is_rounded(weight):
      return None
    try:
      return self.get_slot(weight, EXACT_SLOT)
    except KeyError:  # Averages that Model Garden's class has made.
      return None

  @property
  def _wraps_new(self):
    return not isinstance(self._optimizer, tf_keras.optimizers.legacy.Optimizer)

  def _create_hypers(self):
    if not self._wraps_new:
      super()._create_hypers()

  def _create_slots(self, var_list):
    if self._wraps_new:
      self._optimizer.build(var_list)
    else:
      super()._create_slots(var_list)

  @property
  def weights(self):
    """The variables of the optimizer inside."""
    return self._optimizer.variables if self._wraps_new else self._optimizer.weights

  @property
  def learning_rate(self):
    """The learning rate of the optimizer inside."""
    return self._optimizer.learning_rate

  @learning_rate.setter
  def learning_rate(self, learning_rate):
    self._optimizer.learning_rate = learning_rate

  def apply_gradients(self, grads_and_vars, name=None, experimental_aggregate_gradients=True):
    """Updates the weights, then the averages: see base class.

    Args:
      grads_and_vars: list of (gradient, variable).
      name: optional name of the operation.
      experimental_aggregate_gradients: whether to sum the gradients over the replicas first.
    """
    result = self._optimizer.apply_gradients(
      grads_and_vars, name=name, experimental_aggregate_gradients=experimental_aggregate_gradients
    )
    ema_optimizer.maybe_merge_call(self.update_average, tf.distribute.get_strategy())
    # An operation, because a LossScaleOptimizer around this one returns one if it skips the update.
    return tf.no_op() if self._wraps_new else result

  def update_average(self, strategy):
    """Moves the averages towards the weights: see base class, where this is a function of TensorFlow's.

    A mesh supports only writes of the step itself, and no function inside it.
    """
    step, decay = tf.cast(self.iterations, tf.float32), tf.constant(self._average_decay, tf.float32)
    if self._dynamic_decay:
      updates = step - self._start_step
      decay = tf.minimum(decay, (1.0 + updates) / (10.0 + updates))
    decay = tf.where(step < self._start_step, tf.zeros_like(decay), decay)

    def move(average, weight):
      average.assign_sub(tf.cast(1.0 - decay, average.dtype) * (average - tf.cast(weight, average.dtype)))

    for weight, average, exact in self._triples():
      if exact is not None:
        strategy.extended.update(exact, move, args=(weight,), group=False)
        strategy.extended.update(average, _copy, args=(exact,), group=False)
      else:
        change = move if _is_mean(weight) else _copy
        strategy.extended.update(average, change, args=(weight,), group=False)

  def swap_weights(self):
    """Exchanges weights and averages. A second call restores every bit.

    Raises:
      ValueError: outside of a cross-replica context.
    """
    if not tf.distribute.in_cross_replica_context():
      raise ValueError('Swapping weights must occur under a tf.distribute.Strategy.')

    def exchange(weight, average):
      value = tf.identity(weight.read_value())
      weight.assign(average)
      average.assign(value)

    for weight, average, _ in self._triples():
      _update(weight, exchange, average)
    self.is_swapped = not self.is_swapped

  @property
  def averages(self) -> dict[int, tf.Variable]:
    """The averages, by the `id` of their weights."""
    return {id(weight): average for weight, average in zip(self._model_weights or (), self._average_weights or ())}

  def check_covers(self, model: tf.Module) -> None:
    """Makes sure that every weight of a model has an average: none was made after the averages were.

    Raises:
      UserError: a weight has none.
    """
    late = [variable.name for variable in model.trainable_variables if id(variable) not in self.averages]
    if late or not self.averages:
      name = late[0] if late else 'every weight'
      raise errors.UserError(
        f'trainer.optimizer_config.ema: the model makes {name} at its first call, and it would have no average; let '
        'build_model call the model once on an input'
      )


def _is_mean(weight: tf.Variable) -> bool:
  """Whether the values of a weight have a mean."""
  return weight.dtype.is_floating or weight.dtype.is_complex


def _is_rounded(weight: tf.Variable) -> bool:
  """Whether a dtype loses moves of (1 - decay) times a difference: bfloat16 has 8 bits, float16 has 11."""
  return weight.dtype.is_floating and weight.dtype.size < 4


def _copy(variable: tf.Variable, value: tf.Variable) -> None:
  variable.assign(tf.cast(value, variable.dtype))


def _update(variable: tf.Variable, change: Any, value: tf.Variable) -> None:
  """Changes a variable on every replica, by the value of another one there."""
  tf.distribute.get_strategy().extended.update(variable, change, args=(value,))


def find(optimizer: tf_keras.optimizers.Optimizer) -> ExponentialMovingAverage | None:
  """The moving average in an optimizer, also inside a LossScaleOptimizer; None without one.

  One that Model Garden's factory made is found after `adopt`.
  """
  optimizer = _without_loss_scale(optimizer)
  return optimizer if isinstance(optimizer, ExponentialMovingAverage) else None


def adopt(optimizer: tf_keras.optimizers.Optimizer, zero_start: bool | None = None) -> ExponentialMovingAverage | None:
  """Turns the moving average in an optimizer into one of this module's, if Model Garden's factory made it.

  Call it once for an optimizer that comes from outside, before its first use.

  Args:
    optimizer: any.
    zero_start: whether its averages start at 0; None keeps what it has.

  Returns:
    The result of `find` from now on.
  """
  average = _without_loss_scale(optimizer)
  if type(average) is ema_optimizer.ExponentialMovingAverage:  # pylint: disable=unidiomatic-typecheck
    average.__class__ = ExponentialMovingAverage  # Its state is in attributes of the class, and others hold references.
  found = find(optimizer)
  if found is not None and zero_start is not None:
    found.zero_start = zero_start
  return found


def _without_loss_scale(optimizer: tf_keras.optimizers.Optimizer) -> object:
  is_scaled = isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
  return optimizer.inner_optimizer if is_scaled else optimizer
