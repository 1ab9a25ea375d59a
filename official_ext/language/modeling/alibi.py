"""Attention with linear biases (ALiBi): Press et al. 2022, https://arxiv.org/abs/2108.12409.

Each head adds a slope times the position of a key to the scores. Within a row of scores that differs from the paper's
-slope * distance by a constant, which the softmax removes. Slopes, positions and products are rounded to bfloat16, as
in transformers' Falcon: the rounding is a part of the model, since a product of 1,000 is rounded to a multiple of 4.
"""

import math

import numpy as np
import tensorflow as tf


def biases(num_heads: int, positions: tf.Tensor) -> tf.Tensor:
  """The biases of keys.

  Args:
    num_heads: heads of queries.
    positions: int32 [b, s], of keys, from 0 on in each document.

  Returns:
    float32 [b, num_heads, s].
  """
  rounded = _as_bfloat16(tf.cast(positions, tf.float32))[:, tf.newaxis]
  return _as_bfloat16(_as_bfloat16(tf.constant(slopes(num_heads)))[:, tf.newaxis] * rounded)


def slopes(num_heads: int) -> np.ndarray:
  """The slope of each head, float32 [num_heads]: 2^(-8 k / n) for n heads, a power of 2.

  For another number: those of the next smaller power of 2, and every other one of the next larger.
  """
  smaller = 2 ** int(math.log2(num_heads))
  found = [2 ** (-8 * k / smaller) for k in range(1, smaller + 1)]
  found += [2 ** (-8 * k / (2 * smaller)) for k in range(1, 2 * (num_heads - smaller), 2)]
  return np.array(found, np.float32)


def _as_bfloat16(x):
  """float32 from 0 up, rounded to the nearest bfloat16, ties to even. XLA may leave out casts to bfloat16 and back."""
  bits = tf.bitcast(x, tf.int32)
  odd = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 16), 1)
  return tf.bitcast(tf.bitwise.bitwise_and(bits + 0x7FFF + odd, -0x10000), tf.float32)
