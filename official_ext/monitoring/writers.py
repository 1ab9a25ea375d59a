"""Where a run's events go: one small interface, and many writers behind it."""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
import numpy as np

from official_ext.files import storage
from official_ext.monitoring import credentials

EVENTS = (
  'start',
  'restored',
  'compiled',
  'train',
  'eval',
  'checkpoint',
  'update_skipped',
  'rollback',
  'learning_rate_reduced',
  'early_stopped',
  'preempted',
  'finished',
  'failed',
  'checkpoint_failed',
  'hung',
)
LAST_EVENTS = ('preempted', 'finished', 'failed', 'hung')  # A run that ends by itself ends with one of them.
# Values of 'train' and 'eval' events that are of the run rather than of the model.
PROGRESS = frozenset(
  (
    'data_wait',
    'epoch',
    'eta_seconds',
    'examples_per_second',
    'model_global_step',
    'optimizer_iterations',
    'percent',
    'seconds',
    'steps_per_second',
  )
)


class Writer:
  """Takes the events of a run. Subclasses write them somewhere.

  An event has a name, one of EVENTS, the global step after it, and named values: scalars, strings, arrays and tensors,
  nested in dictionaries at will. A writer leaves out what it has no use for.
  """

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """Takes one event."""
    raise NotImplementedError

  def flush(self) -> None:
    """Makes what was written visible to others."""

  def close(self) -> None:
    """Ends the writing. Called once, also when the run fails."""


class Writers(Writer):
  """Hands every event to several writers. One that fails is reported once, and stops neither the others nor the run.

  It is given every later event all the same: a disk that was full may have room again.
  """

  def __init__(self, writers: Sequence[Writer]):
    self._writers = tuple(writers)
    self._reported: set[Writer] = set()
    self._without_storage: set[Writer] = set()

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class. What must not be told, such as a password in an error, is masked here for all of them."""
    self._call('write', event, step, credentials.mask_values(values))

  def flush(self) -> None:
    """See base class."""
    self._call('flush')

  def close(self) -> None:
    """See base class."""
    self._call('close')

  def _call(self, method: str, *arguments: Any) -> None:
    for writer in self._writers:
      try:
        getattr(writer, method)(*arguments)
        if writer in self._without_storage and method != 'write':
          self._without_storage.remove(writer)
          self._reported.discard(writer)
          logging.warning('%s writes again', type(writer).__name__)
      except Exception as e:  # Whatever it is: a run must not end because of what watches it.
        if writer not in self._reported:
          self._reported.add(writer)
          report = logging.exception
          if storage.explain(e) is not None:  # There is nothing to be told but that; and it may pass.
            report = logging.error
            self._without_storage.add(writer)
          report('%s failed to %s; training goes on: %s', type(writer).__name__, method, e)


def to_python(value: Any) -> Any:
  """A tensor, variable or array as a Python scalar, if it has one element, or as an array; others as they are."""
  if hasattr(value, 'numpy'):
    value = value.numpy()
  if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
    value = value.item()
  return value.decode(errors='replace') if isinstance(value, bytes) else value


def flatten(values: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Nested dictionaries as one, keys joined by '/', values through `to_python`."""
  flat = {}
  for key, value in values.items():
    if isinstance(value, Mapping):
      flat.update(flatten(value, f'{prefix}{key}/'))
    else:
      flat[f'{prefix}{key}'] = to_python(value)
  return flat
