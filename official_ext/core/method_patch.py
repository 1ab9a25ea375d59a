"""Replaces a method for a while, in all threads; replicas are traced in threads that take turns."""

import threading
from typing import Any, Callable


class MethodPatch:
  """A context in which a method is replaced. Threads may be in it at the same time: the last one puts it back."""

  def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]):
    """Makes a context that may be entered again and again.

    Args:
      owner: a class or an object.
      name: of the method.
      wrap: from the method to what stands for it.
    """
    self._owner = owner
    self._name = name
    self._wrap = wrap
    self._lock = threading.Lock()
    self._num_inside = 0
    self._original: Any = None

  def __enter__(self) -> None:
    with self._lock:
      self._num_inside += 1
      if self._num_inside == 1:
        self._original = getattr(self._owner, self._name)
        setattr(self._owner, self._name, self._wrap(self._original))

  def __exit__(self, *_: Any) -> None:
    with self._lock:
      self._num_inside -= 1
      if not self._num_inside:
        setattr(self._owner, self._name, self._original)
