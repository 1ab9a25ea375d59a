"""The task `contrastive`: two views of each image, an encoder, NT-Xent, a linear probe."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tf_keras

import official_ext as ext

from . import augmentation
from . import configs
from . import data
from . import losses
from . import probe

_NUM_VIEWS = 2


@ext.register_task(configs.ContrastiveTaskConfig)
class ContrastiveTask(ext.Task):
  """Learns features of 8x8 images without labels."""

  mixes_examples = True  # Each view is compared with all others of the batch.

  def build_model(self) -> tf_keras.Model:
    """A model from pixels, [b, 64], to {'features': [b, d], 'projection': float32 [b, e] of length 1}."""
    config = self.config.model
    pixels = tf_keras.Input((data.examples()['pixels'].shape[1],), name='pixels')
    features = pixels
    for size in config.encoder_sizes:
      features = tf_keras.layers.Dense(size, activation='relu')(features)
    projection = features
    for size in config.head_sizes[:-1]:
      projection = tf_keras.layers.Dense(size, activation='relu')(projection)
    projection = tf_keras.layers.Dense(config.head_sizes[-1], dtype='float32', name='projection')(projection)
    outputs = {'features': features, 'projection': tf_keras.layers.UnitNormalization(dtype='float32')(projection)}
    return tf_keras.Model(pixels, outputs, name='contrastive')

  def build_inputs(
    self, params: ext.DataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches {'views': float32 [b, 2, 64]} for training, {'pixels': float32 [b, 64], 'example': int64 [b]} otherwise.

    The views are a function of (seed, position), on any replica.
    """
    examples = data.examples()
    if not params.is_training:
      source = ext.ArraySource({'pixels': examples['pixels'], 'example': np.arange(len(examples['pixels']))})
      return ext.build_dataset(source, params, input_context)
    return ext.build_dataset(
      ext.ArraySource({'pixels': examples['pixels'][examples['is_training']]}),
      params,
      input_context,
      transform=lambda batch, _: self._views(batch),
      transform_per_example=_with_draws,
    )

  def _views(self, batch):
    return {'views': augmentation.views(batch['pixels'], batch['draws'], self.config.augmentation)}

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """The accuracy of the linear probe; nothing while training."""
    if training:
      return []
    examples = data.examples()
    num_features = self.config.model.encoder_sizes[-1]
    return [probe.ProbeAccuracy(examples['label'], examples['is_training'], num_features, self.config.probe_l2)]

  def num_examples(self, params: ext.DataConfig) -> int:
    """The images for training; all of them for evaluation."""
    is_training = data.examples()['is_training']
    return int(is_training.sum()) if params.is_training else len(is_training)

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """NT-Xent over the global batch: see base class."""
    views = inputs['views']
    projections = model(tf.reshape(views, [-1, views.shape[-1]]), training=training)['projection']
    local = tf.reshape(projections, [-1, _NUM_VIEWS, projections.shape[-1]])
    everything, first = losses.all_gather(local)
    loss, accuracy = losses.nt_xent(local, everything, first, self.config.temperature)
    return loss, {'contrastive_accuracy': accuracy}

  def validation_step(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, metrics=None
  ) -> Mapping[str, object]:
    """Hands the features to the probe; there is no loss."""
    features = model(inputs['pixels'], training=False)['features']
    for metric in metrics or ():
      metric.update_state(inputs['example'], features)
    return {}


def _with_draws(example, seed):
  return {**example, 'draws': augmentation.draw(seed, _NUM_VIEWS)}
