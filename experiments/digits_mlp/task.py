"""The task `digits_mlp`: data, model and loss."""

from collections.abc import Mapping
import functools

import numpy as np
import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs

_NUM_TRAIN = 1437
_NUM_CLASSES = 10


@functools.cache
def examples(is_training: bool) -> Mapping[str, np.ndarray]:
  """The images of a split as rows of 64 pixels, scaled from 0..16 to [0, 1].

  Returns:
    {'pixels': float32 [n, 64], 'label': int64 [n]}.
  """
  pixels, labels = ext.handwritten_digits.load()
  rows = slice(None, _NUM_TRAIN) if is_training else slice(_NUM_TRAIN, None)
  return {'pixels': pixels[rows].astype(np.float32) / 16, 'label': labels[rows]}


@ext.register_task(configs.DigitsMlpTaskConfig)
class DigitsMlpTask(ext.Task):
  """Classification of 64 pixels into ten digits."""

  def build_model(self) -> tf_keras.Model:
    """A model from pixels, [b, 64], to logits, [b, 10]."""
    pixels = tf_keras.Input((64,), name='pixels')
    features = pixels
    for size in self.config.model.hidden_sizes:
      features = tf_keras.layers.Dense(size, activation='relu')(features)
    # Softmax needs float32 under mixed precision.
    logits = tf_keras.layers.Dense(_NUM_CLASSES, dtype='float32', name='logits')(features)
    return tf_keras.Model(pixels, logits, name='digits_mlp')

  def build_inputs(
    self, params: ext.DataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches {'pixels': float32 [b, 64], 'label': int64 [b]}."""
    source = ext.ArraySource(examples(bool(params.is_training)))
    return ext.build_dataset(source, params, input_context)

  def build_metrics(self, training: bool = True):
    """The fraction of images whose label has the largest logit."""
    return [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')]

  def num_examples(self, params: ext.DataConfig) -> int:
    """The size of the split."""
    return len(examples(bool(params.is_training))['label'])

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """Cross-entropy: see base class."""
    logits = model(inputs['pixels'], training=training)
    losses = tf_keras.losses.sparse_categorical_crossentropy(inputs['label'], logits, from_logits=True)
    return tf.reduce_mean(losses), {'accuracy': (inputs['label'], logits)}
