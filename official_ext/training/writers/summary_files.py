"""Event files of TensorBoard that stay readable when storage fails.

After a failed write, TensorFlow continues behind the incomplete record, and TensorBoard does not read beyond it. This
module cuts off the rest of a failed write, and begins another file as soon as there is room for it.
"""

import os
import struct
import tempfile
import time
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.files import storage

_LENGTH = struct.Struct('<Q')  # A record has 8 bytes of length, 4 of its checksum, the data, and 4 of their checksum.
_AROUND = 16
_MAX_UNWRITTEN = 100_000  # How many numbers may wait for room.
_ROOM = 1 << 16  # How many bytes must be free for another file.
# Only `flush` writes: it alone handles failed writes.
_NEVER = {'max_queue': 1 << 30, 'flush_millis': (1 << 31) - 1}


class SummaryFile(tf.summary.SummaryWriter):
  """The event files of one folder, one after the other: see base class.

  Numbers given to `scalar` while storage fails are written when there is room again; images, texts, and the values that
  a task writes by tf.summary inside its step, are lost. On a remote file system, a failure begins another file too, but
  its rest is not cut off.

  Attributes:
    failure: why the last flush could not write everything; None if it could.
  """

  def __init__(self, folder: str):
    """Begins a file.

    Raises:
      StorageError: it cannot be written.
    """
    self.failure: errors.StorageError | None = None
    self._untold: errors.StorageError | None = None
    self._folder = folder
    self._unwritten: list[tuple[str, Any, int]] = []  # The numbers since the last flush that succeeded.
    self._unsynced: list[tuple[str, Any, int]] = []  # Those before them, since the last sync that succeeded.
    self._is_writing = False
    self._checked = 0  # The number of bytes in whole records.
    known = self._files()
    try:
      paths.make_folder(folder)
      self._writer = tf.summary.create_file_writer(folder, **_NEVER)
      self._second = int(time.time())  # Of the file's name.
    except storage.FAILURES as error:
      for path in self._files() - known:
        storage.remove(path)
      raise storage.not_written(folder, error) from error
    self._path = self._new_file(known)

  # Attributes that TensorFlow's summary ops read. Compiled functions keep the resource: all files share it.

  @property
  def _resource(self):
    return tf_internals.resource_of(self._writer)

  @property
  def _mesh(self):
    return None

  def init(self):
    """See base class."""
    return self._writer.init()

  # Writing.

  def scalar(self, name: str, value: float | np.ndarray | tf.Tensor, step: int) -> None:
    """Writes a number at the next flush, or at the first one that succeeds."""
    if len(self._unwritten) < _MAX_UNWRITTEN:
      self._unwritten.append((name, value, step))
    if self.failure is None:
      self._write(tf.summary.scalar, name, value, step=step)

  def image(self, name: str, images: np.ndarray | tf.Tensor, step: int, max_outputs: int) -> None:
    """Writes images at the next flush."""
    if self.failure is None:
      self._write(tf.summary.image, name, images, step=step, max_outputs=max_outputs)

  def text(self, name: str, markdown: str, step: int) -> None:
    """Writes a text at the next flush."""
    if self.failure is None:
      self._write(tf.summary.text, name, markdown, step=step)

  def _write(self, function, *arguments, **options):
    self._is_writing = True  # The end of the context would flush.
    try:
      with self.as_default():
        function(*arguments, **options)
    finally:
      self._is_writing = False

  def flush(self) -> None:
    """Writes out everything, if it can, and sets `failure`: see base class."""
    if self._is_writing:
      return
    try:
      if self.failure is not None:
        self._begin_another()
      self._writer.flush()
      whole = self._end_of_records()
      if whole is None:
        raise errors.StorageError(f'{self._path}: cannot be written: it is gone, or a record was cut off')
    except (errors.StorageError, *storage.FAILURES) as error:
      self.failure = self._untold = storage.not_written(self._path or self._folder, error)
      return
    self._unsynced += self._unwritten
    del self._unsynced[:-_MAX_UNWRITTEN]
    self._checked, self._unwritten, self.failure = whole, [], None

  def sync(self) -> None:
    """Flushes, and makes the disk store the file.

    If the disk may not have stored it, `failure` is set, and the next flush writes the numbers again, to another file.
    """
    self.flush()
    if self.failure is not None:
      return
    if self._path is not None:
      try:
        paths.sync_to_disk(self._path)
        paths.sync_to_disk(self._folder)
      except OSError as error:
        self.failure = self._untold = storage.not_written(self._path, error)
        self._unwritten = self._unsynced + self._unwritten
    self._unsynced = []

  def take_failure(self) -> errors.StorageError | None:
    """Returns and forgets the last failure, even if everything is written by now."""
    failure, self._untold = self._untold or self.failure, None
    return failure

  def close(self) -> None:
    """See base class.

    Raises:
      StorageError: not everything could be written.
    """
    self.sync()
    try:
      self._writer.close()
    except storage.FAILURES:
      pass
    if self.failure is not None:
      self._cut()
      raise self.failure

  # Another file.

  def _begin_another(self) -> None:
    """Ends the file that has failed, and begins another one with the numbers that wait.

    Raises:
      StorageError, OSError, tf.errors.OpError: it cannot be written.
    """
    paths.make_folder(self._folder)
    self._check_room()
    self._create(None)
    self._cut()
    self._wait_for_another_second()
    known = self._files()
    try:
      self._create(self._folder)
    except storage.FAILURES:
      self._create(tempfile.gettempdir())  # Summary ops inside a step need a writer.
      raise
    self._path, self._checked, self.failure = self._new_file(known), 0, None
    for name, value, step in self._unwritten:
      self._write(tf.summary.scalar, name, value, step=step)

  def _wait_for_another_second(self) -> None:
    """Waits until a new file's name is after that of the present one: TensorBoard reads files in the order of names.

    Names begin with the second. Files of one second are numbered without leading zeros, so 10 is before 9.
    """
    end = time.monotonic() + 1.0
    while int(time.time()) == self._second and time.monotonic() < end:
      time.sleep(0.02)
    self._second = int(time.time())

  def _check_room(self) -> None:
    path = os.path.join(self._folder, f'.room-{os.getpid()}')
    try:
      with tf.io.gfile.GFile(path, 'wb') as f:
        f.write(bytes(_ROOM))
    finally:
      storage.remove(path)

  def _create(self, folder: str | None) -> None:
    """Makes another writer for the resource; None only removes the present one."""
    with tf.device('CPU:0'):
      try:
        tf.raw_ops.CloseSummaryWriter(writer=self._resource)
      except storage.FAILURES:  # There is none, or it could not write its last records.
        pass
      if folder is not None:
        number = len(self._files())
        tf.raw_ops.CreateSummaryFileWriter(
          writer=self._resource, logdir=folder, filename_suffix=f'.{os.getpid()}.{number}.{id(self)}.v2', **_NEVER
        )

  def _cut(self) -> None:
    """Cuts the file after its last whole record; removes it if its only record is that of the version."""
    if self._path is None or not os.path.exists(self._path):
      return
    try:
      whole = _end_of_records(self._path, 0)
      if not _has_values(self._path, whole):
        os.remove(self._path)
      elif whole < os.path.getsize(self._path):
        os.truncate(self._path, whole)
    except OSError:  # The failure of this file is reported already.
      pass

  def _end_of_records(self) -> int | None:
    """The end of the file's records; None if something else follows them, or if there is no file."""
    if self._path is None:  # The file is remote.
      return self._checked
    if not os.path.isfile(self._path):
      return None
    whole = _end_of_records(self._path, self._checked)
    return whole if whole == os.path.getsize(self._path) else None

  def _files(self) -> set[str]:
    """This process's files in the folder."""
    if '://' in self._folder or not os.path.isdir(self._folder):
      return set()
    return {entry.path for entry in os.scandir(self._folder) if f'.{os.getpid()}.' in entry.name}

  def _new_file(self, known: set[str]) -> str | None:
    """The file that was made after those of `known`, if it is local."""
    return max(self._files() - known, default=None)


def _end_of_records(path: str, start: int) -> int:
  """The end of the last whole record, in a file whose records are known to be whole up to `start`."""
  end, size = start, os.path.getsize(path)
  with regular_files.open_to_read(path) as f:
    while end + _AROUND <= size:
      f.seek(end)
      (length,) = _LENGTH.unpack(f.read(_LENGTH.size))
      if end + _AROUND + length > size:
        break
      end += _AROUND + length
  return end


def _has_values(path: str, whole: int) -> bool:
  """Whether a file has more than the record of its version."""
  with regular_files.open_to_read(path) as f:
    head = f.read(_LENGTH.size)
  return len(head) == _LENGTH.size and whole > _AROUND + _LENGTH.unpack(head)[0]
