"""Rows of stacked weights in a loop that TensorFlow differentiates: each row's gradient is written once.

rows = weight_rows.listed(stacks)
... in the loop: values, rows = weight_rows.read(rows, i, stacks)
y = weight_rows.closed(y, rows, stacks)          # behind the loop

TensorFlow's own gradient of an array that a loop reads starts with zeros, and adds an array for every read. Here the
array of gradients passes backwards through the reads, each of which sets its row: the gradient of a stack costs one
copy more than those of separate weights. The rows share the memory of their stack.
"""

from collections.abc import Sequence

import tensorflow as tf


def listed(stacks: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """A TensorList (variant scalar) of the rows of each stack [rows, ...] of known shape."""
  return [tf.raw_ops.TensorListFromTensor(tensor=stack, element_shape=_row_shape(stack)) for stack in stacks]


def read(
  lists: Sequence[tf.Tensor], i: tf.Tensor, stacks: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
  """(row i of each stack, the lists for the next read), for lists of `listed`; each row is read once."""
  read_lists = [_read(rows, i, stack) for rows, stack in zip(lists, stacks)]
  return [row for row, _ in read_lists], [rows for _, rows in read_lists]


def closed(y: tf.Tensor, lists: Sequence[tf.Tensor], stacks: Sequence[tf.Tensor]) -> tf.Tensor:
  """y, whose gradient begins the gradients of the lists, which the last read has returned: rows without values."""

  @tf.custom_gradient
  def joined(y, *lists):
    del lists

    def gradient(dy):
      return dy, *(
        tf.raw_ops.TensorListReserve(
          element_shape=_row_shape(stack), num_elements=stack.shape[0], element_dtype=stack.dtype
        )
        for stack in stacks
      )

    return tf.identity(y), gradient

  return joined(y, *lists)


def _read(rows, i, stack):
  @tf.custom_gradient
  def once(rows):
    row = tf.raw_ops.TensorListGetItem(
      input_handle=rows, index=i, element_shape=_row_shape(stack), element_dtype=stack.dtype
    )
    row.set_shape(stack.shape[1:])

    def gradient(of_row, of_rows):
      return tf.raw_ops.TensorListSetItem(input_handle=of_rows, index=i, item=of_row)

    return (row, tf.identity(rows)), gradient

  return once(rows)


def _row_shape(stack):
  return tf.constant(stack.shape[1:].as_list(), tf.int32)
