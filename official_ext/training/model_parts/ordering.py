"""Values that XLA may compute only after others.

XLA merges equal computations into one, and its scheduler for CPUs computes as early as possible, so that cores
have work; it heeds no control dependency. Values that are to take memory late, or again, must depend on earlier ones.
"""

from collections.abc import Sequence

import tensorflow as tf


def after(value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
  """`value`, but only after `other`: see `all_after`."""
  return all_after([value], other)[0]


def all_after(values: Sequence[tf.Tensor], other: tf.Tensor) -> list[tf.Tensor]:
  """`values`, but only after `other`.

  The added value is whether an element of `other` is greater than infinity: 0 for any element, also for one that is not
  finite, and nothing that a compiler finds out before it has ordered the operations.

  Args:
    values: of number types, of any shapes.
    other: floating, of any shape; empty too, as on a replica without examples. No gradient flows into it.
  """
  element = tf.reshape(tf.stop_gradient(other), [-1])[:1]
  never = tf.reduce_any(element > float('inf'))
  zeros = {dtype: tf.cast(never, dtype) for dtype in dict.fromkeys(value.dtype for value in values)}
  return [value + zeros[value.dtype] for value in values]
