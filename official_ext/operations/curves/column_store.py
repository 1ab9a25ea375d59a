"""Keeps the columns of files of events: in memory, as far as there is room, and on disk, for the next process.

The data on disk is only a cache, in the user's cache folder, and may be deleted at any time. An entry counts if its
checksum is right and the file is unchanged or has only grown.
"""

import collections
from collections.abc import Callable, Iterable, Iterator
import contextlib
import json
import os
import threading
import time
from typing import Any
import zlib

import numpy as np

import official_ext.base
from official_ext.base import json_values
from official_ext.base.files import cache
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.operations.curves import event_columns
from official_ext.operations.curves import event_lines

MAX_BYTES = 48 << 20  # In memory.
_MAX_DISK_BYTES = 1 << 30
_WORTH_KEEPING = 1 << 20  # Bytes of a file that must have been read since it was kept last.
_FORMAT = 3
_CRC_BYTES = 4
_BLOCK = 1 << 20  # Bytes that are copied at a time.
_MUCH = 16 << 20  # Reading this much takes long enough that a sample is shown first.


class ColumnStore:
  """The columns of files that were looked at last. Threads may share it."""

  def __init__(
    self,
    cache_folder: str | None = None,
    max_bytes: int = MAX_BYTES,
    fill: Callable[[str, str, list[str]], bool] | None = None,
  ):
    """Reads nothing yet.

    Args:
      cache_folder: where the cache is; None: in the user's cache folder.
      max_bytes: the memory that `trim` leaves in use.
      fill: fills the cache of a long file for `sample`, see column_filler.run; None for no samples.
    """
    self._fill = fill
    self._folder = cache_folder or os.path.join(cache.root(), 'curves')
    self._max_bytes = max_bytes
    self._lock = threading.Lock()
    self._known: collections.OrderedDict[str, event_columns.EventColumns] = collections.OrderedDict()
    self._kept: dict[str, int] = {}  # How much of each had been looked through when it was written to the cache.
    self._samples: dict[str, event_lines.EventSample] = {}  # Of files that are being read.

  def columns(self, path: str) -> event_columns.EventColumns:
    """The current columns of a file; a missing one counts as empty."""
    found = self._entry(path)
    found.update()
    return found

  def _entry(self, path: str) -> event_columns.EventColumns:
    """The columns of a file as far as it was read."""
    with self._lock:
      found = self._known.get(path)
      is_new = found is None
      if found is None:
        found = self._known[path] = event_columns.EventColumns(path, self._folder)
      self._known.move_to_end(path)
      if is_new:
        self._load(found)  # With the lock: others must not take it for unread.
    return found

  def sample(self, path: str, names: Iterable[str] = ()) -> event_lines.EventSample | None:
    """A sample of a long file that was not read yet, while it is being read; None if it was read, or is short.

    Args:
      path: of the file.
      names: the names whose values are needed.
    """
    size, names = paths.size(path), list(names)
    if self._fill is None or size < _MUCH or self._entry(path).bytes_behind(names, size) < _MUCH:
      return None
    with self._lock:
      found = self._samples.get(path)
    is_new = found is None
    made = found or event_lines.EventSample(path)
    with self._lock:
      found = self._samples.setdefault(path, made)
      found.wanted.update(dict.fromkeys(names))
    if is_new and found is made:
      threading.Thread(target=self._read_all, args=(path, found), daemon=True).start()
    return found

  def _read_all(self, path: str, sample: event_lines.EventSample) -> None:
    """Has a file read, and the values of all names that are wanted meanwhile."""
    done: set[str] | None = None
    while True:
      with self._lock:
        names = list(sample.wanted)
        if done is not None and done.issuperset(names):
          del self._samples[path]
          return
      done = set(names)
      size = paths.size(path)
      has_filled = self._fill is not None and self._fill(self._folder, path, names)
      with self._lock:
        self._known.pop(path, None)  # The cache has more.
      if not has_filled or self._entry(path).bytes_behind(names, size) >= _MUCH:
        self._fill = None  # There is no place for the cache: from now on, readers read files themselves.

  def trim(self) -> None:
    """Writes new columns to the cache, and forgets the least recently used if there are too many."""
    with self._lock:
      known = list(self._known.values())
    for each in known:
      self._keep(each)
    with self._lock:
      size = sum(each.nbytes for each in self._known.values())
      while size > self._max_bytes and len(self._known) > 1:
        _, gone = self._known.popitem(last=False)
        size -= gone.nbytes

  def _cache_path(self, path: str) -> str:
    return os.path.join(self._folder, f'{cache.key_of(os.path.realpath(path))}.columns')

  def _load(self, columns: event_columns.EventColumns) -> None:
    """Takes the columns of a file from the cache. Nothing of an entry counts before its end was seen to be right."""
    try:
      with local_files.open_to_read(self._cache_path(columns.path)) as file:
        if os.fstat(file.fileno()).st_size > _MAX_DISK_BYTES:
          return
        line = file.readline(_BLOCK)
        header = json.loads(line)
        if (header['format'], header['version']) != (_FORMAT, official_ext.base.__version__):
          return
        content, arrays = file.read(header['length']), {}
        values, crc = json.loads(content), zlib.crc32(line + content)
        for name, (dtype, length) in header['arrays'].items():
          arrays[name] = event_columns.GrowingArray(dtype, self._folder)
          for block in _blocks(file, length * arrays[name].dtype.itemsize):
            crc = zlib.crc32(block, crc)
            arrays[name].append(np.frombuffer(block, arrays[name].dtype))
        if crc != int.from_bytes(file.read(_CRC_BYTES), 'big'):
          return
        columns.restore(values, arrays)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
      return
    self._kept[columns.path] = columns.bytes_read

  def _keep(self, columns: event_columns.EventColumns) -> None:
    """Writes the columns of a file to the cache, if that saves reading much of it. If it cannot, nothing is lost."""
    if columns.bytes_read - self._kept.get(columns.path, 0) < _WORTH_KEEPING:
      return
    self._kept[columns.path] = columns.bytes_read
    path = self._cache_path(columns.path)
    temporary = f'{path}.tmp-{os.getpid()}-{threading.get_ident()}'
    try:
      os.makedirs(self._folder, exist_ok=True)
      with columns.lock, open(temporary, 'wb') as file:
        _write(file, *columns.state())
      os.replace(temporary, path)
      self._make_room()
    except OSError:
      with contextlib.suppress(OSError):
        os.unlink(temporary)

  def _make_room(self) -> None:
    """Deletes the oldest entries if there are too many, and the leftovers of killed processes."""
    with os.scandir(self._folder) as entries:
      found = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries)
    size = sum(each[1] for each in found)
    for changed, length, path in found:
      if size > _MAX_DISK_BYTES or ('.tmp-' in path and time.time() - changed > 3600):
        os.unlink(path)
        size -= length


def _write(file: Any, values: json_values.JsonObject, arrays: dict[str, event_columns.GrowingArray]) -> None:
  """Writes an entry: a header in a line, JSON values, the arrays, and a checksum of these."""
  content = json.dumps(values).encode()
  sizes = {name: (each.dtype.str, len(each)) for name, each in arrays.items()}
  header = {'format': _FORMAT, 'version': official_ext.base.__version__, 'length': len(content), 'arrays': sizes}
  head = json.dumps(header).encode() + b'\n' + content
  file.write(head)
  crc = zlib.crc32(head)
  for each in arrays.values():
    length = _BLOCK // each.dtype.itemsize
    for first in range(0, len(each), length):
      block = each.array[first : first + length].tobytes()
      crc = zlib.crc32(block, crc)
      file.write(block)
    each.release()
  file.write(crc.to_bytes(_CRC_BYTES, 'big'))


def _blocks(file: Any, length: int) -> Iterator[bytes]:
  """The next bytes of a file.

  Raises:
    ValueError: it has fewer.
  """
  while length:
    block = file.read(min(_BLOCK, length))
    if not block:
      raise ValueError('it ends too early')
    yield block
    length -= len(block)
