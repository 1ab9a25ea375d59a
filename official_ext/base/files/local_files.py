"""Local files: opens regular files only, reads up to a size, and locks files as long as a process lives.

A run's folder may hold anything under the names of its files: a named pipe whose writer never comes, a link to
/dev/zero, a file of many gigabytes. Each reader opens such a file here and states how much it is willing to read.

Locks are advisory (flock). The kernel releases them however their process ends.
"""

from collections.abc import Iterator
import errno
import os
import stat
import time
from typing import BinaryIO

MAX_RECORD = 16 << 20  # Bytes. For files that hold one record, or a few: larger ones were not written by this library.
_MEGABYTE = 1 << 20


class UnreadableError(OSError):
  """There is something that no reader should read: not a regular file, a loop of links, or more than expected."""

  def __str__(self) -> str:
    return f'{self.filename}: {self.strerror}'


def open_to_read(path: str, buffering: int = -1) -> BinaryIO:
  """Opens a regular file, or a link to one.

  The check reads the kind of the opened descriptor, so that the file cannot be replaced after the check. Opening never
  waits for the other end of a pipe.

  Args:
    path: a local path.
    buffering: see `open`.

  Raises:
    FileNotFoundError: there is no file.
    IsADirectoryError: it is a folder.
    UnreadableError: it is not a regular file.
    OSError: it cannot be opened.
  """
  descriptor = open_descriptor(path, os.O_RDONLY)
  try:
    return open(descriptor, 'rb', buffering=buffering)
  except BaseException:
    os.close(descriptor)
    raise


def open_descriptor(path: str, flags: int) -> int:
  """Opens a regular file as `os.open` does, without waiting for another process. Returns its descriptor.

  Args:
    path: a local path.
    flags: see `os.open`. A file that O_CREAT makes has the permissions 0o666, less the process's umask.

  Raises:
    OSError: see `open_to_read`.
  """
  try:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
  except OSError as error:
    if error.errno == errno.ENXIO:  # A socket, or a pipe without a reader.
      raise _irregular(path) from None
    if error.errno == errno.ELOOP:
      raise UnreadableError(error.errno, 'is a loop of links', path) from None
    raise
  try:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
      raise IsADirectoryError(errno.EISDIR, 'is a folder', path)
    if not stat.S_ISREG(mode):
      raise _irregular(path)
    os.set_blocking(descriptor, True)
  except BaseException:
    os.close(descriptor)
    raise
  return descriptor


def check_regular(path: str) -> None:
  """Makes sure that a file which another library will open is a regular one.

  Raises:
    OSError: see `open_to_read`.
  """
  os.close(open_descriptor(path, os.O_RDONLY))


def read_whole(file: BinaryIO, path: str, max_bytes: int | None) -> bytes:
  """The content of an open file from its position on.

  Args:
    file: the file, opened for reading bytes.
    path: its path, for the error.
    max_bytes: the size above which it is refused; None: no bound.

  Raises:
    UnreadableError: it is larger, or grows beyond the bound while it is read.
  """
  if max_bytes is None:
    return file.read()
  content = file.read(max_bytes + 1)
  if len(content) > max_bytes:
    raise UnreadableError(errno.EFBIG, f'is larger than {_size(max_bytes)}', path)
  return content


def read_lines(file: BinaryIO, max_line: int) -> Iterator[bytes]:
  """The lines of an open file, each with its newline. A longer one counts as empty, and is never in memory as a whole.

  Args:
    file: the file, opened for reading bytes.
    max_line: the length of the longest line, in bytes.
  """
  while line := file.readline(max_line):
    if len(line) == max_line and not line.endswith(b'\n'):
      while len(line) == max_line and not line.endswith(b'\n'):
        line = file.readline(max_line)
      line = b'\n'
    yield line


def _irregular(path: str) -> UnreadableError:
  return UnreadableError(errno.EINVAL, 'is not a regular file', path)


def _size(num_bytes: int) -> str:
  return f'{num_bytes // _MEGABYTE} MB' if num_bytes >= _MEGABYTE else f'{num_bytes} bytes'


try:
  import fcntl
except ImportError:  # Not a POSIX system: there are no locks.
  fcntl = None  # type: ignore[assignment]

_UNSUPPORTED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)
_POLL_SECONDS = 0.02


def try_lock(file: int, shared: bool = False) -> bool | None:
  """Locks an open file. False if its file system knows no locks, None if another process has it."""
  if fcntl is None:
    return False
  try:
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    return True
  except BlockingIOError:
    return None
  except OSError as error:
    if error.errno in _UNSUPPORTED:
      return False
    raise


def is_locked(path: str) -> bool:
  """Whether a process holds the lock on a file; the one that asks counts too, unless it has inherited it."""
  try:
    file = open_descriptor(path, os.O_RDONLY)
  except FileNotFoundError:
    return False
  try:
    return try_lock(file, shared=True) is None  # Processes that only ask do not exclude each other.
  finally:
    os.close(file)


def is_lock_at(file: int, path: str) -> bool:
  """Whether an open file is still the one at a path."""
  try:
    return os.path.samestat(os.fstat(file), os.stat(path))
  except FileNotFoundError:
    return False


class FileLock:
  """A context that one process at a time enters. Its file is made if it is missing, and stays.

  On a file system without locks every process is let in.

  Attributes:
    descriptor: of the locked file. A process that inherits it shares the lock, which ends when both have closed it.
  """

  def __init__(self, path: str, patience_seconds: float = 10.0):
    """Takes no lock yet.

    Args:
      path: of the file, in a folder that exists.
      patience_seconds: how long to wait for another process.
    """
    self._path = path
    self._patience_seconds = patience_seconds
    self.descriptor = -1

  def __enter__(self) -> 'FileLock':
    """Takes the lock.

    Raises:
      TimeoutError: another process has it.
      OSError: the file cannot be opened. FileNotFoundError: its folder is missing too.
    """
    deadline = time.monotonic() + self._patience_seconds
    while True:
      self.descriptor = open_descriptor(self._path, os.O_RDWR | os.O_CREAT)
      try:
        locked = try_lock(self.descriptor)
        if locked is not None and is_lock_at(
          self.descriptor, self._path
        ):  # Its folder may have been moved away meanwhile.
          return self
      except BaseException:
        self._close()
        raise
      self._close()
      if time.monotonic() > deadline:
        raise TimeoutError(errno.ETIMEDOUT, 'another process holds it', self._path)
      time.sleep(_POLL_SECONDS)

  def __exit__(self, *_: object) -> None:
    self._close()

  def _close(self) -> None:
    if self.descriptor >= 0:
      os.close(self.descriptor)
      self.descriptor = -1
