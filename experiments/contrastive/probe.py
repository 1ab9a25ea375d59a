"""A linear probe: how well classes can be read from features by a linear map."""

import numpy as np
import tensorflow as tf
import tf_keras


def accuracy(features: np.ndarray, labels: np.ndarray, is_training: np.ndarray, l2: float) -> float:
  """Fits a ridge regression to the training examples' classes, and tests it on the others.

  The features are standardised first. The map W minimises |X W - Y|^2 / n + l2 |W|^2, with Y in {-1, 1}.

  Args:
    features: float [n, d].
    labels: int [n].
    is_training: bool [n].
    l2: the regularisation.

  Returns:
    The fraction of the examples that are not for training whose class is found.
  """
  features = features.astype(np.float64)
  fitted, targets = features[is_training], 2.0 * np.eye(labels.max() + 1)[labels[is_training]] - 1
  mean, deviation = fitted.mean(0), fitted.std(0) + 1e-6
  fitted, tested = (fitted - mean) / deviation, (features[~is_training] - mean) / deviation
  gram = fitted.T @ fitted / len(fitted) + l2 * np.eye(fitted.shape[1])
  weights = np.linalg.solve(gram, fitted.T @ (targets - targets.mean(0)) / len(fitted))
  return float(np.mean(np.argmax(tested @ weights + targets.mean(0), axis=1) == labels[~is_training]))


class ProbeAccuracy(tf_keras.metrics.Metric):
  """`accuracy` of the features that an evaluation has seen.

  They are collected by the number of the example, so that the result does not depend on how replicas and workers have
  divided them.
  """

  def __init__(
    self, labels: np.ndarray, is_training: np.ndarray, num_features: int, l2: float, name: str = 'probe_accuracy'
  ):
    super().__init__(name=name, dtype=tf.float32)
    self._labels, self._is_training, self._l2 = labels, is_training, l2
    self._features = self.add_weight('features', shape=(len(labels), num_features), initializer='zeros')

  def update_state(self, examples: tf.Tensor, features: tf.Tensor, sample_weight=None):
    """Takes the features, float [b, d], of the examples of these numbers, int [b]."""
    del sample_weight
    features = tf.cast(features, tf.float32)
    # Replicas' variables of a metric, which are summed when they are read, have no scatter_add.
    self._features.assign_add(tf.scatter_nd(examples[:, tf.newaxis], features, self._features.shape))

  def reset_state(self):
    """Forgets all features."""
    self._features.assign(tf.zeros_like(self._features))

  def result(self):
    """A float32 scalar."""
    value = tf.numpy_function(
      lambda features: np.float32(accuracy(features, self._labels, self._is_training, self._l2)),
      [tf.convert_to_tensor(self._features)],
      tf.float32,
    )
    return tf.ensure_shape(value, [])
