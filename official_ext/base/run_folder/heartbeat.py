"""Heartbeats at an interval, from a separate thread, at no cost for the training step."""

from collections.abc import Callable
import threading
import weakref

from absl import logging

SECONDS = 10.0
# Nothing for so long: whoever should have given a sign of life is dead. A file system that hangs for less is forgiven.
SILENCE_SECONDS = 60.0


class Heartbeat:
  """Calls a method at an interval until it is closed, or the method's object is gone."""

  def __init__(self, beat: Callable[[], None], seconds: float = SECONDS):
    """Starts.

    Args:
      beat: a bound method. Its exceptions are logged, once for several failures in a row, and the beats continue.
      seconds: the interval.
    """
    self._closed = threading.Event()
    self._thread = threading.Thread(
      target=_run, args=(weakref.WeakMethod(beat), seconds, self._closed), name='heartbeat', daemon=True
    )
    self._thread.start()

  def close(self) -> bool:
    """Stops after the current beat; one that hangs with its file system is abandoned. Returns whether it has ended."""
    self._closed.set()
    if self._thread is not threading.current_thread():
      self._thread.join(timeout=5.0)
    return not self._thread.is_alive()


def _run(method: weakref.WeakMethod, seconds: float, closed: threading.Event) -> None:
  failed = False
  while not closed.wait(seconds):
    beat = method()
    if beat is None:
      return
    try:
      beat()
      failed = False
    except Exception as error:  # pylint: disable=broad-except  # The run continues, and so do the beats.
      if not failed:
        logging.warning('No sign of life could be given: %s', error)
      failed = True
    del beat
