"""Randomness as functions of a seed and a number: draws in a graph or an XLA program, and the order of examples.

Draws: TensorFlow's stateless ops derive streams and floats differently in XLA and in TensorFlow's kernels, or have no
kernel in XLA. The bits of Philox, for the same key and counter, are the same in both.

Order: positions count the examples that a run consumes: 0, 1, 2, ... The example at `position` is number
`permute(position % n)` of the source, by a permutation for every epoch `position // n`. There is no state: every
position can be computed at any time, at the same cost.

The permutation is a keyed Feistel network over the smallest rectangle that holds n numbers (Black and Rogaway,
"Ciphers with arbitrary finite domains", 2002), with SplitMix64 (Steele, Lea, Flood, 2014) as its round function. It is
written in 64-bit integer arithmetic, so that the order of a run does not change with TensorFlow's version.
"""

import math

import numpy as np
import tensorflow as tf

_GOLDEN_RATIO_32 = int(np.uint64(0x9E3779B97F4A7C15).astype(np.int64))  # Odd: multiplying by it loses nothing.


def random_bits(shape: object, seed: tf.Tensor, dtype: tf.DType = tf.uint32) -> tf.Tensor:
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


def numbered_seed(seed: tf.Tensor, number: object) -> tf.Tensor:
  """The seed of one of several draws that share a seed: of an iteration of a loop, of a layer.

  Args:
    seed: int64 tensor of shape [2].
    number: which one, from 0 on: an integer, or a scalar tensor.

  Returns:
    An int64 tensor of shape [2].
  """
  return tf.stack([(seed[0] + tf.cast(number, tf.int64) + 1) * tf.constant(_GOLDEN_RATIO_32, tf.int64), seed[1]])


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
  drawn = random_bits(tf.stack([shape[0], tf.cast(num_samples, tf.int32), shape[1]]), seed)
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
  return tf.gather(value, tf.argsort(random_bits(tf.shape(value)[:1], seed, tf.int32), stable=True))


ORDER_VERSION = 1  # Raise this when the order of a run changes: checkpoints note it.
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_NUM_ROUNDS = 4


def _uint64(value: int) -> tf.Tensor:
  """A uint64 constant."""
  return tf.constant(np.uint64(value & _MASK))


def _mix(bits: tf.Tensor) -> tf.Tensor:
  """SplitMix64's finaliser, a bijection of uint64 in which every output bit depends on every input bit."""
  shift = tf.bitwise.right_shift
  bits = tf.bitwise.bitwise_xor(bits, shift(bits, _uint64(30))) * _uint64(_MULTIPLIER_1)
  bits = tf.bitwise.bitwise_xor(bits, shift(bits, _uint64(27))) * _uint64(_MULTIPLIER_2)
  return tf.bitwise.bitwise_xor(bits, shift(bits, _uint64(31)))


def _mix_int(bits: int) -> int:
  """`_mix` of a Python int."""
  bits &= _MASK
  bits = (bits ^ (bits >> 30)) * _MULTIPLIER_1 & _MASK
  bits = (bits ^ (bits >> 27)) * _MULTIPLIER_2 & _MASK
  return bits ^ (bits >> 31)


def stream_key(seed: int, stream: int) -> int:
  """Derives one of several independent keys from a seed.

  Args:
    seed: any integer.
    stream: a small integer that identifies the use of the key.

  Returns:
    An integer in [0, 2**64).
  """
  return _mix_int(_mix_int(seed) + (stream + 1) * _GOLDEN)


_ORDER_STREAM, _TRANSFORM_STREAM = 0, 1


def _rectangle(num_examples: int) -> tuple[int, int]:
  """The sides (rows, columns), each below 2**32, of a near-square with `num_examples` cells and few more."""
  rows = math.isqrt(num_examples - 1) + 1
  return rows, -(-num_examples // rows)


def _turn(side: tf.Tensor, other: tf.Tensor, round_keys: tf.Tensor, size: int) -> tf.Tensor:
  """Adds to `side` a pseudo-random number that is a function of (`other`, key), modulo `size`."""
  shift_32 = _uint64(32)
  word = (round_keys + other) * _uint64(_MULTIPLIER_1)
  word = tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, shift_32)) * _uint64(_MULTIPLIER_2)
  # The upper half, which is mixed best, scaled from [0, 2**32) to [0, size).
  number = tf.bitwise.right_shift(tf.bitwise.right_shift(word, shift_32) * _uint64(size), shift_32)
  total = side + number
  return tf.where(total < _uint64(size), total, total - _uint64(size))


def _encrypt(cells: tf.Tensor, epoch_keys: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
  """A keyed bijection of [0, rows * columns), from uint64 tensors to uint64 tensors of the same shape."""
  left, right = cells // _uint64(columns), cells % _uint64(columns)
  for round_number in range(_NUM_ROUNDS):
    left = _turn(left, right, epoch_keys + _uint64(2 * round_number * _GOLDEN), rows)
    right = _turn(right, left, epoch_keys + _uint64((2 * round_number + 1) * _GOLDEN), columns)
  return left * _uint64(columns) + right


@tf.autograph.experimental.do_not_convert
def shuffled_indices(positions: tf.Tensor, num_examples: int, seed: int) -> tf.Tensor:
  """The source's indices at these positions of a shuffled run.

  Args:
    positions: int64 tensor of any shape, each >= 0.
    num_examples: n, the number of examples in the source, >= 1.
    seed: any integer.

  Returns:
    An int64 tensor of the shape of `positions`, in [0, n). The positions from e * n to (e + 1) * n - 1 get every index
    exactly once, in an order that depends on (seed, e, n) alone.
  """
  rows, columns = _rectangle(num_examples)
  flat = tf.reshape(positions, [-1])
  epochs = tf.cast(flat // num_examples, tf.uint64)
  epoch_keys = _mix(_uint64(stream_key(seed, _ORDER_STREAM)) + epochs * _uint64(_GOLDEN))
  indices = _encrypt(tf.cast(flat % num_examples, tf.uint64), epoch_keys, rows, columns)
  if rows * columns > num_examples:
    indices = _walk(indices, epoch_keys, num_examples, rows, columns)
  return tf.reshape(tf.cast(indices, tf.int64), tf.shape(positions))


def _walk(indices: tf.Tensor, epoch_keys: tf.Tensor, limit: int, rows: int, columns: int) -> tf.Tensor:
  """Cycle walking: maps cells outside of [0, limit) again until they are inside.

  The others are computed too and left out, so that all shapes are fixed, as XLA needs.
  """
  is_outside = lambda indices: indices >= _uint64(limit)

  def again(indices):
    return [tf.where(is_outside(indices), _encrypt(indices, epoch_keys, rows, columns), indices)]

  return tf.while_loop(lambda indices: tf.reduce_any(is_outside(indices)), again, [indices])[0]


def sequential_indices(positions: tf.Tensor, num_examples: int) -> tf.Tensor:
  """The source's indices at these positions of a run in the source's order: positions modulo `num_examples`."""
  return positions % num_examples


@tf.autograph.experimental.do_not_convert
def transform_seeds(positions: tf.Tensor, seed: int) -> tf.Tensor:
  """Seeds for TensorFlow's stateless random ops, one for each position.

  Args:
    positions: int64 tensor of shape [...]: positions in the run, so that every epoch draws other numbers.
    seed: any integer.

  Returns:
    An int64 tensor of shape [..., 2].
  """
  key = np.uint64(stream_key(seed, _TRANSFORM_STREAM)).astype(np.int64)
  return tf.stack([tf.fill(tf.shape(positions), tf.constant(key, tf.int64)), positions], axis=-1)
