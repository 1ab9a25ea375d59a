"""The task `meta_learning`: data, model and loss."""

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs
from . import maml
from . import sinusoids

ALGORITHMS = ('maml', 'fomaml', 'joint')


@ext.register_task(configs.MetaLearningTaskConfig)
class MetaLearningTask(ext.Task):
  """Regression of a sinusoid from a few of its points; an example is a whole sinusoid."""

  def __init__(self, params: configs.MetaLearningTaskConfig, **kwargs: object):
    """See base class.

    Raises:
      UserError: `params.algorithm` is unknown.
    """
    super().__init__(params, **kwargs)
    if params.algorithm not in ALGORITHMS:
      raise ext.UserError(f'task.algorithm: expected one of {", ".join(ALGORITHMS)}, got {params.algorithm!r}')

  def build_model(self) -> tf_keras.Model:
    """A model from x, [b, 1], to y, [b, 1]."""
    return maml.build_mlp(self.config.model.hidden_sizes)

  def build_inputs(
    self, params: configs.SinusoidsDataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches of tasks: see `sinusoids.draw`."""
    if params.is_training:
      return sinusoids.build_training_data(params, input_context)
    return ext.build_dataset(ext.ArraySource(sinusoids.test_tasks(params)), params, input_context)

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """The error on the queries after the inner steps; in evaluation after each of `eval_inner_steps` too."""
    config = self.config
    if not training:
      errors_after = self._errors(inputs, model, max(config.eval_inner_steps))
      return errors_after[-1], {f'mse_after_{steps}': errors_after[steps] for steps in config.eval_inner_steps}
    if config.algorithm == 'joint':
      weights = maml.for_each_task(model.trainable_variables, inputs['query_x'].shape[0])
      points = {name: tf.concat([inputs[f'support_{name}'], inputs[f'query_{name}']], 1) for name in 'xy'}
      return tf.reduce_mean(maml.squared_error(weights, points['x'], points['y'])), {}
    errors_after = self._errors(inputs, model, config.inner_steps)
    return errors_after[-1], {'mse_before': errors_after[0]}

  def _errors(self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, num_steps: int) -> list[tf.Tensor]:
    """The mean error on the queries after 0, 1, ... `num_steps` steps on the support: float32 scalars."""
    config = self.config
    weights = maml.for_each_task(model.trainable_variables, tf.shape(inputs['query_x'])[0])
    errors_after = []
    for step in range(num_steps + 1):
      if step:
        weights = maml.adapt(
          weights,
          inputs['support_x'],
          inputs['support_y'],
          config.inner_learning_rate,
          first_order=config.algorithm != 'maml',
        )
      errors_after.append(tf.reduce_mean(maml.squared_error(weights, inputs['query_x'], inputs['query_y'])))
    return errors_after
