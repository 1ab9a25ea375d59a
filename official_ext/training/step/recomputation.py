"""Lets a function that is run again for its gradient draw the same random numbers as before.

`tf.recompute_grad` calls a function again when the gradient is made. The seeds of its first run are remembered, as
tensors, and given to the second.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import threading
from typing import Any

from absl import logging
import tensorflow as tf

from official_ext.base import tf_internals
from official_ext.training.step import method_patch

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


class _Local(threading.local):
  """The state of one thread: the regions that it is in, from the outside in."""

  def __init__(self):
    self.regions: list[_Region] = []


_LOCAL = _Local()


@contextlib.contextmanager
def _inside(region: _Region) -> Iterator[None]:
  _LOCAL.regions.append(region)
  try:
    yield
  finally:
    _LOCAL.regions.pop()


def is_in(graph: tf.Graph) -> bool:
  """Whether a function that `recompute_grad` may run again is being run in a graph."""
  return any(region.home is graph for region in _LOCAL.regions)


def warn_of_other_draws() -> None:
  """Warns of a draw that no region can remember."""
  if _LOCAL.regions:
    logging.log_first_n(
      logging.WARNING,
      "tf.recompute_grad: a tf.function inside of it draws by TensorFlow's own random ops, and "
      'draws other numbers when it is run for its gradient, which is wrong then: call the tf.function around '
      'tf.recompute_grad, or give it self.make_seed()',
      1,
    )


def seed_of(graph: tf.Graph, salt: str | None, make_seed: Callable[[], tf.Tensor]) -> tf.Tensor:
  """The seed of a draw: `make_seed()`, or if a function is run again, that of its first run.

  Args:
    graph: the present graph; None if Python runs the step.
    salt: the name of the draw.
    make_seed: makes a new seed in `graph`.
  """
  noting, seed = [], None
  for region in reversed([region for region in _LOCAL.regions if region.home is graph]):
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
  method_patch.MethodPatch(tf_internals.custom_gradients, name, _remembering)
  for name in tf_internals.CUSTOM_GRADIENT_CALLERS
]


@contextlib.contextmanager
def draws_the_same() -> Iterator[None]:
  """A context in which functions that are run again for their gradient get the seeds of their first run."""
  with method_patch.all_of(_PATCHES):
    yield
