"""Values that XLA may compute only after others.

XLA merges equal computations into one, and its scheduler for CPUs computes as early as possible, so that cores
have work; it heeds no control dependency. Values that are to take memory late, or again, must depend on earlier ones.
"""

import tensorflow as tf


def after(value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
  """`value`, but only after `other`.

  The added value is whether an element of `other` is greater than infinity: 0 for any element, also for one that is not
  finite, and nothing that a compiler finds out before it has ordered the operations.

  Args:
    value: a number type, of any shape.
    other: floating, of any shape; empty too, as on a replica without examples. No gradient flows into it.
  """
  element = tf.reshape(tf.stop_gradient(other), [-1])[:1]
  return value + tf.cast(tf.reduce_any(element > float('inf')), value.dtype)
