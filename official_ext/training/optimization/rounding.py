"""Rounds float32 to bfloat16, at random or to the nearest."""

import tensorflow as tf

ROUNDINGS = ('stochastic', 'nearest')


def random_bits(shape: tf.TensorShape, index: int, iterations: tf.Tensor) -> tf.Tensor:
  """Draws 32 random bits for each number of a variable, as a function of the variable's index and of the update.

  Args:
    shape: of the variable.
    index: of the variable in the optimizer's list.
    iterations: number of updates so far.

  Returns:
    uint32 of `shape`. The same on every replica, in a resumed run, and inside and outside of XLA.
  """
  seed = tf.stack([tf.constant(index, tf.int64), tf.cast(iterations, tf.int64)])
  return tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.uint32, alg='philox')


def to_bfloat16(values: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
  """Rounds up or down at random, so that the mean is the number itself.

  A bfloat16 is a float32 without its last 16 bits. If 16 random bits are added to these, the sum carries into the upper
  bits with a probability equal to the fraction of the way to the upper neighbour.

  Args:
    values: float32, finite.
    bits: uint32 of the same shape, below 2^16.
  """
  upper = tf.bitwise.right_shift(tf.bitcast(values, tf.uint32) + bits, tf.constant(16, tf.uint32))
  return tf.bitcast(tf.cast(upper, tf.uint16), tf.bfloat16)


def halves(bits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """uint32 -> two independent uint32 below 2^16."""
  sixteen = tf.constant(16, tf.uint32)
  return tf.bitwise.bitwise_and(bits, tf.constant(0xFFFF, tf.uint32)), tf.bitwise.right_shift(bits, sixteen)
