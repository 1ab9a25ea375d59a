"""Advisory locks on local files (flock), which the kernel releases however their process ends. No TensorFlow."""

import errno
import os
import time

from official_ext.base.files import regular_files

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


def is_held(path: str) -> bool:
  """Whether a process holds the lock on a file; the one that asks counts too, unless it has inherited it."""
  try:
    file = regular_files.open_descriptor(path, os.O_RDONLY)
  except FileNotFoundError:
    return False
  try:
    return try_lock(file, shared=True) is None  # Those who only ask are not in each other's way.
  finally:
    os.close(file)


def is_at(file: int, path: str) -> bool:
  """Whether an open file is still the one at a path."""
  try:
    return os.path.samestat(os.fstat(file), os.stat(path))
  except FileNotFoundError:
    return False


class FileLock:
  """A context in which one process at a time is. Its file is made if it is missing, and stays.

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
      self.descriptor = regular_files.open_descriptor(self._path, os.O_RDWR | os.O_CREAT)
      try:
        locked = try_lock(self.descriptor)
        if locked is not None and is_at(self.descriptor, self._path):  # Its folder may have been moved away meanwhile.
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
