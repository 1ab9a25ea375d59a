"""Weights that are handed to a layer from outside, instead of its variables.

A layer of the decoder reads its variables by `value_of`. Code that runs it once more for its gradient, or once for
every row of stacked weights, passes tensors: so all dependencies are known to the gradient.
"""

from collections.abc import Iterator, Sequence
import contextlib
import threading
from typing import Any

import tensorflow as tf


class _Local(threading.local):
  """Of one thread, as replicas are traced in separate threads: variable's id -> its replacement."""

  def __init__(self):
    self.values: dict[int, tf.Tensor] = {}
    self.seed: tf.Tensor | None = None


_LOCAL = _Local()


@contextlib.contextmanager
def handed_in(variables: Sequence[object], values: Sequence[tf.Tensor]) -> Iterator[None]:
  """Within, `value_of` each of the variables is the tensor at its place."""
  before = _LOCAL.values
  _LOCAL.values = {**before, **{id(variable): value for variable, value in zip(variables, values)}}
  try:
    yield
  finally:
    _LOCAL.values = before


def value_of(variable: tf.Variable) -> tf.Tensor:
  """The value of a variable here, in its own dtype."""
  handed = _LOCAL.values.get(id(variable))
  return tf.convert_to_tensor(variable) if handed is None else handed


@contextlib.contextmanager
def seeded(seed: tf.Tensor | None) -> Iterator[None]:
  """Within, `seed_here` is this one, for random draws inside of a layer without a seed argument."""
  before = _LOCAL.seed
  _LOCAL.seed = seed
  try:
    yield
  finally:
    _LOCAL.seed = before


def seed_here() -> tf.Tensor | None:
  """The seed of the dropout of the layer that runs: int64 [2]; None for no dropout."""
  return _LOCAL.seed


def split(parts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
  """The variables of layers: (those that are trained, the others: frozen ones, and integers such as packed weights).

  Args:
    parts: Keras layers, whose `trainable` counts.
  """
  trained = [variable for part in parts for variable in part.trainable_variables if variable.dtype.is_floating]
  known = {id(variable) for variable in trained}
  return trained, [variable for part in parts for variable in part.variables if id(variable) not in known]
