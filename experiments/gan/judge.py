"""A classifier that judges generated digits, and its answers for many of them."""

import functools
import warnings

import numpy as np
import tensorflow as tf
import tf_keras
import threadpoolctl

from . import data

_HIDDEN_SIZE = 128
_MAX_ITERATIONS = 100
_LEAST_SHARE = 0.01


@functools.cache
def _weights() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
  """Kernel and bias, float32, of each layer of a perceptron that scikit-learn has fitted to the training images."""
  from sklearn import exceptions  # pylint: disable=g-import-not-at-top
  from sklearn import neural_network  # pylint: disable=g-import-not-at-top

  classifier = neural_network.MLPClassifier(
    (_HIDDEN_SIZE,), solver='lbfgs', alpha=1.0, max_iter=_MAX_ITERATIONS, random_state=0
  )
  # One thread: next to TensorFlow's, several threads would wait longer than they compute such small products.
  with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
    warnings.simplefilter('ignore', exceptions.ConvergenceWarning)  # More iterations do not make it better.
    classifier.fit(data.images(is_training=True), data.labels(is_training=True))
  return tuple((w.astype(np.float32), b.astype(np.float32)) for w, b in zip(classifier.coefs_, classifier.intercepts_))


def class_probabilities(pixels: tf.Tensor) -> tf.Tensor:
  """The judge's classes of images.

  Args:
    pixels: float32 of shape [b, 64], in [0, 1].

  Returns:
    float32 of shape [b, 10].
  """
  (kernel, bias), (last_kernel, last_bias) = _weights()
  return tf.nn.softmax(tf.nn.relu(pixels @ kernel + bias) @ last_kernel + last_bias)


class ClassCoverage(tf_keras.metrics.Metric):
  """The number of classes that at least one in a hundred images falls in: 10 is best."""

  def __init__(self, name: str = 'class_coverage'):
    super().__init__(name=name, dtype=tf.float32)
    self._counts = self.add_weight('counts', shape=(data.NUM_CLASSES,), initializer='zeros')

  def update_state(self, classes: tf.Tensor, sample_weight=None):
    """Counts images by their classes, ints of shape [b]."""
    del sample_weight
    self._counts.assign_add(tf.reduce_sum(tf.one_hot(classes, data.NUM_CLASSES), axis=0))

  def reset_state(self):
    """Forgets all images."""
    self._counts.assign(tf.zeros_like(self._counts))

  def result(self):
    """A float32 scalar."""
    shares = tf.math.divide_no_nan(self._counts, tf.reduce_sum(self._counts))
    return tf.reduce_sum(tf.cast(shares >= _LEAST_SHARE, tf.float32))
