"""Randomness as a function of (seed, step, replica).

A draw that takes its seed from here is the same whenever the same step runs again: after a restart, in another step
shape, on another machine. Nothing about it is stored.
"""

import contextlib
import dataclasses
import functools
import hashlib
import math
import threading
from typing import Any, Dict, Iterator, List, Optional

import tensorflow as tf, tf_keras


@dataclasses.dataclass
class StepKey:
  """What identifies one forward pass.

  Attributes:
    seed: the run's seed (`runtime.seed`), a Python int.
    step: int64 scalar tensor, the number of updates done before this step.
    replica: int scalar (tensor or Python int), the replica's index in the global batch.
    num_replicas: Python int, replicas in sync.
    micro_step: Python int, which of the micro-batches of an accumulated step.
    num_micro_steps: Python int.
    draws: how many seeds were handed out so far, by the name of what drew them.
  """

  seed: int
  step: Any
  replica: Any = 0
  num_replicas: int = 1
  micro_step: int = 0
  num_micro_steps: int = 1
  draws: Dict[str, int] = dataclasses.field(default_factory=dict)

  def count(self, name: str) -> int:
    """The number of this draw by `name`, from 0 on."""
    self.draws[name] = self.draws.get(name, -1) + 1
    return self.draws[name]


_LOCAL = threading.local()  # Replicas are traced in threads of their own.


def current_key() -> Optional[StepKey]:
  """The key of the step being traced in this thread, or None outside of one."""
  return getattr(_LOCAL, 'key', None)


@contextlib.contextmanager
def step_key(key: StepKey) -> Iterator[StepKey]:
  """Makes `key` the current one in this thread."""
  before = current_key()
  _LOCAL.key = key
  try:
    yield key
  finally:
    _LOCAL.key = before


def make_seed(salt: Optional[str] = None) -> tf.Tensor:
  """A seed for one of TensorFlow's stateless random ops.

  Args:
    salt: what tells this draw from the step's others. None numbers the draws in the order of their tracing.

  Returns:
    An int64 tensor of shape [2]: [hash(seed, salt), (step * micro-batches + micro-batch) * replicas + replica].

  Raises:
    RuntimeError: outside of a training step.
  """
  key = current_key()
  if key is None:
    raise RuntimeError('A seed of the step was asked for outside of a training step.')
  if salt is None:
    salt = f'draw {key.count("")}'
  digest = hashlib.sha256(f'{key.seed}/{salt}'.encode()).digest()
  stream = int.from_bytes(digest[:8], 'little', signed=True)
  pass_number = tf.cast(key.step, tf.int64) * key.num_micro_steps + key.micro_step
  position = pass_number * key.num_replicas + tf.cast(key.replica, tf.int64)
  return tf.stack([tf.constant(stream, tf.int64), position])


def uniform(shape: Any, seed: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
  """Uniform numbers in [0, 1), the same in a graph and in an XLA program.

  `tf.random.stateless_uniform` derives its stream and its floats in XLA otherwise than in TensorFlow's kernels; the
  bits of Philox, for one key and counter, are the same.

  Args:
    shape: shape of the result.
    seed: int64 tensor of shape [2], see `make_seed`.
    dtype: a floating type.

  Returns:
    A tensor of `shape` and `dtype`: multiples of 2^-24, or of what the type can hold.
  """
  key = tf.bitcast(seed[:1], tf.uint64)
  counter = tf.bitcast(tf.stack([tf.zeros_like(seed[1]), seed[1]]), tf.uint64)
  bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=shape, key=key, counter=counter, alg=tf.random.Algorithm.PHILOX.value, dtype=tf.uint32)
  # Half precision keeps the leading bits: rounding could give 1.
  num_bits = {tf.bfloat16: 8, tf.float16: 11}.get(dtype, 24)
  return tf.cast(tf.bitwise.right_shift(bits, 32 - num_bits), dtype) * tf.cast(2.0**-num_bits, dtype)


def normal(shape: Any, seed: tf.Tensor, dtype: tf.DType = tf.float32, limit: Optional[float] = None) -> tf.Tensor:
  """Standard normal numbers, in a graph and in an XLA program the same but for rounding: see `uniform`.

  Args:
    shape: shape of the result.
    seed: int64 tensor of shape [2].
    dtype: a floating type.
    limit: the distribution is cut off at plus and minus this many standard deviations; None for not.

  Returns:
    A tensor of `shape` and `dtype`.
  """
  tail = 0.0 if limit is None else 0.5 * math.erfc(limit / math.sqrt(2))
  probability = tail + (uniform(shape, seed) + 2.0**-25) * (1 - 2 * tail)
  return tf.cast(tf.math.ndtri(probability), dtype)


def key_random_layers(model: Any) -> int:
  """Makes every Keras random layer of a model (Dropout, GaussianNoise, ...) draw by the current key.

  Keras gives each such layer a `RandomGenerator`, whose state no tf.train.Checkpoint holds. Here it becomes stateless,
  seeded by the step while one runs, and by a constant otherwise.

  Args:
    model: a `tf_keras.Model` or any tf.Module.

  Returns:
    How many generators were keyed.
  """
  generators: List[Any] = []
  for module in [model, *getattr(model, 'submodules', ())]:
    generator = getattr(module, '_random_generator', None)
    if hasattr(generator, 'make_seed_for_stateless_op') and not any(generator is known for known in generators):
      generators.append(generator)
  for index, generator in enumerate(generators):
    _key_generator(generator, f'layer {index}')
  return len(generators)


def _key_generator(generator: Any, salt: str) -> None:
  """Makes one Keras RandomGenerator stateless, with seeds from `make_seed`."""
  # pylint: disable=protected-access

  def seed_of_this_call():
    key = current_key()
    if key is None:
      return tf.constant([0, 0], tf.int64)
    return make_seed(f'{salt} call {key.count(salt)}')  # A layer that is called twice in a step draws twice.

  def random_uniform(shape, minval=0.0, maxval=None, dtype=None, nonce=None):
    del nonce  # Every call has a seed of its own.
    dtype = tf.as_dtype(dtype or tf_keras.backend.floatx())
    if not dtype.is_floating:
      return tf.random.stateless_uniform(shape, seed_of_this_call(), minval, maxval, dtype, alg='philox')
    minval, maxval = tf.cast(minval, dtype), tf.cast(1.0 if maxval is None else maxval, dtype)
    return minval + uniform(shape, seed_of_this_call(), dtype) * (maxval - minval)

  def random_normal(shape, mean=0.0, stddev=1.0, dtype=None, nonce=None, limit=None):
    del nonce
    dtype = tf.as_dtype(dtype or tf_keras.backend.floatx())
    return tf.cast(mean, dtype) + tf.cast(stddev, dtype) * normal(shape, seed_of_this_call(), dtype, limit)

  def dropout(inputs, rate, noise_shape=None):
    return tf.nn.experimental.general_dropout(
        inputs, rate=rate, noise_shape=noise_shape, uniform_sampler=random_uniform)

  generator._rng_type = generator.RNG_STATELESS
  generator._generator = None
  generator._built = True
  generator.make_seed_for_stateless_op = seed_of_this_call
  generator.random_uniform = random_uniform
  generator.random_normal = random_normal
  generator.truncated_normal = functools.partial(random_normal, limit=2.0)
  generator.dropout = dropout
