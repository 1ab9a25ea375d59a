"""The task `diabetes`: data, model, loss and metrics."""

from collections.abc import Mapping
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs

_NUM_TRAIN = 342
_SEX = 1  # The column of the category.


@functools.cache
def examples(is_training: bool) -> tuple[Mapping[str, np.ndarray], np.ndarray]:
  """The patients of a split, of a random one that is always the same.

  Returns:
    (features, labels): {'sex': int64 [n, 1], 0 or 1; 'numbers': float32 [n, 9]: age, body mass index, blood pressure
    and six blood serum measurements}, and the progression of the disease after a year: float32 [n], 25 to 346.
  """
  from sklearn import datasets  # pylint: disable=g-import-not-at-top  # It takes a second.

  table, labels = datasets.load_diabetes(return_X_y=True, scaled=False)
  order = np.random.default_rng(0).permutation(len(table))
  rows = order[:_NUM_TRAIN] if is_training else order[_NUM_TRAIN:]
  sex = table[rows, _SEX : _SEX + 1].astype(np.int64) - 1
  numbers = np.delete(table[rows], _SEX, axis=1).astype(np.float32)
  return {'sex': sex, 'numbers': numbers}, labels[rows].astype(np.float32)


def within_50(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
  """1 for each prediction that misses the label by at most 50, else 0: `[b]`."""
  return tf.cast(tf.abs(labels - predictions)[:, 0] <= 50, tf.float32)


@ext.register_task(configs.DiabetesTaskConfig)
class DiabetesTask(ext.SupervisedTask):
  """Regression of the progression of diabetes."""

  def examples(self, is_training: bool) -> Any:
    """The patients of a split: see base class."""
    return examples(is_training)

  def build_model(self) -> tf_keras.Model:
    """A model from {'sex': [b, 1], 'numbers': [b, 9]} to predictions, float32 [b, 1].

    Means and deviations of the training data are constants of the model, and so part of its exports.
    """
    layers = tf_keras.layers
    features, labels = examples(is_training=True)
    scale = layers.Normalization(name='scale')
    scale.adapt(features['numbers'])
    inputs = {
      'sex': tf_keras.Input((1,), name='sex', dtype='int64'),
      'numbers': tf_keras.Input((features['numbers'].shape[1],), name='numbers'),
    }
    category = layers.Flatten()(layers.Embedding(2, 2, name='category')(inputs['sex']))
    joined = layers.Concatenate()([category, scale(inputs['numbers'])])
    hidden = layers.Dense(self.config.hidden_size, 'relu', name='hidden')(joined)
    hidden = layers.Dropout(self.config.dropout_rate)(hidden)
    output = layers.Dense(1, dtype='float32', name='output')(hidden)
    return tf_keras.Model(inputs, layers.Rescaling(labels.std(), labels.mean(), dtype='float32')(output))

  def build_loss(self) -> tf_keras.losses.Loss:
    """The squared error."""
    return tf_keras.losses.MeanSquaredError()

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """The mean absolute error, and the share of predictions within 50."""
    within = tf_keras.metrics.MeanMetricWrapper(within_50, name='within_50')
    return [tf_keras.metrics.MeanAbsoluteError('mae'), within]
