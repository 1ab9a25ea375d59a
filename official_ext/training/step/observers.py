"""Observes layers, updates and methods of other libraries while a step is traced.

In this order: `MethodPatch` replaces a method in all threads, as replicas are traced in threads that take turns;
`observed` watches a thread's updates with any optimizer, and may hold them back; `followed` watches the calls of Keras
layers. No other module observes updates.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import functools
import threading
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals


class MethodPatch:
  """A context in which a method is replaced. Threads may be in it at the same time: the last one restores it.

  A method that the owner inherits, also an object from its class, is inherited again afterwards.
  """

  def __init__(self, owner: object, name: str, wrap: Callable[[Any], object]):
    """Makes a context that may be entered repeatedly.

    Args:
      owner: a class or an object.
      name: of the method.
      wrap: a function from the method to its replacement.
    """
    self._owner = owner
    self._name = name
    self._wrap = wrap
    self._lock = threading.Lock()
    self._num_inside = 0
    self._own: Any = None  # The owner's own attribute of this name.

  def __enter__(self) -> None:
    with self._lock:
      self._num_inside += 1
      if self._num_inside == 1:
        self._own = vars(self._owner).get(self._name)
        self._kind.__setattr__(self._owner, self._name, self._wrap(getattr(self._owner, self._name)))

  def __exit__(self, *_: object) -> None:
    with self._lock:
      self._num_inside -= 1
      if not self._num_inside and self._own is not None:
        self._kind.__setattr__(self._owner, self._name, self._own)
      elif not self._num_inside:
        self._kind.__delattr__(self._owner, self._name)

  @property
  def _kind(self) -> Any:
    """By which an attribute is set directly: Keras' objects track their attributes."""
    return type if isinstance(self._owner, type) else object


@contextlib.contextmanager
def all_of(patches: Iterable[MethodPatch]) -> Iterator[None]:
  """A context in which several methods are replaced."""
  with contextlib.ExitStack() as stack:
    for patch in patches:
      stack.enter_context(patch)
    yield


# Called before an update with the optimizer and the (gradient, variable) pairs; gradients are summed over the replicas
# by then, if a new optimizer does that. Returns whether the update may be made.
Observer = Callable[[Any, list[tuple[Any, Any]]], bool]


class _Observers(threading.local):
  """The observers of one thread: of the updates of all optimizers, and of the calls of one object."""

  def __init__(self):
    self.of_all: tuple[Observer, ...] = ()
    self.of_one: tuple[Observer, ...] = ()


_OBSERVERS = _Observers()


def _announcing(original: Callable[..., object]) -> Callable[..., Any]:
  """A class's `apply_gradients` that notifies the observers first."""

  @tf.autograph.experimental.do_not_convert
  @functools.wraps(original)
  def apply_gradients(optimizer, grads_and_vars, *args, **kwargs):
    if not _OBSERVERS.of_all:
      return original(optimizer, grads_and_vars, *args, **kwargs)
    pairs = list(grads_and_vars)
    allowed = [observer(optimizer, pairs) for observer in _OBSERVERS.of_all]  # Every observer is called.
    return original(optimizer, pairs, *args, **kwargs) if all(allowed) else None

  return apply_gradients


def _announcing_of(optimizer: tf_keras.optimizers.Optimizer) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """The same for one object with an own `apply_gradients`."""

  def announcing(original):
    @tf.autograph.experimental.do_not_convert
    def apply_gradients(grads_and_vars, *args, **kwargs):
      pairs = list(grads_and_vars)
      allowed = [observer(optimizer, pairs) for observer in _OBSERVERS.of_one]
      return original(pairs, *args, **kwargs) if all(allowed) else None

    return apply_gradients

  return announcing


_OF_CLASSES = [MethodPatch(cls, 'apply_gradients', _announcing) for cls in tf_internals.UPDATING_CLASSES]


@contextlib.contextmanager
def observed(observer: Observer) -> Iterator[None]:
  """A context in which an observer is called for every update of this thread, once, when it reaches the class.

  Updates that a `GradientTap` captures do not reach that.
  """
  before = _OBSERVERS.of_all
  with all_of(_OF_CLASSES):
    _OBSERVERS.of_all = (*before, observer)
    try:
      yield
    finally:
      _OBSERVERS.of_all = before


class CallsOf:
  """Watches the calls of one object's `apply_gradients`, a tap's too."""

  def __init__(self, optimizer: tf_keras.optimizers.Optimizer):
    self._patch = MethodPatch(optimizer, 'apply_gradients', _announcing_of(optimizer))

  @contextlib.contextmanager
  def observed(self, observer: Observer) -> Iterator[None]:
    """A context in which an observer is called for this thread's calls."""
    before = _OBSERVERS.of_one
    with self._patch:
      _OBSERVERS.of_one = (*before, observer)
      try:
        yield
      finally:
        _OBSERVERS.of_one = before


class _Calls(threading.local):
  """The state of one thread: the layers that it is in, and who sees or changes their results."""

  def __init__(self):
    self.stack: list[Any] = []
    self.followers: list[Callable[[str, Any], None]] = []
    self.changers: list[Callable[[str, Any], Any]] = []


_CALLS = _Calls()


def current_path() -> str:
  """The layers that this thread is in, from the outside in, joined by '/'; '' outside of `followed`, or in none.

  The paths of inner layers do not include the outermost, which is usually the model.
  """
  names = [layer.name for layer in _CALLS.stack]
  return '/'.join(names[1:] or names)


def current_root() -> Any:
  """The outermost layer that this thread is in, usually the model; None outside of `followed`, or in none."""
  return _CALLS.stack[0] if _CALLS.stack else None


def _following(original):
  @functools.wraps(original)  # By the name of its module, AutoGraph knows not to convert it.
  def call(self, *args, **kwargs):
    if not (_CALLS.followers or _CALLS.changers):
      return original(self, *args, **kwargs)
    _CALLS.stack.append(self)
    try:
      outputs = original(self, *args, **kwargs)
      for change in _CALLS.changers:
        outputs = change(current_path(), outputs)
      for follower in _CALLS.followers:
        follower(current_path(), outputs)
      return outputs
    finally:
      _CALLS.stack.pop()

  return call


_PATCH = MethodPatch(tf_keras.layers.Layer, '__call__', _following)


@contextlib.contextmanager
def followed(on_output: Callable[[str, Any], None] = lambda path, outputs: None) -> Iterator[None]:
  """A context in which the calls of Keras layers in this thread are followed.

  Args:
    on_output: called with the path and the result of each layer, when it returns.
  """
  with _PATCH:
    _CALLS.followers.append(on_output)
    try:
      yield
    finally:
      _CALLS.followers.remove(on_output)


@contextlib.contextmanager
def changed(change: Callable[[str, Any], object]) -> Iterator[None]:
  """A context in which layers that are called in this thread return something else.

  Args:
    change: a function from the path and the result of a layer to its replacement.
  """
  with _PATCH:
    _CALLS.changers.append(change)
    try:
      yield
    finally:
      _CALLS.changers.remove(change)
