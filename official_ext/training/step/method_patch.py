"""Replaces a method for a while, in all threads; replicas are traced in threads that take turns."""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import threading
from typing import Any


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
