"""Defines the interface of the writers, which receive a run's events; and writes events.jsonl.

events.jsonl has one flat JSON object per line for each event.
"""

from collections.abc import Iterator, Mapping, Sequence
import json
import math
import os
import time
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import safe_text
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.base.run_folder import run_files


class Writer:
  """Takes the events of a run. Subclasses write them somewhere.

  An event has a name, one of `run_files.EVENTS`, the global step after it, and named values: scalars, strings, arrays
  and tensors, nested in dictionaries at will. A writer ignores unsupported values.

  Example:

    >>> class Printer(ext.Writer):
    ...   def write(self, event, step, values):
    ...     print(event, step, ext.flatten_logs(values))
    >>> Printer().write('train', 8, {'loss': 0.5})
    train 8 {'loss': 0.5}
  """

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """Takes one event.

    Args:
      event: its name, such as 'train', 'eval' or 'checkpoint'.
      step: the number of updates so far.
      values: see the class. `ext.flatten_logs` turns them into Python values by flat names.

    An exception is reported once; it does not end the run.
    """
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
    self._call('write', event, step, safe_text.mask_values(values))

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
          report = logging.error if isinstance(e, errors.UserError) else logging.exception
          if storage.explain(e) is not None:  # The message says enough without a traceback, and the failure may pass.
            report = logging.error
            self._without_storage[writer] = 'sync' if method == 'sync' else 'flush'
          report('%s failed to %s; training continues: %s', type(writer).__name__, method, e)

  def _has_recovered(self, writer: Writer, method: str) -> bool:
    """Whether the success of a method shows that a writer has storage again; not `write`, which may wait."""
    needed = self._without_storage.get(writer)
    return method in {None: (), 'flush': ('flush', 'sync', 'close'), 'sync': ('sync', 'close')}[needed]


def to_python(value: Any) -> Any:
  """Converts a tensor, variable or array to an array, or to a Python scalar if it has one element; others stay."""
  if hasattr(value, 'numpy'):
    value = value.numpy()
  if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
    value = value.item()
  return value.decode(errors='replace') if isinstance(value, bytes) else value


def leaves(values: Mapping[str, Any], separator: str, prefix: str = '') -> Iterator[tuple[str, Any]]:
  """Each value of nested logs with its name, whose levels are joined by the separator.

  Example:

    >>> list(leaves({'loss': 0.5, 'accuracy': {'cat': 1.0}}, '|'))
    [('loss', 0.5), ('accuracy|cat', 1.0)]
  """
  for key, value in values.items():
    if isinstance(value, Mapping):
      yield from leaves(value, separator, f'{prefix}{key}{separator}')
    else:
      yield f'{prefix}{key}', value


def flatten(values: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Flattens nested dictionaries: keys are joined by '/', values converted by `to_python`.

  Example:

    >>> ext.flatten_logs({'loss': tf.constant(0.5), 'accuracy': {'cat': 1.0, 'dog': 0.75}})
    {'loss': 0.5, 'accuracy/cat': 1.0, 'accuracy/dog': 0.75}
  """
  return {name: to_python(value) for name, value in leaves(values, '/', prefix)}


def merge_logs(logs: Mapping[str, Any], added: Mapping[str, Any], source: str) -> dict[str, Any]:
  """The logs of two sources together.

  Args:
    logs: by name, nested at will.
    added: the logs of the second source.
    source: its name in an error, such as `MyTask.evaluation_end`.

  Raises:
    UserError: a name is in both.

  Example:

    >>> merge_logs({'loss': 0.5}, {'accuracy': 1.0}, 'MyTask.evaluation_end')
    {'loss': 0.5, 'accuracy': 1.0}
  """
  for name in added:
    if name in logs:
      raise errors.UserError(f'{source}: {name!r} is the name of another value that is logged; rename one of them')
  return {**logs, **added}


def check_names(values: Mapping[str, Any], source: str) -> None:
  """Refuses logs of which two values would have one name in events.jsonl, where nested names are joined by '/'.

  Args:
    values: nested logs.
    source: as in `merge_logs`.

  Raises:
    UserError: names them.
  """
  seen: set[str] = set()
  for leaf, _ in leaves(values, '/'):
    name = stored_name(leaf)
    if name in seen:
      raise errors.UserError(f'{source}: {name!r} is the name of two values in events.jsonl; rename one of them')
    seen.add(name)


_OWN_KEYS = ('time', 'event', 'step')


def stored_name(name: str) -> str:
  """The name of a value in events.jsonl and in tables: '_' is appended to `time`, `event` and `step`."""
  return f'{name}_' if name in _OWN_KEYS else name


_MAX_PENDING = 1 << 24  # How many bytes may wait for room.
_MAX_LINE = 1 << 20


class EventsWriter(Writer):
  """Appends events to a file: `{"time": 1700000000.0, "event": "train", "step": 10, "training_loss": 0.5, ...}`.

  `time` is in seconds since 1970. The names of nested values are joined by '/'; '_' is appended to a name that equals
  one of the first three keys. Every line is strict JSON: a number that is not finite is written as one of the strings
  "NaN", "Infinity" and "-Infinity", which float() and JavaScript's Number() convert back, so that the metric is kept.
  Arrays of one dimension become lists; arrays of more, such as images, are omitted.

  The writer only ever appends to the file, and each line at once: the lines of a killed process stay. A power loss
  may lose the lines after the last `sync`. If that fails, the same bytes are written again in their place.

  If the file cannot be written, as on a full disk, events wait, and are written in order as soon as possible: the part
  of a line that a failed write has left is completed. If the file is deleted, a new one is begun.
  """

  def __init__(self, path: str):
    """Initializes the writer; opens nothing yet.

    Args:
      path: the file, local or on any file system that `tf.io.gfile` knows.
    """
    self._path = path
    self._file: tf.io.gfile.GFile | None = None
    self._pending = b''  # Text that is not in the file yet; begins inside a line if a write has failed there.
    self._unsynced = b''  # The end of the file, which the disk may not have stored.
    self._sync_failed = False
    self._size: int | None = None  # The identity of the file as this writer has left it.
    self._opened: tuple[int, int] | None = None
    self._num_lost = 0

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    line: dict[str, Any] = {'time': round(time.time(), 3), 'event': event, 'step': int(step)}
    for key, value in flatten(values).items():
      if not isinstance(value, np.ndarray) or value.ndim < 2:
        line[stored_name(key)] = _to_json(value)
    if len(self._pending) < _MAX_PENDING:
      self._pending += (json.dumps(line, allow_nan=False) + '\n').encode()
    else:
      self._num_lost += 1
    self._write_pending()
    if len(self._unsynced) > _MAX_PENDING:
      self.sync()

  def flush(self) -> None:
    """Writes the events that wait."""
    if self._pending:
      self._write_pending()

  def sync(self) -> None:
    """Makes the disk store the events.

    Raises:
      StorageError: it may not have stored them; the next call writes them again.
    """
    self.flush()
    if self._unsynced and self._identity() == self._opened:
      try:
        self._sync()
      except OSError:  # The system counts failed writes as stored: a second sync would not fail.
        self._sync_failed = True
        try:
          self._sync()
        except OSError as error:
          raise storage.not_written(self._path, error) from error
    self._unsynced = b''

  def _sync(self) -> None:
    if self._sync_failed and not paths.is_remote(self._path):
      assert self._size is not None
      with open(self._path, 'r+b') as f:
        f.seek(self._size - len(self._unsynced))
        f.write(self._unsynced)
    paths.sync_to_disk(self._path)
    paths.sync_to_disk(os.path.dirname(self._path))
    self._sync_failed = False

  def close(self) -> None:
    """Writes and syncs the events that wait, and closes the file. Logs how many events there was no room for.

    Raises:
      StorageError: the disk may not have stored the events.
    """
    try:
      self.sync()
    finally:
      self._close_file()
      if self._pending:
        self._cut()
        num_lost = self._num_lost + self._pending.count(b'\n')
        logging.error('%s lacks the last %d events, because there was no room for them.', self._path, num_lost)

  def _cut(self) -> None:
    """Removes an incomplete last line, whose rest will never be written, if the file is local."""
    try:
      with open(local_files.open_descriptor(self._path, os.O_RDWR), 'r+b') as f:
        f.seek(max(0, f.seek(0, os.SEEK_END) - _MAX_LINE))
        start, end = f.tell(), f.read()
        f.truncate(start + end.rfind(b'\n') + 1)
    except OSError:
      pass

  def _write_pending(self) -> None:
    """Writes the events that wait.

    Raises:
      StorageError: not all of them could be written; the rest keep waiting.
    """
    try:
      if self._file is None or self._identity() != self._opened:
        self._open()
      assert self._file is not None and self._size is not None
      self._file.write(self._pending)
      self._file.flush()
    except storage.FAILURES as error:
      self._close_file()
      self._keep_rest()
      raise storage.not_written(self._path, error) from error
    self._size += len(self._pending)
    self._unsynced += self._pending
    self._pending = b''

  def _identity(self) -> tuple[int, int] | None:
    """The identity of the file at the path now, if it is local; else None."""
    if paths.is_remote(self._path):
      return (0, 0)
    try:
      found = os.stat(self._path)
      return found.st_dev, found.st_ino
    except OSError:
      return None

  def _open(self) -> None:
    self._close_file()
    paths.make_folder(os.path.dirname(self._path))
    if not paths.is_remote(self._path):
      os.close(local_files.open_descriptor(self._path, os.O_WRONLY | os.O_CREAT))  # Opening a pipe would wait.
    size = _size_of(self._path)
    # If this writer's last write ended inside a line, the next one continues that line.
    if size != self._size and _is_torn(self._path) and not self._pending.startswith(b'\n'):
      self._pending = b'\n' + self._pending
    self._file = tf.io.gfile.GFile(self._path, 'ab')
    identity = self._identity()
    # Another file: the contents of the one before are lost.
    if (size, identity) != (self._size, self._opened):
      self._unsynced, self._sync_failed = b'', False
    self._size, self._opened = size, identity

  def _keep_rest(self) -> None:
    """Removes from the waiting text the part that a failed write has left in the file."""
    try:
      size = _size_of(self._path)
    except storage.FAILURES:
      return
    if self._size is not None and size > self._size:
      self._unsynced += self._pending[: size - self._size]
      self._pending = self._pending[size - self._size :]
      self._size = size

  def _close_file(self) -> None:
    if self._file is not None:
      try:
        self._file.close()
      except storage.FAILURES:  # `flush` has reported the errors.
        pass
      self._file = None


def read_events(path: str) -> list[dict[str, Any]]:
  """Reads the events of a run that are still valid.

  Events that were superseded when the run rolled back are skipped (see run_files.py), and so is a
  line that a dying machine has cut short.

  Args:
    path: the events.jsonl of a run.

  Returns:
    The lines in order, as dictionaries. Numbers that are not finite are the strings of `EventsWriter`.

  Raises:
    OSError: the file cannot be read.
  """
  events: list[dict[str, Any]] = []
  with paths.open_to_read(path) as file:
    for number, line in enumerate(local_files.read_lines(file, run_files.MAX_EVENT_BYTES), 1):
      event = run_files.parse_event(line)
      if event is None:
        logging.warning('%s: line %d is not an event; skipped', path, number)
      else:
        events.append(event)
  return run_files.standing_events(events)


def _is_torn(path: str) -> bool:
  """Whether the file's last line was cut short."""
  size = _size_of(path)
  if not size:
    return False
  with paths.open_to_read(path) as f:
    f.seek(size - 1)
    return f.read(1) != b'\n'


def _size_of(path: str) -> int:
  """The length of a file in bytes; 0 without a file."""
  found = tf.io.gfile.stat(path) if paths.exists(path) else None
  return 0 if found is None or found.is_directory else found.length


def _to_json(value: Any) -> Any:
  """Converts a value to strict JSON; one that JSON has no type for becomes its str()."""
  value = to_python(value)
  if isinstance(value, np.ndarray):
    value = value.tolist()
  if isinstance(value, (list, tuple)):
    return [_to_json(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    return 'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'
  return value if isinstance(value, (str, int, float, type(None))) else str(value)
