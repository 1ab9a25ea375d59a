"""Compiles parts between matrix products by XLA, each by itself, in a graph that is not compiled.

On some CPUs TensorFlow's own kernels multiply bfloat16 several times as fast as XLA. They make a pass over memory for
each of the many small operations between two products; inside `compiled` these become one program each.

`after` and `all_after` order computations. XLA merges equal ones, its scheduler for CPUs computes as early as possible,
and it ignores control dependencies. So values that are to take memory late, or again, must depend on earlier ones.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import threading

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


class _Local(threading.local):
  is_wanted = False  # This thread is inside of `compiled`.
  names: set[str] | None = None  # Of the innermost `noted`.


_local = _Local()


@contextlib.contextmanager
def compiled() -> Iterator[None]:
  """Steps that this thread traces meanwhile have their clusters compiled, forward and backward."""
  outer, _local.is_wanted = are_compiled(), True
  try:
    yield
  finally:
    _local.is_wanted = outer


@contextlib.contextmanager
def noted() -> Iterator[set[str]]:
  """Yields the names of the functions that this thread calls meanwhile and that `compiled` would compile."""
  outer, names = _local.names, set[str]()
  _local.names = names
  try:
    yield names
  finally:
    _local.names = outer


def are_compiled() -> bool:
  """Whether this thread is inside of `compiled`."""
  return _local.is_wanted


def cluster(function: Callable[..., tf.Tensor], num_constants: int = 0) -> Callable[..., tf.Tensor]:
  """`function`, of which `compiled` makes one program, and one more of its gradient, which keeps the arguments alone.

  Elsewhere it is called directly. To be made once for all layers that compute the same: each is compiled by itself.

  Args:
    function: tensors to a tensor, without variables and randomness: the backward pass calls it again.
    num_constants: how many of its last arguments have no gradient.
  """
  forward = tf.function(function, jit_compile=True, autograph=False)

  @functools.partial(tf.function, jit_compile=True, autograph=False)
  def backward(inputs, constants, dy):
    with tf.GradientTape() as tape:
      tape.watch(inputs)
      y = function(*inputs, *constants)
    return tape.gradient(y, inputs, dy, unconnected_gradients=tf.UnconnectedGradients.ZERO)

  @tf.custom_gradient
  def once(*args):
    count = len(args) - num_constants

    def gradient(dy):
      return *backward(list(args[:count]), list(args[count:]), dy), *[None] * num_constants

    return forward(*args), gradient

  @functools.wraps(function)
  def run(*args: object) -> tf.Tensor:
    _note(function)
    return once(*args) if are_compiled() else function(*args)

  return run


def constant_cluster(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
  """`cluster` of a function of constants, from which no gradient is asked, that is to run late: see `all_after`.

  Args:
    function: tensors to a tensor, without variables and randomness.

  Returns:
    A function of (a tensor, and the arguments of `function`), which runs only after that tensor is there.
  """
  compiled_function = tf.function(function, jit_compile=True, autograph=False)

  @functools.wraps(function)
  def run(other: tf.Tensor, *args: tf.Tensor) -> tf.Tensor:
    _note(function)
    if not are_compiled():
      return function(*all_after(args, other))
    with tf.control_dependencies([other]):  # A graph heeds it, unlike XLA.
      return compiled_function(*args)

  return run


def _note(function):
  if _local.names is not None:
    _local.names.add(function.__qualname__)
