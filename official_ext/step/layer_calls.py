"""Which Keras layer is being called, and what it returns."""

from collections.abc import Callable, Iterator
import contextlib
import functools
import threading
from typing import Any

import tf_keras

from official_ext.step import method_patch


class _Local(threading.local):
  """Of one thread: the layers that it is in, and who is told of what they return."""

  def __init__(self):
    self.stack: list[Any] = []
    self.followers: list[Callable[[str, Any], None]] = []


_LOCAL = _Local()


def current_path() -> str:
  """The layers that this thread is in, from the outside in, joined by '/'; '' outside of `followed`, or in none.

  The outermost, mostly the model, is left out of the paths of those inside it.
  """
  names = [layer.name for layer in _LOCAL.stack]
  return '/'.join(names[1:] or names)


def current_root() -> Any:
  """The outermost layer that this thread is in, mostly the model; None outside of `followed`, or in none."""
  return _LOCAL.stack[0] if _LOCAL.stack else None


def _following(original):
  @functools.wraps(original)  # AutoGraph knows by the name of the module that it is not to be converted.
  def call(self, *args, **kwargs):
    if not _LOCAL.followers:
      return original(self, *args, **kwargs)
    _LOCAL.stack.append(self)
    try:
      outputs = original(self, *args, **kwargs)
      for follower in _LOCAL.followers:
        follower(current_path(), outputs)
      return outputs
    finally:
      _LOCAL.stack.pop()

  return call


_PATCH = method_patch.MethodPatch(tf_keras.layers.Layer, '__call__', _following)


@contextlib.contextmanager
def followed(on_output: Callable[[str, Any], None] = lambda path, outputs: None) -> Iterator[None]:
  """Within, the calls of Keras layers in this thread are followed.

  Args:
    on_output: called with the path of each layer, and what it returned, when it has.
  """
  with _PATCH:
    _LOCAL.followers.append(on_output)
    try:
      yield
    finally:
      _LOCAL.followers.remove(on_output)
