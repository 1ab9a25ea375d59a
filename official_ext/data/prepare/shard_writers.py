"""Writers of the files of shards, chosen by the ending of their name. No TensorFlow.

A process that has read ArrayRecord files must not fork one that writes them; this one may do both.
"""

from collections.abc import Iterator
import contextlib
import re
from typing import Any

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.data import tf_records

_OPTIONS = 'group_size:1'  # Each record is read by itself.
_REASON = re.compile(r': ([^;]+);')


class ArrayRecordShard:
  """Writes an ArrayRecord file. Use it as a context: at its end the file is complete."""

  def __init__(self, path: str, temporary: str):
    """Begins a file.

    Args:
      path: the name in messages.
      temporary: the file to write.
    """
    from array_record.python import array_record_module  # pylint: disable=g-import-not-at-top

    self._module = array_record_module
    self._path = path
    self._temporary = temporary
    self.count = 0

  def __enter__(self) -> 'ArrayRecordShard':
    with _explained(self._path):
      self._writer = self._module.ArrayRecordWriter(self._temporary, _OPTIONS)
    return self

  def write(self, row: bytes) -> None:
    """Appends a record."""
    with _explained(self._path):
      self._writer.write(row)
    self.count += 1

  def __exit__(self, kind: object, *_: object) -> None:
    if kind is not None:
      with contextlib.suppress(RuntimeError):
        self._writer.close()
      return
    with _explained(self._path):
      self._writer.close()
    self._check_count()

  def _check_count(self) -> None:
    """A writer of files may fail silently; the number of records is at the file's end."""
    with _explained(self._path):
      reader = self._module.ArrayRecordReader(self._temporary)
      try:
        found = reader.num_records()
      finally:
        reader.close()
    if found != self.count:
      raise errors.StorageError(f'{self._path}: cannot be written: {found} of {self.count} records have arrived')


class TFRecordShard:
  """Writes a TFRecord file. Use it as a context: at its end the file is complete."""

  def __init__(self, path: str, temporary: str):
    """Takes the name in messages, and the file to write."""
    self._path = path
    self._temporary = temporary
    self.count = 0

  def __enter__(self) -> 'TFRecordShard':
    with paths.storing(self._path):
      self._file = open(self._temporary, 'wb')
    return self

  def write(self, row: bytes) -> None:
    """Appends a record."""
    with paths.storing(self._path):
      self._file.write(tf_records.framed(row))
    self.count += 1

  def __exit__(self, kind: object, *_: object) -> None:
    if kind is not None:
      with contextlib.suppress(OSError):
        self._file.close()
      return
    with paths.storing(self._path):
      self._file.close()


def writer_of(path: str) -> type[Any]:
  """The class that writes a file of this name."""
  return TFRecordShard if path.endswith(tf_records.ENDING) else ArrayRecordShard


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
  """A context in which ArrayRecord is written: its errors become one that names the file."""
  try:
    yield
  except RuntimeError as error:
    if isinstance(error, errors.StorageError):
      raise
    match = _REASON.search(str(error))
    reason = match[1] if match else ' '.join(str(error).split())[:200]
    raise errors.StorageError(f'{path}: cannot be written: {reason}') from error
