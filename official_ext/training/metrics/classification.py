"""Metrics of a classifier by name: accuracy, precision, recall, F1, AUC and the confusion matrix.

They take class numbers and logits, and are tf_keras' own if it has them. Their state consists of sums, which a
strategy adds up over its replicas: every example counts once, on any number of replicas. The sums are float32, as in
tf_keras, and exact up to 2**24 examples of a class.

    def build_metrics(self, training=True):
      return metrics.build(self.config.metrics, num_classes=10)

    def forward(self, inputs, model, training):
      ...
      return loss, metrics.updates(self.config.metrics, inputs['label'], logits)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.base import registry


class _PerClass(tf_keras.metrics.FBetaScore):
  """Counts true and false positives and negatives of every class: see base class.

  The predicted class of an example has the largest logit, the first of equal ones; for a single logit, it is class 1 if
  the logit is above 0.
  """

  def __init__(self, num_classes: int, average: str | None, name: str):
    """Makes the counters.

    Args:
      num_classes: at least 2, or 1 for a single logit.
      average: 'macro' (the mean over all classes), 'micro' (of the sums over classes), 'weighted' (by the number of
        examples), or None (a value for each class). For a single logit, the result is always the value of class 1.
      name: of the metric.
    """
    super().__init__(average=average if num_classes > 1 else 'macro', threshold=0.5, name=name)
    self._num_classes = num_classes
    self.build([None, num_classes], [None, num_classes])  # Before the first step, which may be compiled.

  def update_state(self, y_true, y_pred, sample_weight=None):
    """Counts the examples of a batch.

    Args:
      y_true: class numbers, an integer tensor of shape [b]; 0 or 1 for a single logit.
      y_pred: logits, [b, num_classes], or [b] or [b, 1] for a single logit.
      sample_weight: [b], the weight of each example; None: 1. A label outside the classes makes the result NaN, unless
        its weight is 0.
    """
    labels, classes = _class_numbers(y_true, y_pred, self._num_classes)
    if self._num_classes == 1:
      one_hot = lambda numbers: tf.cast(numbers, self.dtype)[:, tf.newaxis]
    else:
      one_hot = lambda numbers: tf.one_hot(numbers, self._num_classes, dtype=self.dtype)
    weights = _checked_weights(labels, self._num_classes, sample_weight, self.dtype)
    super().update_state(one_hot(labels), one_hot(classes), weights)

  def get_config(self):
    """See base class."""
    return {'num_classes': self._num_classes, 'average': self.average, 'name': self.name}

  def _averaged(self, positives: tf.Variable) -> tf.Tensor:
    """True positives divided by `positives`; 0 if these are 0."""
    values = tf.math.divide_no_nan(self.true_positives, positives)
    if self.average == 'weighted':
      return tf.math.divide_no_nan(
        tf.reduce_sum(values * self.intermediate_weights), tf.reduce_sum(self.intermediate_weights)
      )
    return values if self.average is None else tf.reduce_mean(values)


class F1(_PerClass):
  """The harmonic mean of precision and recall of each class; 0 if a class has no true positives.

  The result is a float32 scalar, averaged over the classes; float32 [num_classes] if `average` is None.
  """


class Precision(_PerClass):
  """The fraction of the examples predicted as a class that belong to it; 0 without such examples."""

  def result(self):
    """A float32 scalar, averaged over the classes; float32 [num_classes] if `average` is None."""
    return self._averaged(self.true_positives + self.false_positives)


class Recall(_PerClass):
  """The fraction of the examples of a class that are predicted as it; 0 without such examples."""

  def result(self):
    """A float32 scalar, averaged over the classes; float32 [num_classes] if `average` is None."""
    return self._averaged(self.true_positives + self.false_negatives)


class Auc(tf_keras.metrics.AUC):
  """The area under the ROC curve, of each class against the others, averaged over the classes: see base class.

  It is a sum over thresholds of the probability, not over all pairs of examples: how far it is from the exact area
  depends on `num_thresholds` and on the distribution of the probabilities.
  """

  def __init__(self, num_classes: int, name: str = 'auc', num_thresholds: int = 500):
    """Makes the counters.

    Args:
      num_classes: at least 2, or 1 for a single logit.
      name: of the metric.
      num_thresholds: the number of thresholds.
    """
    self._num_classes = num_classes
    multi_label = num_classes > 2
    super().__init__(
      num_thresholds=num_thresholds, name=name, multi_label=multi_label, num_labels=num_classes if multi_label else None
    )

  def update_state(self, y_true, y_pred, sample_weight=None):
    """Counts: see `_PerClass`."""
    labels = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
    weights = _checked_weights(labels, self._num_classes, sample_weight, self.dtype)
    logits = tf.cast(y_pred, self.dtype)
    if self._num_classes == 1:
      probabilities = tf.sigmoid(tf.reshape(logits, [-1]))
    else:
      probabilities = tf.nn.softmax(logits)
    if self._num_classes == 2:
      probabilities = probabilities[:, 1]
    elif self._num_classes > 2:
      labels = tf.one_hot(labels, self._num_classes)
    super().update_state(labels, probabilities, weights)

  def get_config(self):
    """See base class."""
    return {'num_classes': self._num_classes, 'name': self.name, 'num_thresholds': self.num_thresholds}


class ConfusionMatrix(tf_keras.metrics.Metric):
  """Counts of examples: row i is for class i, column j for predictions of class j.

  TensorBoard shows an evaluation's matrix as an image, if its name is 'confusion_matrix'.
  """

  def __init__(self, num_classes: int, name: str = 'confusion_matrix'):
    """Makes the counters.

    Args:
      num_classes: at least 2, or 1 for a single logit, which distinguishes two classes.
      name: of the metric.
    """
    super().__init__(name=name)
    self._num_classes = num_classes
    self._size = max(2, num_classes)
    self.counts = self.add_weight('counts', shape=[self._size, self._size], initializer='zeros')

  def update_state(self, y_true, y_pred, sample_weight=None):
    """Counts: see `_PerClass`."""
    labels, classes = _class_numbers(y_true, y_pred, self._num_classes)
    weights = _checked_weights(labels, self._num_classes, sample_weight, self.dtype)
    labels = tf.clip_by_value(labels, 0, self._size - 1)
    self.counts.assign_add(tf.math.confusion_matrix(labels, classes, self._size, weights, self.dtype))

  def reset_state(self):
    """Counts from zero again."""
    self.counts.assign(tf.zeros_like(self.counts))

  def result(self):
    """The counts: float32 of shape [classes, classes]."""
    return tf.convert_to_tensor(self.counts)

  def get_config(self):
    """See base class."""
    return {'num_classes': self._num_classes, 'name': self.name}


class _Accuracy(tf_keras.metrics.Mean):
  """The share of the examples whose class is predicted: see `_PerClass`."""

  def __init__(self, num_classes: int, average: str | None, name: str):
    """Makes the counters; `average` does not matter."""
    del average
    super().__init__(name)
    self._num_classes = num_classes

  def update_state(self, y_true, y_pred, sample_weight=None):
    """Counts: see `_PerClass`."""
    labels, classes = _class_numbers(y_true, y_pred, self._num_classes)
    weights = _checked_weights(labels, self._num_classes, sample_weight, self.dtype)
    super().update_state(tf.cast(labels == classes, self.dtype), weights)

  def get_config(self):
    """See base class."""
    return {'num_classes': self._num_classes, 'average': None, 'name': self.name}


_MAKERS: dict[str, Callable[[int, str | None, str], tf_keras.metrics.Metric]] = {
  'accuracy': _Accuracy,
  'auc': lambda num_classes, average, name: Auc(num_classes, name),
  'confusion_matrix': lambda num_classes, average, name: ConfusionMatrix(num_classes, name),
  'f1': F1,
  'precision': Precision,
  'recall': Recall,
}
_METRICS = registry.Registry('metric', _MAKERS)


def build(names: Sequence[str], num_classes: int, average: str | None = 'macro') -> list[tf_keras.metrics.Metric]:
  """Makes the metrics of a classifier.

  Args:
    names: any of 'accuracy', 'auc', 'confusion_matrix', 'f1', 'precision' and 'recall'.
    num_classes: of the logits. 1: a single logit, of class 1 of two.
    average: how precision, recall and F1 average over the classes: 'macro', 'micro', 'weighted', or None for a value of
      each class. With two classes or more, 'micro' is the accuracy. With a single logit, they describe class 1.

  Returns:
    Metrics with these names.

  Raises:
    UserError: there is no metric of that name.
  """
  return [_METRICS.find(name, 'metrics')(num_classes, average, name) for name in names]


def updates(
  names: Sequence[str], labels: tf.Tensor, logits: tf.Tensor, sample_weight: tf.Tensor | None = None
) -> Mapping[str, tuple[Any, ...]]:
  """Returns the logs of `Task.forward` that update every metric of `build`.

  Args:
    names: as for `build`.
    labels: class numbers, an integer tensor of shape [b].
    logits: [b, num_classes], or [b] or [b, 1] for a single logit.
    sample_weight: [b], the weight of each example, 0 to ignore it; None: 1. A label outside the classes makes metrics
      NaN.

  Returns:
    name -> the arguments of its `update_state`.
  """
  return dict.fromkeys(names, (labels, logits) if sample_weight is None else (labels, logits, sample_weight))


def _class_numbers(labels: tf.Tensor, logits: tf.Tensor, num_classes: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Labels and predictions as int32 tensors of shape [b]."""
  labels = tf.cast(tf.reshape(labels, [-1]), tf.int32)
  if num_classes == 1:
    return labels, tf.cast(tf.reshape(logits, [-1]) > 0, tf.int32)
  return labels, tf.argmax(logits, -1, output_type=tf.int32)


def _checked_weights(labels: tf.Tensor, num_classes: int, weights: tf.Tensor | None, dtype: str) -> tf.Tensor:
  """The weights of examples, of shape [b]: NaN for labels that are no class, unless their weight is 0."""
  weights = tf.ones_like(labels, dtype) if weights is None else tf.cast(tf.reshape(weights, [-1]), dtype)
  is_class = (labels >= 0) & (labels < max(2, num_classes))
  return tf.where(is_class | (weights == 0), weights, tf.constant(float('nan'), dtype))
