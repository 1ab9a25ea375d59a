"""SIGTERM and SIGINT: a request to save and stop."""

import os
import signal
import threading
from typing import Any, Dict, Optional

from absl import logging

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class PreemptionWatch:
  """Remembers that the process was asked to stop. A second signal stops it at once.

  Used as a context, in the main thread; in another it watches nothing. Cluster managers send SIGTERM, and SIGKILL
  after a grace period (Kubernetes: terminationGracePeriodSeconds, 30 s; SLURM: KillWait, 30 s): one training loop and
  one save have to fit into it.
  """

  def __init__(self):
    self._requested: Optional[str] = None
    self._before: Dict[int, Any] = {}

  @property
  def requested(self) -> Optional[str]:
    """The name of the signal that came, such as 'SIGTERM'; None where none did."""
    return self._requested

  def __enter__(self) -> 'PreemptionWatch':
    if threading.current_thread() is threading.main_thread():
      self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
    return self

  def __exit__(self, *_) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
    self._before = {}

  def _handle(self, number, frame):
    del frame
    if self._requested is not None:
      signal.signal(number, signal.SIG_DFL)
      os.kill(os.getpid(), number)
      return
    self._requested = signal.Signals(number).name
    logging.warning('%s: saving after this training loop, then stopping. Once more stops at once.', self._requested)
