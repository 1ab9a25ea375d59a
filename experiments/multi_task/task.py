"""The task `multi_task`: three losses of one network, weighed, with or without surgery on their gradients."""

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs
from . import data
from . import model as model_lib
from . import weighting

_WEIGHTINGS = ('fixed', 'uncertainty')


@ext.register_task(configs.MultiTaskConfig)
class MultiTask(ext.Task):
  """Says of a damaged image the digit, the original image, and the amount of ink by place."""

  def __init__(self, params: configs.MultiTaskConfig, logging_dir: str | None = None, name: str | None = None):
    """See base class.

    Raises:
      UserError: `task.weighting` is unknown.
    """
    super().__init__(params, logging_dir=logging_dir, name=name)
    if params.weighting not in _WEIGHTINGS:
      raise ext.UserError(f'task.weighting: {params.weighting!r} is not one of {", ".join(_WEIGHTINGS)}')

  def build_model(self) -> tf_keras.Model:
    """The network, with the learned weights of its losses where they are learned: see `WeighedNetwork`."""
    learned = None
    if self.config.weighting == 'uncertainty':
      learned = weighting.UncertaintyWeights(list(model_lib.HEADS), name='weights_of_losses')
      learned.build(())
    return model_lib.WeighedNetwork(model_lib.build_network(self.config.model), learned)

  def build_inputs(
    self, params: ext.DataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches {'damaged', 'pixels': float32 [b, 64], 'label': int64 [b], 'ink': float32 [b, 4]}.

    Which pixels are missing is a function of (seed, position); in validation the same every time.
    """
    source = ext.ArraySource(data.examples(bool(params.is_training)))
    damage = lambda example, seed: data.damaged(example, seed, self.config.missing)
    return ext.build_dataset(source, params, input_context, transform_per_example=damage)

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """The fraction of images whose digit is found."""
    return [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')]

  def num_examples(self, params: ext.DataConfig) -> int:
    """The size of the split."""
    return len(data.examples(bool(params.is_training))['label'])

  def losses_of(self, inputs: Mapping[str, tf.Tensor], outputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The mean of each loss over the examples, unweighted, by the name of its head."""
    cross_entropy = tf_keras.losses.sparse_categorical_crossentropy(
      inputs['label'], outputs['classification'], from_logits=True
    )
    squared = lambda name, target: tf.reduce_mean(tf.square(outputs[name] - target))
    return {
      'classification': tf.reduce_mean(cross_entropy),
      'reconstruction': squared('reconstruction', inputs['pixels']),
      'ink': squared('ink', inputs['ink']),
    }

  def weighed(self, losses: Mapping[str, tf.Tensor], model: tf_keras.Model) -> dict[str, tf.Tensor]:
    """The terms of the sum that is minimised, by the name of the head."""
    if model.weights_of_losses is not None:
      losses = model.weights_of_losses(losses)
    return {name: getattr(self.config.weights, name) * loss for name, loss in losses.items()}

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """The sum of the weighed losses; each is logged unweighted: see base class."""
    terms, logs = self._terms_and_logs(inputs, model, training)
    return tf.add_n(list(terms.values())), logs

  def _terms_and_logs(self, inputs, model, training):
    outputs = model(inputs['damaged'], training=training)
    losses = self.losses_of(inputs, outputs)
    logs: dict[str, object] = {f'{name}_loss': loss for name, loss in losses.items()}
    logs['accuracy'] = (inputs['label'], outputs['classification'])
    if model.weights_of_losses is not None:
      precisions = tf.unstack(tf.exp(-model.weights_of_losses.log_variances))
      logs.update({f'{name}_weight': value for name, value in zip(model_lib.HEADS, precisions)})
    return self.weighed(losses, model), logs

  def train_step(self, inputs, model, optimizer, metrics=None):
    """One update: see base class. With gradient surgery every loss has a separate backward pass."""
    if not self.config.gradient_surgery:
      return super().train_step(inputs, model, optimizer, metrics)
    with tf.GradientTape(persistent=True) as tape:
      terms, logs = self._terms_and_logs(inputs, model, training=True)
    variables = model.trainable_variables
    gradients = [tape.gradient(term, variables) for term in terms.values()]
    repaired = weighting.without_conflicts(gradients, self.make_seed('surgery'))
    # The trainer sums the replicas' gradients.
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    summed = [tf.add_n(list(of_variable)) / num_replicas for of_variable in zip(*repaired)]
    optimizer.apply_gradients(list(zip(summed, variables)))
    return {**self._update_metrics(logs, metrics), self.loss: tf.add_n(list(terms.values()))}
