"""The interface of the writers, which receive a run's events."""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
import numpy as np

from official_ext.base import credentials
from official_ext.base.files import storage


class Writer:
  """Takes the events of a run. Subclasses write them somewhere.

  An event has a name, one of `event_names.EVENTS`, the global step after it, and named values: scalars, strings, arrays
  and tensors, nested in dictionaries at will. A writer ignores unsupported values.
  """

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """Takes one event."""
    raise NotImplementedError

  def flush(self) -> None:
    """Makes written data visible to others."""

  def sync(self) -> None:
    """Makes the disk store written data: before a checkpoint after which it is not written again."""
    self.flush()

  def close(self) -> None:
    """Ends the writing. It is called once, also when the run fails."""


class Writers(Writer):
  """Hands every event to several writers. One that fails is reported once, and stops neither the others nor the run.

  It still gets every later event: a disk that was full may have room again.
  """

  def __init__(self, writers: Sequence[Writer]):
    self._writers = tuple(writers)
    self._reported: set[Writer] = set()
    self._without_storage: dict[Writer, str] = {}  # The method that has to succeed before it is said to write again.

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class. Masks secrets for all writers, such as a password in an error."""
    self._call('write', event, step, credentials.mask_values(values))

  def flush(self) -> None:
    """See base class."""
    self._call('flush')

  def sync(self) -> None:
    """Syncs every writer; a failure is reported."""
    self._call('sync')

  def close(self) -> None:
    """See base class."""
    self._call('close')

  def _call(self, method: str, *arguments: Any) -> None:
    for writer in self._writers:
      try:
        getattr(writer, method)(*arguments)
        if self._has_recovered(writer, method):
          del self._without_storage[writer]
          self._reported.discard(writer)
          logging.warning('%s writes again', type(writer).__name__)
      except Exception as e:  # Any exception: a run must not end because of a writer.
        if method == 'sync' and writer in self._without_storage:
          self._without_storage[writer] = 'sync'
        if writer not in self._reported:
          self._reported.add(writer)
          report = logging.exception
          if storage.explain(e) is not None:  # The message says enough without a traceback, and the failure may pass.
            report = logging.error
            self._without_storage[writer] = 'sync' if method == 'sync' else 'flush'
          report('%s failed to %s; training continues: %s', type(writer).__name__, method, e)

  def _has_recovered(self, writer: Writer, method: str) -> bool:
    """Whether the success of a method shows that a writer has storage again. That of `write` does not: it may wait."""
    needed = self._without_storage.get(writer)
    return method in {None: (), 'flush': ('flush', 'sync', 'close'), 'sync': ('sync', 'close')}[needed]


def to_python(value: Any) -> Any:
  """Converts a tensor, variable or array to an array, or to a Python scalar if it has one element; others stay."""
  if hasattr(value, 'numpy'):
    value = value.numpy()
  if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
    value = value.item()
  return value.decode(errors='replace') if isinstance(value, bytes) else value


def flatten(values: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Flattens nested dictionaries: keys are joined by '/', values converted by `to_python`."""
  flat = {}
  for key, value in values.items():
    if isinstance(value, Mapping):
      flat.update(flatten(value, f'{prefix}{key}/'))
    else:
      flat[f'{prefix}{key}'] = to_python(value)
  return flat
