"""The task `digits`: data, model and loss."""

from collections.abc import Mapping
import functools

import numpy as np
import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs
from . import model as model_lib


@functools.cache
def _source(name: str, split: str, data_dir: str, on_bad_example: str) -> ext.ArraySource:
  """A split, read once and kept in memory, the images scaled from 0..16 to [0, 1]."""
  from . import digits_dataset  # noqa: F401  # It registers the builder; TFDS is imported only if it is asked for.

  arrays = ext.cached_source(ext.TfdsSource(name, split, data_dir), on_bad_example=on_bad_example).arrays
  images = arrays['image'].astype(np.float32) / configs.MAX_PIXEL
  return ext.ArraySource({'image': images, 'label': arrays['label']})


@ext.register_task(configs.DigitsTaskConfig)
class DigitsTask(ext.Task):
  """Classification of 8x8 images into ten digits."""

  def build_model(self) -> tf_keras.Model:
    """A model from images, [b, 8, 8, 1], to logits, [b, 10]."""
    config = self.config.model
    return model_lib.build_conv_net(config.filters, config.hidden_size, config.dropout_rate, configs.NUM_CLASSES)

  def build_inputs(
    self, params: ext.DataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches {'image': float32 [b, 8, 8, 1], 'label': int64 [b]}."""
    return ext.build_dataset(self._source(params), params, input_context)

  def build_metrics(self, training: bool = True):
    """The fraction of images whose label has the largest logit."""
    return [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')]

  def num_examples(self, params: ext.DataConfig) -> int:
    """The size of the split."""
    return len(self._source(params))

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """Cross-entropy: see base class."""
    logits = model(inputs['image'], training=training)
    losses = tf_keras.losses.sparse_categorical_crossentropy(inputs['label'], logits, from_logits=True)
    return tf.reduce_mean(losses), {'accuracy': (inputs['label'], logits)}

  def _source(self, params: ext.DataConfig) -> ext.ArraySource:
    return _source(params.tfds_name, params.tfds_split, params.tfds_data_dir, params.on_bad_example)
