"""The losses of a student, by name.

Each is a function of (student, teacher, labels, temperature). `student` and `teacher` are the outputs of their
networks: {'logits': float32 [b, c], 'features': float [b, d]}, the student's with 'hint', float [b, d of the teacher],
where the loss `feature` is in use. `labels` is int64 [b]. Each returns the mean over the examples, a scalar.
"""

from collections.abc import Callable, Mapping

import tensorflow as tf
import tf_keras


def label(student: Mapping[str, object], teacher: object, labels: tf.Tensor, temperature: float) -> tf.Tensor:
  """Cross-entropy with the labels."""
  del teacher, temperature
  return tf.reduce_mean(tf_keras.losses.sparse_categorical_crossentropy(labels, student['logits'], from_logits=True))


def soft_label(
  student: Mapping[str, tf.Tensor], teacher: Mapping[str, tf.Tensor], labels: tf.Tensor, temperature: float
) -> tf.Tensor:
  """Kullback-Leibler divergence of the student's softened probabilities from the teacher's, times temperature^2.

  G. Hinton et al., Distilling the Knowledge in a Neural Network, 2015.
  """
  del labels
  wanted = tf.nn.log_softmax(teacher['logits'] / temperature)
  found = tf.nn.log_softmax(student['logits'] / temperature)
  return temperature**2 * tf.reduce_mean(tf.reduce_sum(tf.exp(wanted) * (wanted - found), axis=1))


def feature(
  student: Mapping[str, object], teacher: Mapping[str, object], labels: tf.Tensor, temperature: float
) -> tf.Tensor:
  """Mean squared error of a linear map of the student's features, with the teacher's features as targets.

  A. Romero et al., FitNets: Hints for Thin Deep Nets, 2014.
  """
  del labels, temperature
  return tf.reduce_mean(tf.square(student['hint'] - tf.cast(teacher['features'], tf.float32)))


LOSSES: Mapping[str, Callable[..., tf.Tensor]] = {'label': label, 'soft_label': soft_label, 'feature': feature}
NEED_TEACHER = ('soft_label', 'feature')
