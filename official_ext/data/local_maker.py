"""Makes elements in threads of this process, several at the same time."""

from collections.abc import Callable, Iterable
from concurrent import futures
import math
import threading
import time
from typing import Generic, TypeVar

T = TypeVar('T')
THREAD = 'local_maker'


class LocalMaker(Generic[T]):
  """Makes elements by their numbers. One thread takes them; any thread may close it meanwhile.

  Attributes:
    seconds: the least that it has taken to make one; infinite before the first.
  """

  def __init__(self, make: Callable[[int], T], num_threads: int):
    """Initializes a maker.

    Args:
      make: makes the element of a number; called from `num_threads` threads.
      num_threads: how many elements are made at the same time.
    """
    self.seconds = math.inf
    self._make = make
    self._pending: dict[int, futures.Future[T]] = {}
    self._pool = futures.ThreadPoolExecutor(num_threads, THREAD)
    self._lock = threading.Lock()  # Between the decision to begin an element and the pool's shutdown.
    self._is_closed = False

  def make(self, number: int, ahead: Iterable[int] = ()) -> T:
    """Makes an element, and begins those of some other numbers.

    Raises:
      CancelledError: the maker was closed before this element was begun.
      Exception: of its construction.
    """
    self._begin(number)
    for each in ahead:
      self._begin(each)
    future = self._pending.pop(number, None)
    if future is None:
      raise futures.CancelledError(f'element {number}: the maker is closed')
    return future.result()

  def has_begun(self, number: int) -> bool:
    """Whether an element is being made, or made and not yet given out."""
    return number in self._pending

  def close(self) -> None:
    """Begins nothing more. Does not wait for the batch in progress."""
    with self._lock:
      self._is_closed = True
      self._pool.shutdown(wait=False, cancel_futures=True)

  def _begin(self, number: int) -> None:
    with self._lock:
      if number not in self._pending and not self._is_closed:
        self._pending[number] = self._pool.submit(self._timed, number)

  def _timed(self, number: int) -> T:
    began = time.monotonic()
    made = self._make(number)
    self.seconds = min(self.seconds, time.monotonic() - began)
    return made
