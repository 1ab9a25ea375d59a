"""Follows which Keras layer is being called, and its result."""

from collections.abc import Callable, Iterator
import contextlib
import functools
import threading
from typing import Any

import tf_keras

from official_ext.training.step import method_patch


class _Local(threading.local):
  """The state of one thread: the layers that it is in, and who sees or changes their results."""

  def __init__(self):
    self.stack: list[Any] = []
    self.followers: list[Callable[[str, Any], None]] = []
    self.changers: list[Callable[[str, Any], Any]] = []


_LOCAL = _Local()


def current_path() -> str:
  """The layers that this thread is in, from the outside in, joined by '/'; '' outside of `followed`, or in none.

  The paths of inner layers do not include the outermost, which is usually the model.
  """
  names = [layer.name for layer in _LOCAL.stack]
  return '/'.join(names[1:] or names)


def current_root() -> Any:
  """The outermost layer that this thread is in, usually the model; None outside of `followed`, or in none."""
  return _LOCAL.stack[0] if _LOCAL.stack else None


def _following(original):
  @functools.wraps(original)  # By the name of its module, AutoGraph knows not to convert it.
  def call(self, *args, **kwargs):
    if not (_LOCAL.followers or _LOCAL.changers):
      return original(self, *args, **kwargs)
    _LOCAL.stack.append(self)
    try:
      outputs = original(self, *args, **kwargs)
      for change in _LOCAL.changers:
        outputs = change(current_path(), outputs)
      for follower in _LOCAL.followers:
        follower(current_path(), outputs)
      return outputs
    finally:
      _LOCAL.stack.pop()

  return call


_PATCH = method_patch.MethodPatch(tf_keras.layers.Layer, '__call__', _following)


@contextlib.contextmanager
def followed(on_output: Callable[[str, Any], None] = lambda path, outputs: None) -> Iterator[None]:
  """A context in which the calls of Keras layers in this thread are followed.

  Args:
    on_output: called with the path and the result of each layer, when it returns.
  """
  with _PATCH:
    _LOCAL.followers.append(on_output)
    try:
      yield
    finally:
      _LOCAL.followers.remove(on_output)


@contextlib.contextmanager
def changed(change: Callable[[str, Any], object]) -> Iterator[None]:
  """A context in which layers that are called in this thread return something else.

  Args:
    change: a function from the path and the result of a layer to its replacement.
  """
  with _PATCH:
    _LOCAL.changers.append(change)
    try:
      yield
    finally:
      _LOCAL.changers.remove(change)
