"""How several losses become one, and several gradients one."""

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

import official_ext as ext

Gradients = list[tf.Tensor]


class UncertaintyWeights(tf_keras.layers.Layer):
  """A learned log-variance for each loss: `sum exp(-s) loss + s / 2`, up to constant factors of the losses.

  A. Kendall et al., Multi-Task Learning Using Uncertainty to Weigh Losses, 2018, equations 7 and 10, with s the
  logarithm of the variance: a squared error (half of it is the paper's) and a cross-entropy over a softened softmax.

  Attributes:
    names: of the losses.
  """

  def __init__(self, names: Sequence[str], **kwargs: object):
    super().__init__(dtype='float32', **kwargs)
    self.names = tuple(names)

  def build(self, input_shape):
    """Makes the log-variances, 0 at first."""
    self.log_variances = self.add_weight('log_variances', shape=(len(self.names),), initializer='zeros')
    super().build(input_shape)

  def call(self, losses: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Weighs scalars.

    Returns:
      For each loss its term, `exp(-s) loss + s / 2`.
    """
    return {name: tf.exp(-s) * losses[name] + s / 2 for name, s in zip(self.names, tf.unstack(self.log_variances))}


def without_conflicts(gradients: Sequence[Gradients], seed: tf.Tensor) -> list[Gradients]:
  """Gradient surgery: takes from every loss's gradient the part that points against another loss's.

  T. Yu et al., Gradient Surgery for Multi-Task Learning (PCGrad), 2020, algorithm 1: for each gradient g_i and the
  others g_j in random order, g_i -= (g_i . g_j / |g_j|^2) g_j where g_i . g_j < 0, g_j being the original.

  Args:
    gradients: for each loss its gradients, one tensor for each variable; None where it has none.
    seed: of the order: int64 tensor of shape [2].

  Returns:
    Gradients of the same structure.
  """
  vectors = [_flat(of_loss, gradients) for of_loss in gradients]
  stacked = tf.stack(vectors)
  result = []
  for i, of_loss in enumerate(gradients):
    others = tf.constant([j for j in range(len(gradients)) if j != i], tf.int32)
    order = tf.gather(others, tf.argsort(ext.keyed_uniform([len(gradients) - 1], seed + i)))  # XLA cannot shuffle.
    vector = vectors[i]
    for j in tf.unstack(order):
      other = tf.gather(stacked, j)
      share = tf.math.divide_no_nan(tf.reduce_sum(vector * other), tf.reduce_sum(tf.square(other)))
      vector -= tf.minimum(share, 0.0) * other
    result.append(_shaped(vector, of_loss, gradients))
  return result


def _shapes(gradients: Sequence[Gradients]) -> list[tf.TensorShape]:
  """The shape of every variable's gradient; at least one loss has one."""
  return [next(g.shape for g in of_variable if g is not None) for of_variable in zip(*gradients)]


def _flat(of_loss: Gradients, gradients: Sequence[Gradients]) -> tf.Tensor:
  """The gradients of one loss as one vector, with zeros where it has none."""
  parts = [
    tf.zeros([shape.num_elements()]) if g is None else tf.reshape(tf.cast(g, tf.float32), [-1])
    for g, shape in zip(of_loss, _shapes(gradients))
  ]
  return tf.concat(parts, axis=0)


def _shaped(vector: tf.Tensor, of_loss: Gradients, gradients: Sequence[Gradients]) -> Gradients:
  """The opposite of `_flat`."""
  shapes = _shapes(gradients)
  parts = tf.split(vector, [shape.num_elements() for shape in shapes])
  return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]
