"""Random numbers as functions of a seed, the same in a graph and in an XLA program.

TensorFlow's stateless ops derive streams and floats differently in XLA and in TensorFlow's kernels, or have no kernel
in XLA; the bits of Philox, for the same key and counter, are the same in both.
"""

import numpy as np
import tensorflow as tf

_GOLDEN_RATIO = int(np.uint64(0x9E3779B97F4A7C15).astype(np.int64))  # Odd: multiplying by it loses nothing.


def bits(shape: object, seed: tf.Tensor, dtype: tf.DType = tf.uint32) -> tf.Tensor:
  """Random bits.

  Args:
    shape: shape of the result.
    seed: int64 tensor of shape [2]: a stream, and a position in it.
    dtype: uint32 or int32.
  """
  key = tf.bitcast(seed[:1], tf.uint64)
  counter = tf.bitcast(tf.stack([tf.zeros_like(seed[1]), seed[1]]), tf.uint64)
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=shape, key=key, counter=counter, alg=tf.random.Algorithm.PHILOX.value, dtype=dtype
  )


def numbered(seed: tf.Tensor, number: object) -> tf.Tensor:
  """The seed of one of several draws that share a seed: of an iteration of a loop, of a layer.

  Args:
    seed: int64 tensor of shape [2].
    number: which one, from 0 on: an integer, or a scalar tensor.

  Returns:
    An int64 tensor of shape [2].
  """
  return tf.stack([(seed[0] + tf.cast(number, tf.int64) + 1) * tf.constant(_GOLDEN_RATIO, tf.int64), seed[1]])


def categorical(logits: tf.Tensor, num_samples: object, seed: tf.Tensor, dtype: tf.DType = tf.int64) -> tf.Tensor:
  """Class numbers, drawn with the probabilities softmax(logits): the Gumbel-max trick (Maddison et al., 2014).

  Args:
    logits: floating, of shape [batch, classes].
    num_samples: int scalar. [batch, num_samples, classes] numbers are drawn.
    seed: int64 tensor of shape [2].
    dtype: int32 or int64.

  Returns:
    A tensor of shape [batch, num_samples].
  """
  logits = tf.cast(logits, tf.float64 if logits.dtype == tf.float64 else tf.float32)
  shape = tf.shape(logits)
  drawn = bits(tf.stack([shape[0], tf.cast(num_samples, tf.int32), shape[1]]), seed)
  # The largest logit minus log(time) belongs to the first of exponential waiting times, so the small ones need the
  # precision: all 32 bits, never 0.
  share = tf.minimum((tf.cast(drawn, tf.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
  times = tf.cast(-tf.math.log1p(-share), logits.dtype)
  return tf.argmax(logits[:, tf.newaxis] - tf.math.log(times), axis=-1, output_type=dtype)


def shuffled(value: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """`value` with its rows in another order.

  Args:
    value: a tensor of rank 1 or more.
    seed: int64 tensor of shape [2].
  """
  return tf.gather(value, tf.argsort(bits(tf.shape(value)[:1], seed, tf.int32), stable=True))
