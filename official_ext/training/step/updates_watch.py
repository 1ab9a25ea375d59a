"""The one place that observes the updates that a thread makes with any optimizer, and may hold them back."""

from collections.abc import Callable, Iterator
import contextlib
import functools
import threading
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.training.step import method_patch

# Called before an update with the optimizer and the (gradient, variable) pairs; gradients are summed over the replicas
# by then, if a new optimizer does that. Returns whether the update may be made.
Observer = Callable[[Any, list[tuple[Any, Any]]], bool]


class _Observers(threading.local):
  """The observers of one thread: of the updates of all optimizers, and of the calls of one object."""

  def __init__(self):
    self.of_all: tuple[Observer, ...] = ()
    self.of_one: tuple[Observer, ...] = ()


_LOCAL = _Observers()


def _announcing(original: Callable[..., object]) -> Callable[..., Any]:
  """A class's `apply_gradients` that notifies the observers first."""

  @tf.autograph.experimental.do_not_convert
  @functools.wraps(original)
  def apply_gradients(optimizer, grads_and_vars, *args, **kwargs):
    if not _LOCAL.of_all:
      return original(optimizer, grads_and_vars, *args, **kwargs)
    pairs = list(grads_and_vars)
    allowed = [observer(optimizer, pairs) for observer in _LOCAL.of_all]  # Every observer is called.
    return original(optimizer, pairs, *args, **kwargs) if all(allowed) else None

  return apply_gradients


def _announcing_of(optimizer: tf_keras.optimizers.Optimizer) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """The same for one object, whose `apply_gradients` is not that of its class."""

  def announcing(original):
    @tf.autograph.experimental.do_not_convert
    def apply_gradients(grads_and_vars, *args, **kwargs):
      pairs = list(grads_and_vars)
      allowed = [observer(optimizer, pairs) for observer in _LOCAL.of_one]
      return original(pairs, *args, **kwargs) if all(allowed) else None

    return apply_gradients

  return announcing


_OF_CLASSES = [method_patch.MethodPatch(cls, 'apply_gradients', _announcing) for cls in tf_internals.UPDATING_CLASSES]


@contextlib.contextmanager
def observed(observer: Observer) -> Iterator[None]:
  """A context in which an observer is called for every update of this thread, once, when it reaches the class.

  Updates that a `GradientTap` captures do not reach that.
  """
  before = _LOCAL.of_all
  with method_patch.all_of(_OF_CLASSES):
    _LOCAL.of_all = (*before, observer)
    try:
      yield
    finally:
      _LOCAL.of_all = before


class CallsOf:
  """Watches the calls of one object's `apply_gradients`, a tap's too."""

  def __init__(self, optimizer: tf_keras.optimizers.Optimizer):
    self._patch = method_patch.MethodPatch(optimizer, 'apply_gradients', _announcing_of(optimizer))

  @contextlib.contextmanager
  def observed(self, observer: Observer) -> Iterator[None]:
    """A context in which an observer is called for this thread's calls."""
    before = _LOCAL.of_one
    with self._patch:
      _LOCAL.of_one = (*before, observer)
      try:
        yield
      finally:
        _LOCAL.of_one = before
