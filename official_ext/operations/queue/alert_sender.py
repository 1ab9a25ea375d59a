"""The process that sends one receiver its due alerts, and outlives the dispatcher that has started it.

    python -m official_ext.operations.queue.alert_sender ALERTS_FOLDER RECEIVER < {"url": ..., "delays": [...]}

The URL comes by stdin: it holds secrets, which others could read in a command. One sender at a time serves a receiver:
it holds a lock. It ends when nothing is due. No TensorFlow.
"""

import json
import os
import signal
import sys
import time
from typing import Any

from official_ext.base import receivers
from official_ext.base.files import file_lock
from official_ext.operations.queue import alert_files

DELAYS = (1.0, 5.0, 30.0, 120.0)  # Before the second try, the third, ...
_ANSWER_SECONDS = 30.0
_MOST_MESSAGES = 5  # More that are due at once are sent in one message.
_FULL_SECONDS = 1.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Sender:
  """Sends to one receiver."""

  def __init__(self, files: alert_files.AlertFiles, name: str, receiver: Any, delays: tuple[float, ...]):
    """Sends nothing yet.

    Args:
      files: the alerts.
      name: of the receiver, as alerts have it.
      receiver: see receivers.py.
      delays: how long to wait before each further try, in seconds.
    """
    self._files = files
    self._name = name
    self._receiver = receiver
    self._delays = delays
    self._over: set[str] = set()

  def run(self) -> None:
    """Sends all due alerts. The lock must be held."""
    for alert, state in self._pending():
      if state.get('state') == alert_files.SENDING:  # A sender was killed, or the machine.
        self._note([alert], alert_files.UNKNOWN, state['tries'])
    while pending := self._pending():
      group = pending if len(pending) > _MOST_MESSAGES else pending[:1]
      alerts, tries = [alert for alert, _ in group], max(state.get('tries', 0) for _, state in group)
      while not self._try(alerts, tries):
        _wait(self._delays[tries])
        tries += 1
      _wait(0.0)

  def _pending(self) -> list[tuple[alert_files.Alert, dict[str, Any]]]:
    """The due alerts, in the order of their discovery, each with its state."""
    pending = []
    for key in self._files.keys():
      if key in self._over:
        continue
      state, alert = self._files.state(key, self._name), self._files.read(key)
      if alert is None or state.get('state') in alert_files.OVER or self._name not in alert.receivers:
        self._over.add(key)
      else:
        pending.append((alert, state))
    return sorted(pending, key=lambda pair: (pair[0].time, pair[0].key))

  def _try(self, alerts: list[alert_files.Alert], tries: int) -> bool:
    """Sends a message about some alerts, after so many tries. Returns whether that is over, well or not."""
    self._note(alerts, alert_files.SENDING, tries + 1)
    answer = receivers.send(self._receiver, receivers.digest(alerts))
    states = {receivers.TAKEN: alert_files.SENT, receivers.NO_ANSWER: alert_files.UNKNOWN}
    rest = alert_files.WAITING if tries < len(self._delays) else alert_files.FAILED
    self._note(alerts, states.get(answer, rest), tries + 1)
    return states.get(answer, rest) != alert_files.WAITING

  def _note(self, alerts: list[alert_files.Alert], state: str, tries: int) -> None:
    for alert in alerts:
      while True:
        try:
          self._files.set_state(alert.key, self._name, state, tries)
          break
        except OSError:  # A full disk: nothing is sent that could not be noted, nor forgotten that was.
          if not os.path.isdir(self._files.folder):
            sys.exit(0)
          time.sleep(_FULL_SECONDS)


def _wait(seconds: float) -> None:
  """Waits; ends the process on a signal. It is at no other time, as the delivery would be unknown."""
  if signal.sigtimedwait(_ENDING, seconds) is not None:
    sys.exit(0)


def main() -> None:
  """Runs one sender: see the module."""
  signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
  folder, name = sys.argv[1:]
  given = sys.stdin.read()
  if not given:  # Who has started it was killed.
    return
  values = json.loads(given)
  (receiver,) = receivers.make([values['url']], name)
  receivers.be_patient(receiver, values.get('answer_seconds', _ANSWER_SECONDS))
  files = alert_files.AlertFiles(os.path.dirname(folder))
  try:
    with file_lock.FileLock(files.lock_path(name), 0.0):
      Sender(files, name, receiver, tuple(values['delays'])).run()
  except TimeoutError:  # Another one does it.
    pass


if __name__ == '__main__':
  main()
