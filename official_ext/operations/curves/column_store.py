"""Keeps the columns of files of events: in memory, as far as there is room, and on disk, for the next process.

The data on disk is only a cache, as index.py's is: it lies in the user's cache folder, is believed if its checksum is
right and the file has grown since, or is unchanged, and may be deleted at any time.
"""

import collections
import io
import json
import os
import threading
import time
import zlib

import numpy as np

import official_ext
from official_ext.base.files import cache
from official_ext.base.files import paths
from official_ext.operations.curves import event_columns

MAX_BYTES = 48 << 20  # In memory.
_MAX_DISK_BYTES = 1 << 30
_WORTH_KEEPING = 1 << 20  # So much of a file must have been looked through since it was kept last.
_FORMAT = 1


class ColumnStore:
  """The columns of files that were looked at last. Threads may share it."""

  def __init__(self, cache_folder: str | None = None, max_bytes: int = MAX_BYTES):
    """Reads nothing yet.

    Args:
      cache_folder: where the cache is; None: in the user's cache folder.
      max_bytes: the memory that `trim` leaves in use.
    """
    self._folder = cache_folder or os.path.join(cache.root(), 'curves')
    self._max_bytes = max_bytes
    self._lock = threading.Lock()
    self._known: collections.OrderedDict[str, event_columns.EventColumns] = collections.OrderedDict()
    self._kept: dict[str, int] = {}  # How much of each had been looked through when it was written to the cache.

  def columns(self, path: str) -> event_columns.EventColumns:
    """The current columns of a file; those of an empty one if it is missing."""
    with self._lock:
      found = self._known.get(path)
      is_new = found is None
      if found is None:
        found = self._known[path] = event_columns.EventColumns(path)
      self._known.move_to_end(path)
    with found.lock:
      if is_new:
        self._load(found)
      found.update()
    return found

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
    return os.path.join(self._folder, f'{cache.key_of(os.path.realpath(path))}.npz')

  def _load(self, columns: event_columns.EventColumns) -> None:
    try:
      content = paths.read(self._cache_path(columns.path), _MAX_DISK_BYTES)
      header, _, content = content.partition(b'\n')
      expected = {'format': _FORMAT, 'version': official_ext.__version__, 'crc': zlib.crc32(content)}
      if json.loads(header) != expected:
        return
      with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
      values = json.loads(found.pop('values').tobytes())
      columns.restore(values, found)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
      return
    self._kept[columns.path] = columns.bytes_read

  def _keep(self, columns: event_columns.EventColumns) -> None:
    """Writes the columns of a file to the cache, if that saves reading much of it. If it cannot, nothing is lost."""
    if columns.bytes_read - self._kept.get(columns.path, 0) < _WORTH_KEEPING:
      return
    self._kept[columns.path] = columns.bytes_read
    values, arrays = columns.state()
    file = io.BytesIO()
    np.savez(file, values=np.frombuffer(json.dumps(values).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
    content = file.getvalue()
    header = {'format': _FORMAT, 'version': official_ext.__version__, 'crc': zlib.crc32(content)}
    path = self._cache_path(columns.path)
    try:
      os.makedirs(self._folder, exist_ok=True)
      temporary = f'{path}.tmp-{os.getpid()}-{threading.get_ident()}'
      paths.write_atomically(path, json.dumps(header).encode() + b'\n' + content, temporary, sync=False)
      self._make_room()
    except OSError:
      pass

  def _make_room(self) -> None:
    """Deletes the oldest entries if there are too many, and the leftovers of killed processes."""
    with os.scandir(self._folder) as entries:
      found = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries)
    size = sum(each[1] for each in found)
    for changed, length, path in found:
      if size > _MAX_DISK_BYTES or ('.tmp-' in path and time.time() - changed > 3600):
        os.unlink(path)
        size -= length
