"""Makes randomness a function of (seed, step, replica).

A draw that takes its seed from here is the same whenever the same step runs again: after a restart, in another step
shape, on another machine. Nothing about it is stored. Inside `draws_the_same`, a function that `tf.recompute_grad` runs
again for its gradient draws the same numbers: the seeds of its first run, tensors, are given to the second.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import hashlib
import math
import threading
import types
from typing import Any

from absl import logging
import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.data import keyed_random
from official_ext.training.step import observers

_RECOMPUTING = 'recompute_grad.<locals>.inner'  # TensorFlow's own, and the copy in Model Garden's BigBird.


class _Region:
  """One run of a function under `recompute_grad`.

  Attributes:
    home: the graph in which it was called; None if Python runs the step.
    seeds: (salt, seed) of its draws, in their order.
    is_again: whether this is the second run, which takes `seeds` instead of adding to them.
  """

  def __init__(self, home: object, seeds: list[tuple[str | None, tf.Tensor]], is_again: bool):
    self.home = home
    self.seeds = seeds
    self.is_again = is_again
    self._num_taken = 0
    self.difference = ''  # How the draws of the second run differ.

  def take(self, salt: str | None) -> tf.Tensor | None:
    """The next seed of the first run; None if that run drew something else."""
    before = self.seeds[self._num_taken] if self._num_taken < len(self.seeds) else ('nothing', None)
    self._num_taken += 1
    if before[0] == salt:
      return before[1]
    name = lambda salt: (salt or 'a number').strip()
    self.difference = f'draws {name(salt)} when it is run for its gradient, and drew {name(before[0])} at first'
    return None


class _Recomputation(threading.local):
  """The state of one thread: the regions that it is in, from the outside in."""

  def __init__(self):
    self.regions: list[_Region] = []


_RECOMPUTATION = _Recomputation()


@contextlib.contextmanager
def _inside(region: _Region) -> Iterator[None]:
  _RECOMPUTATION.regions.append(region)
  try:
    yield
  finally:
    _RECOMPUTATION.regions.pop()


def is_in(graph: tf.Graph) -> bool:
  """Whether a function that `recompute_grad` may run again is being run in a graph."""
  return any(region.home is graph for region in _RECOMPUTATION.regions)


def warn_of_other_draws() -> None:
  """Warns of a draw that no region can remember."""
  if _RECOMPUTATION.regions:
    logging.log_first_n(
      logging.WARNING,
      "tf.recompute_grad: a tf.function inside of it draws by TensorFlow's own random ops, and "
      'draws other numbers when it is run for its gradient, which is wrong then: call the tf.function around '
      'tf.recompute_grad, or give it self.make_seed()',
      1,
    )


def seed_of(graph: tf.Graph, salt: str | None, make_seed: Callable[[], tf.Tensor]) -> tf.Tensor:
  """The seed of a draw: `make_seed()`, or if a function is run again, the seed of its first run.

  Args:
    graph: the present graph; None if Python runs the step.
    salt: the name of the draw.
    make_seed: makes a new seed in `graph`.
  """
  noting, seed = [], None
  for region in reversed([region for region in _RECOMPUTATION.regions if region.home is graph]):
    if region.is_again:
      seed = region.take(salt)
      break
    noting.append(region)
  if seed is None:
    seed = make_seed()
  for region in noting:
    region.seeds.append((salt, seed))
  return seed


def _remembering(decorate: Callable[..., object]) -> Callable[..., Any]:
  """TensorFlow's `decorate(f, args, kwargs)`, which calls a function that has a custom gradient."""

  @functools.wraps(decorate)
  def decorated(f, args, kwargs):
    if getattr(f, '__qualname__', '').endswith(_RECOMPUTING):
      return decorate(_remembers_seeds(f), args, kwargs)
    return decorate(f, args, kwargs)

  return decorated


def _remembers_seeds(f: Callable[..., Any]) -> Callable[..., Any]:
  """`f`, which returns a result and its gradient function, with the same draws in both."""

  @functools.wraps(f)
  def first(*args, **kwargs):
    seeds: list[tuple[str | None, tf.Tensor]] = []
    with _inside(_Region(graph_here(), seeds, is_again=False)):
      result, gradient = f(*args, **kwargs)

    def again(*result_gradients, variables=None):
      region = _Region(graph_here(), seeds, is_again=True)
      with _inside(region):
        gradients = gradient(*result_gradients, **({} if variables is None else {'variables': variables}))
      if region.difference:
        raise ValueError(
          f'tf.recompute_grad: the function {region.difference}; let it do the same both times (a lambda in a loop '
          "sees the loop's last value: bind it, lambda x, layer=layer: layer(x))"
        )
      return gradients

    return result, again

  return first


def graph_here() -> Any:
  """The graph that ops are made in; None if they run at once."""
  return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


# Held while a step is traced or run: functions made by `recompute_grad`, at any time, come through these.
_PATCHES = [
  observers.MethodPatch(tf_internals.custom_gradients, name, _remembering)
  for name in tf_internals.CUSTOM_GRADIENT_CALLERS
]


@contextlib.contextmanager
def draws_the_same() -> Iterator[None]:
  """A context in which functions that are run again for their gradient get the seeds of their first run."""
  with observers.all_of(_PATCHES):
    yield


@dataclasses.dataclass
class StepKey:
  """The key that identifies one forward pass.

  Attributes:
    seed: the run's seed (`runtime.seed`), a Python int.
    step: int64 scalar tensor, the number of updates done before this step.
    replica: int scalar (tensor or Python int), the replica's index in the global batch.
    num_replicas: Python int, replicas in sync.
    micro_step: Python int, which of the micro-batches of an accumulated step.
    num_micro_steps: Python int.
    batch: int64 scalar tensor, for draws that belong to a batch by its number, not to the step: in an evaluation.
    purpose: the purpose of the draws, if it is not a training step, such as 'evaluation'.
    draws: the number of seeds handed out so far, by the name of the draw.
    graph: the graph that holds the tensors above; None if Python runs the step. `step_key` fills it in.
  """

  seed: int
  step: Any
  replica: Any = 0
  num_replicas: int = 1
  micro_step: int = 0
  num_micro_steps: int = 1
  batch: Any = None
  purpose: str = ''
  draws: dict[str, int] = dataclasses.field(default_factory=dict)
  graph: tf.Graph | None = None

  def count(self, name: str) -> int:
    """The number of this draw by `name`, from 0 on."""
    self.draws[name] = self.draws.get(name, -1) + 1
    return self.draws[name]


class _Local(threading.local):
  """Replicas are traced in separate threads."""

  key: StepKey | None = None


_LOCAL = _Local()


def current_key() -> StepKey | None:
  """The key of the step being traced in this thread, or None outside of one."""
  return _LOCAL.key


@contextlib.contextmanager
def step_key(key: StepKey) -> Iterator[StepKey]:
  """Makes `key` the current one in this thread. TensorFlow's own random ops use it too: see `_RAW_OPS`."""
  before = current_key()
  key.graph = graph_here()
  _LOCAL.key = key
  try:
    with _RAW_OPS_ARE_KEYED, draws_the_same():
      yield key
  finally:
    _LOCAL.key = before


def make_seed(salt: str | None = None) -> tf.Tensor:
  """A seed for one of TensorFlow's stateless random ops.

  Args:
    salt: distinguishes this draw from the step's others. None numbers the draws in the order of their tracing.

  Returns:
    An int64 tensor of shape [2]: [hash(seed, salt), (step * micro-batches + micro-batch) * replicas + replica]. In an
    evaluation the number of the batch replaces the step: all evaluations draw the same.

  Raises:
    RuntimeError: outside of a step, be it of training or of an evaluation.
  """
  if current_key() is None:
    raise RuntimeError(
      'A seed of the step was requested outside of a training step or an evaluation step (in your own strategy.run: '
      'request it before, and pass it in).'
    )
  return _seed_here(salt)


def _seed_here(salt: str | None) -> tf.Tensor:
  """`make_seed`, for the present graph: the body of a loop draws other numbers in every iteration."""
  graph = graph_here()
  seed = seed_of(graph, salt, lambda: _seed_in(graph, salt))
  element = _vectorized_element(graph)
  return seed if element is None else keyed_random.numbered_seed(seed, element)


def _seed_in(graph: tf.Graph, salt: str | None) -> tf.Tensor:
  """A new seed in a graph."""
  key = current_key()
  assert key is not None
  if graph is key.graph or not _is_inline(graph):
    return _seed_of(key, salt)
  with graph.outer_graph.as_default():
    seed = _seed_here(salt)
  if not isinstance(graph, tf_internals.WhileBodyGraph):
    return seed
  iteration = graph.get_operations()[0].outputs[0]  # TensorFlow's own counter is the body's first argument.
  assert iteration.op.type == 'Placeholder' and iteration.dtype == tf.int32 and iteration.shape.rank == 0, iteration
  return keyed_random.numbered_seed(seed, iteration)


def _is_inline(graph: tf.Graph) -> bool:
  """Whether a graph runs only inside the graph in which it was made: a loop, a branch, tf.vectorized_map under XLA."""
  if isinstance(graph, tf_internals.ControlFlowGraph):
    return True
  return hasattr(graph, 'outer_graph') and f'{graph.get_name_scope()}/'.startswith(_VECTORIZED_BODY)


def _vectorized_element(graph: tf.Graph) -> tf.Tensor | None:
  """The number of the element, in a function that tf.vectorized_map calls: an int32 scalar; None elsewhere."""
  scope = '' if graph is None else graph.get_name_scope()
  before, body, _ = f'{scope}/'.rpartition(_VECTORIZED_BODY)
  if not body:
    return None
  name = f'{before}{_VECTORIZED_BODY}PlaceholderWithDefault'  # The argument that tf.vectorized_map gives to the body.
  return graph.get_operation_by_name(name).outputs[0]


_VECTORIZED_BODY = 'loop_body/'


def _seed_of(key: StepKey, salt: str | None) -> tf.Tensor:
  """The next seed of a key, in the key's graph."""
  if salt is None:
    salt = f'draw {key.count("")}'
  elif salt.endswith(_NUMBERED):
    salt = f'{salt}{key.count(salt)}'
  name = f'{key.seed}/{key.purpose}/{salt}' if key.purpose else f'{key.seed}/{salt}'
  digest = hashlib.sha256(name.encode()).digest()
  stream = int.from_bytes(digest[:8], 'little', signed=True)
  number = key.step if key.batch is None else key.batch
  pass_number = tf.cast(number, tf.int64) * key.num_micro_steps + key.micro_step
  position = pass_number * key.num_replicas + tf.cast(key.replica, tf.int64)
  return tf.stack([tf.constant(stream, tf.int64), position])


_NUMBERED = ' call '  # The number of the draw is appended to a salt that ends so.


def uniform(shape: object, seed: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
  """Uniform numbers in [0, 1), the same in a graph and in an XLA program.

  Args:
    shape: shape of the result.
    seed: int64 tensor of shape [2], see `make_seed`.
    dtype: a floating type.

  Returns:
    A tensor of `shape` and `dtype`: multiples of 2^-24, or of the type's precision.

  Example:

    >>> seed = tf.constant([1, 7], tf.int64)
    >>> first, again = (ext.keyed_uniform([2, 3], seed) for _ in range(2))
    >>> first.shape, bool(tf.reduce_all(first == again))
    (TensorShape([2, 3]), True)
  """
  bits = keyed_random.random_bits(shape, seed)
  # Half precision keeps the leading bits: rounding could give 1.
  num_bits = {tf.bfloat16: 8, tf.float16: 11}.get(dtype, 24)
  return tf.cast(tf.bitwise.right_shift(bits, 32 - num_bits), dtype) * tf.cast(2.0**-num_bits, dtype)


def normal(shape: object, seed: tf.Tensor, dtype: tf.DType = tf.float32, limit: float | None = None) -> tf.Tensor:
  """Standard normal numbers, in a graph and in an XLA program the same but for rounding: see `uniform`.

  Args:
    shape: shape of the result.
    seed: int64 tensor of shape [2].
    dtype: a floating type.
    limit: the distribution is cut off at plus and minus this many standard deviations; None: it is not cut off.

  Returns:
    A tensor of `shape` and `dtype`.

  Example:

    >>> noise = ext.keyed_normal([1000], tf.constant([1, 7], tf.int64), limit=2.0)
    >>> noise.dtype, bool(tf.reduce_max(tf.abs(noise)) <= 2)
    (tf.float32, True)
  """
  tail = 0.0 if limit is None else 0.5 * math.erfc(limit / math.sqrt(2))
  probability = tail + (uniform(shape, seed) + 2.0**-25) * (1 - 2 * tail)
  # In float32 the largest of these is rounded to 1, which is infinitely far out.
  return tf.cast(tf.math.ndtri(tf.minimum(probability, 1 - 2.0**-24)), dtype)


def key_random_layers(model: tf_keras.Model) -> int:
  """Makes every Keras random layer of a model (Dropout, GaussianNoise, ...) draw by the current key.

  Keras gives each such layer a `RandomGenerator`, whose state no tf.train.Checkpoint holds. Here it becomes stateless,
  seeded by the step while one runs, and by a constant otherwise.

  Args:
    model: a `tf_keras.Model` or any tf.Module.

  Returns:
    The number of generators that were keyed.
  """
  generators: list[Any] = []
  for module in [model, *(model.submodules if isinstance(model, tf.Module) else ())]:
    generator = tf_internals.random_generator_of(module)
    if generator is not None and not any(generator is known for known in generators):
      generators.append(generator)
  for index, generator in enumerate(generators):
    _key_generator(generator, f'layer {index}')
  return len(generators)


def _key_generator(generator: tf.random.Generator, salt: str) -> None:
  """Makes one Keras RandomGenerator stateless, with seeds from `make_seed`."""

  def seed_of_this_call():
    if current_key() is None:
      return tf.constant([0, 0], tf.int64)
    return make_seed(f'{salt}{_NUMBERED}')  # A layer that is called twice in a step draws twice.

  def random_uniform(shape, minval=0.0, maxval=None, dtype=None, nonce=None):
    del nonce  # Every call has its own seed.
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
      inputs, rate=rate, noise_shape=noise_shape, uniform_sampler=random_uniform
    )

  tf_internals.make_stateless(generator)
  generator.make_seed_for_stateless_op = seed_of_this_call
  generator.random_uniform = random_uniform
  generator.random_normal = random_normal
  generator.truncated_normal = functools.partial(random_normal, limit=2.0)
  generator.dropout = dropout


# TensorFlow's own random ops. They keep a state that no checkpoint holds, and XLA runs them differently every time.


def _raw_uniform(shape, dtype, **_):
  return uniform(shape, _raw_seed(), tf.as_dtype(dtype))


def _raw_uniform_int(shape, minval, maxval, **_):
  minval, maxval = tf.convert_to_tensor(minval), tf.convert_to_tensor(maxval)
  return tf.random.stateless_uniform(shape, _raw_seed(), minval, maxval, minval.dtype, alg='philox')


def _raw_normal(shape, dtype, **_):
  return normal(shape, _raw_seed(), tf.as_dtype(dtype))


def _raw_truncated_normal(shape, dtype, **_):
  return normal(shape, _raw_seed(), tf.as_dtype(dtype), limit=2.0)


def _raw_shuffle(value, **_):
  return keyed_random.shuffled(tf.convert_to_tensor(value), _raw_seed())


def _raw_multinomial(logits, num_samples, output_dtype=tf.int64, **_):
  return keyed_random.categorical(tf.convert_to_tensor(logits), num_samples, _raw_seed(), tf.as_dtype(output_dtype))


def _raw_gamma(shape, alpha, **_):
  alpha = tf.convert_to_tensor(alpha)
  return tf.random.stateless_gamma(tf.concat([shape, tf.shape(alpha)], 0), _raw_seed(), alpha, dtype=alpha.dtype)


def _raw_poisson(shape, rate, dtype=tf.int64, **_):
  rate = tf.convert_to_tensor(rate)
  return tf.random.stateless_poisson(tf.concat([shape, tf.shape(rate)], 0), _raw_seed(), rate, dtype=tf.as_dtype(dtype))


def _raw_bounding_box(image_size, bounding_boxes, min_object_covered, seed=0, seed2=0, **kwargs):
  del seed, seed2
  return tf_internals.image_ops.stateless_sample_distorted_bounding_box(
    image_size, bounding_boxes, min_object_covered, _raw_seed(), **kwargs
  )


# (module of the generated op, its name, its replacement in a step). `tf.random.*`, `tf.image.random_*`,
# `tf.nn.dropout` and `tf_keras.backend.random_*` all end in these; their own seeds count for nothing then.
_RAW_OPS: Sequence[tuple[types.ModuleType, str, Callable[..., tf.Tensor]]] = (
  (tf_internals.random_ops, 'random_uniform', _raw_uniform),
  (tf_internals.random_ops, 'random_uniform_int', _raw_uniform_int),
  (tf_internals.random_ops, 'random_standard_normal', _raw_normal),
  (tf_internals.random_ops, 'truncated_normal', _raw_truncated_normal),
  (tf_internals.random_ops, 'random_shuffle', _raw_shuffle),
  (tf_internals.random_ops, 'multinomial', _raw_multinomial),
  (tf_internals.random_ops, 'random_gamma', _raw_gamma),
  (tf_internals.random_ops, 'random_poisson_v2', _raw_poisson),
  (tf_internals.image_ops, 'sample_distorted_bounding_box_v2', _raw_bounding_box),
)


def _raw_seed() -> tf.Tensor:
  salt = f'tf.random{_NUMBERED}'
  if _belongs_to_step():
    return make_seed(salt)
  return seed_of(graph_here(), salt, _stateful_seed)


def _stateful_seed() -> tf.Tensor:
  """A seed that does not depend on a key."""
  return tf.raw_ops.RandomUniformInt(
    shape=[2], minval=tf.constant(tf.int64.min, tf.int64), maxval=tf.constant(tf.int64.max, tf.int64)
  )


def _belongs_to_step() -> bool:
  """Whether an op that is made now is part of the step that this thread traces.

  Variables are made outside of the step's graph; so are their initial values. A tf.function inside the step has a
  separate graph, which other steps share, and keeps TensorFlow's draws.
  """
  key = current_key()
  if key is None:
    return False
  graph = graph_here()
  while graph is not key.graph and _is_inline(graph):
    graph = graph.outer_graph
  return graph is key.graph


def _keyed_or(original: Callable[..., object], keyed: Callable[..., object]) -> Callable[..., Any]:
  @functools.wraps(original)
  def op(*args, **kwargs):
    if not (_belongs_to_step() or is_in(graph_here())):
      warn_of_other_draws()
      return original(*args, **kwargs)
    kwargs.pop('name', None)
    return keyed(*args, **kwargs)

  return op


class _RawOpsAreKeyed:
  """A context in which `_RAW_OPS` use the current key. Threads may be in it at the same time."""

  def __init__(self):
    self._lock = threading.Lock()
    self._num_inside = 0
    self._originals: list[Callable[..., Any]] = []

  def __enter__(self):
    with self._lock:
      self._num_inside += 1
      if self._num_inside == 1:
        self._originals = [getattr(module, name) for module, name, _ in _RAW_OPS]
        for (module, name, keyed), original in zip(_RAW_OPS, self._originals):
          setattr(module, name, _keyed_or(original, keyed))

  def __exit__(self, *error):
    with self._lock:
      self._num_inside -= 1
      if not self._num_inside:
        for (module, name, _), original in zip(_RAW_OPS, self._originals):
          setattr(module, name, original)


_RAW_OPS_ARE_KEYED = _RawOpsAreKeyed()
