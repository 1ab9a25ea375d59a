"""Alerts as files: the incidents, and the receivers that got them. No TensorFlow.

They lie in the folder `alerts` of the queue. Each file has one writer.

    rules/KEY.json        a rule, and earlier incidents at its start; by the dispatcher
    KEY.json              an alert; by the dispatcher, once
    KEY.RECEIVER.json     whether a receiver got it; by the sender of that receiver (alert_sender.py)
    RECEIVER.lock         held by that sender
    watched.json          how far the events of each run were read; by the dispatcher

A sender writes `sending` before it sends, and `sent` after it. A sender that was killed in between is followed by one
that finds `sending`: the alert may have arrived, and is not sent again.
"""

from collections.abc import Sequence
import dataclasses
import hashlib
import os
import re
from typing import Any

from official_ext.base import receivers as receivers_lib
from official_ext.base.files import moments
from official_ext.base.files import paths
from official_ext.operations.queue import job_files

# The contents of a file KEY.RECEIVER.json.
WAITING = 'waiting'  # A try has failed, and there will be another.
SENDING = 'sending'
SENT = 'sent'
FAILED = 'failed'  # All tries have failed.
UNKNOWN = 'unknown'  # It may have arrived, or not: nobody has seen an answer.
OVER = (SENT, FAILED, UNKNOWN)

_KEY = re.compile(r'([0-9a-f]{24})\.json')


@dataclasses.dataclass(frozen=True)
class Alert(receivers_lib.Message):
  """A message that is sent once; its kind is one of alert_rules.KINDS, or a condition.

  Attributes:
    key: the same for the same thing, however often and by whom it is found: 24 hexadecimal digits.
    receivers: the names of those of the receivers.
    time: when it was found, in UTC; '' if it is not written yet.
  """

  key: str
  receivers: tuple[str, ...]
  time: str = ''


class AlertFiles:
  """The alerts of a queue.

  Attributes:
    folder: of their files.
  """

  def __init__(self, queue_folder: str):
    """Makes nothing."""
    self.folder = os.path.join(queue_folder, 'alerts')
    self._rules = os.path.join(self.folder, 'rules')
    self._watched = os.path.join(self.folder, 'watched.json')

  def make(self) -> None:
    """Makes the folders, in that of the queue, which nobody else may enter."""
    paths.make_folder(self._rules)

  def keys(self) -> list[str]:
    """The keys of all alerts."""
    return [match[1] for name in paths.names(self.folder) if (match := _KEY.fullmatch(name))]

  def add(self, alert: Alert) -> None:
    """Writes an alert: from here on it will be sent."""
    values = {name: value for name, value in dataclasses.asdict(alert).items() if name != 'key'}
    job_files.write(self._path(alert.key), {**values, 'time': alert.time or moments.now()})

  def read(self, key: str) -> Alert | None:
    """An alert; None if there is none, or it is damaged."""
    values = _read(self._path(key))
    try:
      return Alert(
        key=key,
        kind=str(values['kind']),
        title=str(values['title']),
        body=str(values['body']),
        receivers=tuple(values['receivers']),
        time=str(values['time']),
      )
    except (KeyError, TypeError):
      return None

  def state(self, key: str, receiver: str) -> dict[str, Any]:
    """The state of an alert for a receiver: {'state': one of those above, 'tries': N}; {} if none has begun."""
    return _read(self._state_path(key, receiver))

  def set_state(self, key: str, receiver: str, state: str, tries: int) -> None:
    """Writes that; for the sender alone."""
    values = {'receiver': receiver, 'state': state, 'tries': tries, 'time': moments.now()}
    job_files.write(self._state_path(key, receiver), values)

  def lock_path(self, receiver: str) -> str:
    """The file whose lock the sender of a receiver holds."""
    return os.path.join(self.folder, f'{key_of(receiver)}.lock')

  def known_before(self, rule: str) -> list[str] | None:
    """The keys of the incidents before a rule was first used; None if that is now."""
    values = _read(self._rule_path(rule))
    return [str(key) for key in values.get('known', [])] if values else None

  def set_known_before(self, rule: str, keys: Sequence[str]) -> None:
    """Writes that."""
    job_files.write(self._rule_path(rule), {'rule': rule, 'known': sorted(keys), 'time': moments.now()})

  def watched(self) -> dict[str, Any]:
    """How far the events of each run were read."""
    return _read(self._watched)

  def set_watched(self, values: dict[str, Any]) -> None:
    """Writes that."""
    job_files.write(self._watched, values)

  def _path(self, key: str) -> str:
    return os.path.join(self.folder, f'{key}.json')

  def _state_path(self, key: str, receiver: str) -> str:
    return os.path.join(self.folder, f'{key}.{key_of(receiver)}.json')

  def _rule_path(self, rule: str) -> str:
    return os.path.join(self._rules, f'{key_of(rule)}.json')


def key_of(*parts: object) -> str:
  """A key of some texts: 24 hexadecimal digits."""
  return hashlib.sha256('\0'.join(map(str, parts)).encode('utf-8', 'surrogatepass')).hexdigest()[:24]


def _read(path: str) -> dict[str, Any]:
  try:
    return job_files.read(path) or {}
  except job_files.DamagedFileError:
    return {}
