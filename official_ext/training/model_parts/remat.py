"""Computes a part of the network again for its gradient, instead of keeping its activations.

`tf.recompute_grad` has traps: it calls its function again when the gradient is made (a lambda in a loop sees the loop's
last layer), redraws dropout outside of this library's steps, and finds variables by looking at the tape. Here weights
are arguments: a layer reads its variables by `value_of`, and code that runs it again, or for every row of stacked
weights, passes tensors within `handed_in`.

A layer reports tensors other than its output, such as how a router spreads tokens, by `report`; a reader calls the
layers within `collected`. Code that runs layers again, or in a loop, returns their reports as additional outputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import threading
from typing import Any

import tensorflow as tf

from official_ext.training.model_parts import clusters


class _Local(threading.local):
  """Of one thread, as replicas are traced in separate threads."""

  found: list[tf.Tensor] | None = None


_LOCAL = _Local()


def is_wanted() -> bool:
  """Whether reports are collected here."""
  return _LOCAL.found is not None


def report(value: tf.Tensor) -> None:
  """Reports a tensor; ignored without a reader."""
  if _LOCAL.found is not None:
    _LOCAL.found.append(value)


@contextlib.contextmanager
def collected(wanted: bool = True) -> Iterator[list[tf.Tensor]]:
  """Within, reports are added to the list that it yields; unless not `wanted`."""
  before = _LOCAL.found
  found: list[tf.Tensor] = []
  _LOCAL.found = found if wanted else None
  try:
    yield found
  finally:
    _LOCAL.found = before


class _Weights(threading.local):
  """Of one thread, as replicas are traced in separate threads: variable's id -> its replacement."""

  def __init__(self):
    self.values: dict[int, tf.Tensor] = {}
    self.casts: dict[tuple[int, tf.DType], tf.Tensor] | None = None
    self.graph: tf.Graph | None = None  # Where casts are made; None: outside of a graph.
    self.seed: tf.Tensor | None = None


_WEIGHTS = _Weights()


@contextlib.contextmanager
def handed_in(variables: Sequence[object], values: Sequence[tf.Tensor]) -> Iterator[None]:
  """Within, `value_of` each of the variables is the tensor at its place."""
  before = _WEIGHTS.values
  _WEIGHTS.values = {**before, **{id(variable): value for variable, value in zip(variables, values)}}
  try:
    yield
  finally:
    _WEIGHTS.values = before


def value_of(variable: tf.Variable) -> tf.Tensor:
  """The value of a variable here, in its own dtype."""
  handed = _WEIGHTS.values.get(id(variable))
  return tf.convert_to_tensor(variable) if handed is None else handed


@contextlib.contextmanager
def cast_once() -> Iterator[None]:
  """Within, `cast_of` casts each weight once, in the present graph: before a loop, if it is read in each round.

  The weights must not change within. Weights that are handed in, as of stacked layers, are cast at each read.
  """
  before = _WEIGHTS.casts, _WEIGHTS.graph
  _WEIGHTS.casts, _WEIGHTS.graph = {}, _graph()
  try:
    yield
  finally:
    _WEIGHTS.casts, _WEIGHTS.graph = before


def is_cast_once(variable: tf.Variable) -> bool:
  """Whether `cast_of` keeps the cast of a weight here: within `cast_once`, unless the weight is handed in."""
  return _WEIGHTS.casts is not None and id(variable) not in _WEIGHTS.values


def cast_of(variable: tf.Variable, dtype: tf.DType | str) -> tf.Tensor:
  """The value of a variable here, in a dtype."""
  dtype, casts = tf.as_dtype(dtype), _WEIGHTS.casts
  key = id(variable), dtype
  if casts is not None and is_cast_once(variable):
    here, home = _graph(), _WEIGHTS.graph
    if key not in casts and (here is home or (here is not None and home is not None)):
      with contextlib.nullcontext() if here is home else home.as_default():
        casts[key] = tf.cast(value_of(variable), dtype)
    if key in casts:
      return casts[key]
  return tf.cast(value_of(variable), dtype)


def _graph():
  """The graph that is being made; None outside of one."""
  return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


@contextlib.contextmanager
def seeded(seed: tf.Tensor | None) -> Iterator[None]:
  """Within, `seed_here` is this one, for random draws inside of a layer without a seed argument."""
  before = _WEIGHTS.seed
  _WEIGHTS.seed = seed
  try:
    yield
  finally:
    _WEIGHTS.seed = before


def seed_here() -> tf.Tensor | None:
  """The seed of the dropout of the layer that runs: int64 [2]; None for no dropout."""
  return _WEIGHTS.seed


def split_weights(parts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
  """The variables of layers: (the trained ones, the others: frozen ones, and integers such as packed weights).

  Args:
    parts: Keras layers, whose `trainable` counts.
  """
  trained = [variable for part in parts for variable in part.trainable_variables if variable.dtype.is_floating]
  known = {id(variable) for variable in trained}
  return trained, [variable for part in parts for variable in part.variables if id(variable) not in known]


Extras = Mapping[str, tf.Tensor]


def remat(
  function: Callable[[tf.Tensor, Extras], tf.Tensor], x: tf.Tensor, parts: Sequence[object], extras: Extras
) -> tf.Tensor:
  """`function(x, extras)`, of which the backward pass keeps `x` alone.

  Args:
    function: calls `parts`, and nothing else that a gradient is asked of. It is called twice, and must compute the
      same: random numbers come from seeds that it is given.
    x: floating, of any shape.
    parts: the layers that it calls, `layers.Part` all of them. Frozen ones get no gradient.
    extras: tensors by name, which are handed to `function`; floating ones have gradients.
  """
  trained, others = split_weights(parts)
  fixed = [value_of(variable) for variable in others]
  names = differentiable(extras)
  wanted = is_wanted()

  def run(x, *tensors):
    with (
      handed_in([*trained, *others], [*tensors[len(names) :], *fixed]),
      collected(wanted) as reports,
    ):
      y = function(x, {**extras, **dict(zip(names, tensors))})
    return y, *reports

  @tf.custom_gradient
  def once(x, *tensors):
    def gradient(*dys):
      with tf.control_dependencies(dys):
        inputs = [clusters.after(x, dys[0]), *map(tf.identity, tensors)]
        with tf.GradientTape() as tape:
          tape.watch(inputs)
          outputs = run(*inputs)
      return tape.gradient(outputs, inputs, output_gradients=dys, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return run(x, *tensors), gradient

  y, *reports = once(x, *(extras[name] for name in names), *map(value_of, trained))
  for value in reports:
    report(value)
  return y


def differentiable(extras: Extras) -> list[str]:
  """The names of the floating ones."""
  return sorted(name for name, value in extras.items() if value.dtype.is_floating)
