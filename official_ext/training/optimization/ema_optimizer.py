"""Model Garden's moving average of the weights, with an exact swap, also under loss scaling."""

from official.modeling.optimization import ema_optimizer
import tensorflow as tf
import tf_keras

from official_ext.base import errors


class ExponentialMovingAverage(ema_optimizer.ExponentialMovingAverage):
  """Keeps an exponential moving average of the weights of an optimizer inside it, legacy or new: see base class.

  Attributes:
    is_swapped: Whether the averages and the weights have changed places.
  """

  is_swapped = False

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
      average.assign_sub(tf.cast(1.0 - decay, average.dtype) * (average - weight))

    for average, weight in zip(self._average_weights, self._model_weights):
      strategy.extended.update(average, move, args=(weight,), group=False)

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

    strategy = tf.distribute.get_strategy()
    for weight, average in zip(self._model_weights, self._average_weights):
      strategy.extended.update(weight, exchange, args=(average,))
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


def find(optimizer: tf_keras.optimizers.Optimizer) -> ExponentialMovingAverage | None:
  """The moving average in an optimizer, also inside a LossScaleOptimizer; None without one.

  One that Model Garden's factory made is found after `adopt`.
  """
  optimizer = _without_loss_scale(optimizer)
  return optimizer if isinstance(optimizer, ExponentialMovingAverage) else None


def adopt(optimizer: tf_keras.optimizers.Optimizer) -> ExponentialMovingAverage | None:
  """Turns the moving average in an optimizer into one of this module's, if Model Garden's factory made it.

  Call it once for an optimizer that comes from outside, before its first use.

  Returns:
    The result of `find` from now on.
  """
  average = _without_loss_scale(optimizer)
  if type(average) is ema_optimizer.ExponentialMovingAverage:  # pylint: disable=unidiomatic-typecheck
    average.__class__ = ExponentialMovingAverage  # It has no state, and others hold references.
  return find(optimizer)


def _without_loss_scale(optimizer: tf_keras.optimizers.Optimizer) -> object:
  is_scaled = isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
  return optimizer.inner_optimizer if is_scaled else optimizer
