"""Treats SIGTERM, SIGINT and SIGHUP as requests to save and stop."""

from collections.abc import Iterator
import contextlib
import os
import signal
import threading
import time
from typing import Any
import weakref

from absl import logging

from official_ext.base import processes

# `timeout` signals a process and then its group, and a terminal that closes sends SIGHUP from the shell and the kernel.
_SAME_REQUEST_SECONDS = 0.5
_END = b'\0'  # In place of the number of a signal.
_SAVING = (
  'saving after this training loop or evaluation batch, then stopping. A second SIGTERM or SIGINT stops at once.'
)


class PreemptionWatch:
  """Remembers that the process received a stop signal. A second signal stops it at once, with status 128 + its number.

  Signals within half a second are one request. SIGHUP, the end of the terminal, is never a second one, and is ignored
  if the process was started to ignore it, as by nohup.

  Use it as a context in the main thread; in another thread it watches nothing. Cluster managers send SIGTERM, and
  SIGKILL after a grace period (Kubernetes: terminationGracePeriodSeconds, 30 s; SLURM: KillWait, 30 s): one training
  loop and one save have to fit into it. A process that is forked meanwhile, such as a worker of a data loader, is not
  watched: signals have their earlier effects there.

  Attributes:
    requested: the name of the signal that came, such as 'SIGTERM'; None if none did.
  """

  def __init__(self, message: str = _SAVING):
    """Watches nothing yet.

    Args:
      message: logged when the signal comes, after its name.
    """
    self._message = message
    self.requested: str | None = None
    self._numbers: tuple[signal.Signals, ...] = ()
    self._before: dict[int, Any] = {}
    self._wakeup_before = -1
    self._pipe = (-1, -1)

  def __enter__(self) -> 'PreemptionWatch':
    if threading.current_thread() is threading.main_thread():
      # Python calls handlers between two of its instructions, and a training loop is one of them. A thread hears
      # at once.
      self._numbers = processes.stop_signals()
      self._pipe = os.pipe()
      os.set_blocking(self._pipe[1], False)
      self._wakeup_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
      threading.Thread(target=self._listen, args=(self._pipe[0],), name='preemption', daemon=True).start()
      self._before = {number: signal.signal(number, self._note) for number in self._numbers}
      _entered.add(self)
    return self

  def __exit__(self, *_) -> None:
    if not self._before:
      return
    _entered.discard(self)
    for number, handler in self._before.items():
      signal.signal(number, handler)
    self._before = {}
    signal.set_wakeup_fd(self._wakeup_before)
    with contextlib.suppress(BlockingIOError):
      os.write(self._pipe[1], _END)  # The thread ends, even if a forked process holds the pipe too.
    os.close(self._pipe[1])

  def _note(self, number, frame=None):
    del frame
    if self.requested is None:
      self.requested = signal.Signals(number).name

  def _listen(self, descriptor: int) -> None:
    first: float | None = None  # When the first signal came, except SIGHUP, which no one may have sent.
    is_logged = False
    while (received := os.read(descriptor, 1)) not in (b'', _END):
      number = received[0]
      if number not in self._numbers:
        continue
      if number != signal.SIGHUP:
        if first is not None and time.monotonic() - first > _SAME_REQUEST_SECONDS:
          os._exit(128 + number)
        first = first or time.monotonic()
      self._note(number)
      if not is_logged:
        logging.warning('%s: %s', self.requested, self._message)
        is_logged = True
    os.close(descriptor)


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
  """A context in which SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does.

  For programs that have nothing to save: their unfinished output is removed at the end. Only for the main thread; in
  another one it changes nothing.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return

  def interrupt(number, frame):
    del frame
    raise KeyboardInterrupt(signal.Signals(number).name)

  before = {number: signal.signal(number, interrupt) for number in processes.stop_signals() if number != signal.SIGINT}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


_entered: 'weakref.WeakSet[PreemptionWatch]' = weakref.WeakSet()  # Watches whose handlers are in force.


def _leave_to_parent() -> None:
  """In a forked process: a signal to it, or to all of a group, is not one to the run once more."""
  for watch in list(_entered):
    _entered.discard(watch)
    with contextlib.suppress(ValueError):
      signal.set_wakeup_fd(-1)
      for number, handler in watch._before.items():  # pylint: disable=protected-access
        signal.signal(number, handler)
    watch._before = {}  # pylint: disable=protected-access


os.register_at_fork(after_in_child=_leave_to_parent)
