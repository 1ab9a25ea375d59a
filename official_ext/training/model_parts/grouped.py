"""Products of rows with the matrices of their groups, such as tokens with the matrices of their experts.

Shapes are static, so that an XLA program may have them. Rows are sorted by group into blocks of one group each, whose
rest is padding (Gale et al., 2022, MegaBlocks, https://arxiv.org/abs/2211.15841). The product is a batch of matrix
products then. Gradients are sums in a fixed order.

    blocks = blocks_of(numbers, num_experts, rows)
    y = products(dispatched(x, blocks), weights, blocks.groups)
    by_token = collected(y, blocks)
"""

from typing import NamedTuple

import tensorflow as tf

from official_ext.training.model_parts import clusters

_LEAST_ROWS = 16  # Of a block: a smaller one reads its weights for too few tokens.
_PADDING = 0.25  # At most, relative to the tokens' rows.


def rows_of_block(num_tokens: int, k: int, num_groups: int) -> int:
  """The rows of a block: the greatest power of two with which padding adds at most a quarter.

  Returns:
    0 if that is below 16, or if the products of all rows with all groups are no more work.

  Example:

    >>> rows_of_block(8192, 2, 8), rows_of_block(8192, 8, 128), rows_of_block(64, 2, 8)
    (512, 128, 0)
  """
  most = int(_PADDING * num_tokens * k / num_groups)
  return 1 << (most.bit_length() - 1) if most >= _LEAST_ROWS and (1 + _PADDING) * k < num_groups else 0


class Blocks(NamedTuple):
  """Rows of tokens, sorted by group; each block of rows has one group, and the last one of a group may be padded.

  Attributes:
    groups: int32 [blocks], of each block.
    slots: int32 [blocks * rows], the number token * k + i of each row's token and group; 0 for padding.
    is_padding: bool [blocks * rows, 1].
    positions: int32 [tokens, k], the row of each token's i-th group.
  """

  groups: tf.Tensor
  slots: tf.Tensor
  is_padding: tf.Tensor
  positions: tf.Tensor


def blocks_of(numbers: tf.Tensor, num_groups: int, rows: int) -> Blocks:
  """Sorts tokens by group.

  Args:
    numbers: int32 [tokens, k] of static shape: the groups of each token, such as its experts.
    num_groups: how many there are.
    rows: of a block.

  Example:

    >>> blocks = blocks_of(tf.constant([[1], [0], [1]]), num_groups=2, rows=2)
    >>> blocks.groups.numpy().tolist(), blocks.slots.numpy().tolist(), blocks.positions.numpy().tolist()
    ([0, 1], [1, 0, 0, 2], [[2], [0], [3]])
  """
  num_slots = numbers.shape[0] * numbers.shape[1]
  num_blocks = (num_slots + num_groups * (rows - 1)) // rows
  of_slots = tf.reshape(numbers, [-1])
  # Keys differ, so that tokens of one group keep their order.
  order = tf.sort(tf.cast(of_slots, tf.int64) * num_slots + tf.range(num_slots, dtype=tf.int64)) % num_slots
  order = tf.cast(order, tf.int32)
  counts = tf.reduce_sum(tf.one_hot(of_slots, num_groups, dtype=tf.int32), axis=0)
  padded = (counts + rows - 1) // rows * rows
  starts, padded_ends = tf.cumsum(counts, exclusive=True), tf.cumsum(padded)
  padded_starts = padded_ends - padded
  # Rows after the last group are padding of it.
  first_rows = rows * tf.range(num_blocks)
  groups = tf.reduce_sum(tf.cast(first_rows[:, tf.newaxis] >= padded_ends, tf.int32), axis=1)
  groups = tf.minimum(groups, num_groups - 1)
  of_rows = tf.repeat(groups, rows, axis=0)
  offsets = tf.range(num_blocks * rows) - tf.gather(padded_starts, of_rows)
  is_padding = offsets >= tf.gather(counts, of_rows)
  sorted_slots = tf.minimum(tf.gather(starts, of_rows) + offsets, num_slots - 1)
  slots = tf.where(is_padding, 0, tf.gather(order, sorted_slots))
  by_order = tf.range(num_slots) + tf.gather(padded_starts - starts, tf.gather(of_slots, order))
  positions = tf.scatter_nd(order[:, tf.newaxis], by_order, [num_slots])
  return Blocks(groups, slots, is_padding[:, tf.newaxis], tf.reshape(positions, numbers.shape))


def dispatched(x: tf.Tensor, blocks: Blocks) -> tf.Tensor:
  """The rows of tokens [tokens, size] in blocks: [blocks, rows, size], 0 for padding."""
  k, size = blocks.positions.shape[1], x.shape[1]

  @tf.custom_gradient
  def dispatch(x):
    rows = tf.where(blocks.is_padding, tf.zeros([], x.dtype), tf.gather(x, blocks.slots // k))

    def gradient(dy):  # A sum in a fixed order. That of TensorFlow's gather adds in any.
      return tf.reduce_sum(tf.gather(tf.reshape(dy, [-1, size]), blocks.positions), axis=1)

    return tf.reshape(rows, [blocks.groups.shape[0], -1, size]), gradient

  return dispatch(x)


def collected(y: tf.Tensor, blocks: Blocks) -> tf.Tensor:
  """The rows of blocks [blocks, rows, size] by token: [tokens, k, size]."""
  size = y.shape[2]

  @tf.custom_gradient
  def collect(y):
    def gradient(dy):
      rows = tf.gather(tf.reshape(dy, [-1, size]), blocks.slots)
      return tf.reshape(tf.where(blocks.is_padding, tf.zeros([], dy.dtype), rows), y.shape)

    return tf.gather(tf.reshape(y, [-1, size]), blocks.positions), gradient

  return collect(y)


def products(x: tf.Tensor, weight: tf.Tensor, groups: tf.Tensor) -> tf.Tensor:
  """The rows of each block times the matrix of its group.

  The matrices are gathered for the gradient again: they are not kept with the activations.

  Args:
    x: [blocks, rows, in].
    weight: [groups, in, out].
    groups: int32 [blocks].

  Returns:
    [blocks, rows, out].
  """
  num_groups = weight.shape[0]

  @tf.custom_gradient
  def multiply(x, weight):
    def gradient(dy):
      again = tf.gather(weight, clusters.after(groups, dy))
      of_blocks = tf.reshape(tf.matmul(x, dy, transpose_a=True), [groups.shape[0], -1])
      hits = tf.one_hot(groups, num_groups, axis=0, dtype=dy.dtype)
      return tf.matmul(dy, again, transpose_b=True), tf.reshape(tf.matmul(hits, of_blocks), weight.shape)

    return tf.matmul(x, tf.gather(weight, groups)), gradient

  return multiply(x, weight)
