"""Weights of classes in a loss, like `class_weight` of Keras' `Model.fit`.

    weights = class_weights.of_examples(labels, self.config.class_weight if training else ())
    loss = tf.reduce_mean(weights * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

As in Keras, the sum is divided by the number of examples, not by the sum of their weights: a batch with many examples
of a heavy class has a greater loss and a greater gradient. So the loss is the same under gradient accumulation and on
several replicas. Like Keras, the lines above weight only the training loss.

Example:

  >>> labels = np.array([0, 0, 0, 1])
  >>> weights = ext.class_weights.balanced(labels, num_classes=2)
  >>> weights
  (0.6666666666666666, 2.0)
  >>> ext.class_weights.of_examples(labels, weights).numpy().round(2)
  array([0.67, 0.67, 0.67, 2.  ], dtype=float32)
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf


def of_examples(labels: tf.Tensor | np.ndarray, class_weight: Sequence[float] | Mapping[int, float]) -> tf.Tensor:
  """The weight of each example, which is the weight of its class.

  Args:
    labels: class numbers, an integer tensor [batch] or [batch, 1]; or one-hot or soft labels, a floating-point tensor
      [batch, classes], of which the greatest counts.
    class_weight: the weights by class number: a sequence, or a dictionary with the keys 0 to n - 1, as in Keras. Empty:
      all weights are 1.

  Returns:
    float32 [batch]. A label without a weight gives NaN, so that the update is skipped and reported.

  Raises:
    ValueError: a dictionary has other keys; or integers have the shape of one-hot labels, or of the class numbers of
      sequences.
  """
  labels = tf.convert_to_tensor(labels)
  if isinstance(class_weight, Mapping):
    if sorted(class_weight) != list(range(len(class_weight))):
      raise ValueError(f'class_weight: expected the keys 0 to {len(class_weight) - 1}, got {sorted(class_weight)}')
    class_weight = [class_weight[number] for number in range(len(class_weight))]
  if labels.shape.rank is not None and labels.shape.rank > 1 and labels.shape[-1] != 1:
    if not labels.dtype.is_floating:
      raise ValueError(
        f'class_weight: integers of shape {labels.shape.as_list()} may be class numbers or one-hot labels; pass class '
        'numbers as tf.reshape(labels, [-1]), one-hot labels as floating-point numbers'
      )
    numbers = tf.argmax(labels, axis=-1, output_type=tf.int32)
  else:
    numbers = tf.cast(tf.reshape(labels, [-1]), tf.int32)
  if not len(class_weight):
    return tf.ones_like(numbers, tf.float32)
  table = tf.constant(list(class_weight), tf.float32)
  is_known = (numbers >= 0) & (numbers < len(class_weight))
  weights = tf.gather(table, tf.where(is_known, numbers, 0))
  return tf.where(is_known, weights, tf.fill(tf.shape(weights), float('nan')))


def balanced(labels: tf.Tensor | np.ndarray, num_classes: int) -> tuple[float, ...]:
  """Weights that make every class count the same: n / (num_classes * n_c), like 'balanced' in scikit-learn.

  Args:
    labels: the class numbers of all examples, integers [n].
    num_classes: the number of classes.

  Raises:
    ValueError: a class has no example.
  """
  counts = np.bincount(np.asarray(labels).reshape(-1), minlength=num_classes)
  if len(counts) != num_classes or not counts.all():
    raise ValueError(f'class_weight: expected examples of the classes 0 to {num_classes - 1}, got counts {counts}')
  return tuple(float(weight) for weight in counts.sum() / (num_classes * counts))
