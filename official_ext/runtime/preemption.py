"""Treats SIGTERM and SIGINT as requests to save and stop."""

import contextlib
import os
import signal
import threading
from typing import Any
import weakref

from absl import logging

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SAVING = 'saving after this training loop or evaluation batch, then stopping. Once more stops at once.'


class PreemptionWatch:
  """Remembers that the process was asked to stop. A second signal stops it at once, with status 128 + its number.

  Use it as a context in the main thread; in another thread it watches nothing. Cluster managers send SIGTERM, and
  SIGKILL after a grace period (Kubernetes: terminationGracePeriodSeconds, 30 s; SLURM: KillWait, 30 s): one training
  loop and one save have to fit into it. A process that is forked meanwhile, such as a worker of a data loader, is not
  watched: signals do there what they did before.
  """

  def __init__(self, told: str = _SAVING):
    """Watches nothing yet.

    Args:
      told: what is logged when the signal comes, behind its name.
    """
    self._told = told
    self._requested: str | None = None
    self._before: dict[int, Any] = {}
    self._wakeup_before = -1
    self._pipe = (-1, -1)

  @property
  def requested(self) -> str | None:
    """The name of the signal that came, such as 'SIGTERM'; None if none did."""
    return self._requested

  def __enter__(self) -> 'PreemptionWatch':
    if threading.current_thread() is threading.main_thread():
      # Python calls handlers between two of its instructions, and a training loop is one of them. A thread hears
      # at once.
      self._pipe = os.pipe()
      os.set_blocking(self._pipe[1], False)
      self._wakeup_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
      threading.Thread(target=self._listen, args=(self._pipe[0],), name='preemption', daemon=True).start()
      self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
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
    os.close(self._pipe[1])  # The thread ends.

  def _note(self, number, frame=None):
    del frame
    if self._requested is None:
      self._requested = signal.Signals(number).name

  def _listen(self, descriptor: int) -> None:
    count = 0
    while received := os.read(descriptor, 1):
      if received[0] not in _SIGNALS:
        continue
      count += 1
      if count > 1:
        os._exit(128 + received[0])
      self._note(received[0])
      logging.warning('%s: %s', self._requested, self._told)
    os.close(descriptor)


_entered: 'weakref.WeakSet[PreemptionWatch]' = weakref.WeakSet()  # Those whose handlers are in force.


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
