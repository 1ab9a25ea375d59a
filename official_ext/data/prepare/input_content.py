"""The content of input files: its digests, and whether it has changed since they were computed. No TensorFlow."""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import dataclasses
import hashlib
import os

from official_ext.base import errors

_BLOCK = 2**22
_NUM_THREADS = 8


@dataclasses.dataclass(frozen=True)
class FileContent:
  """The content of a file.

  Attributes:
    sha256: its digest.
    num_bytes: its size.
    state: distinguishes the file from another, or a changed one, on this machine: no program can set all of it back.
  """

  sha256: str
  num_bytes: int
  state: tuple[int, ...]


def read(paths: Sequence[str], check: Callable[[], None] = lambda: None) -> dict[str, FileContent]:
  """The content of each file, which is read for it, several at a time.

  Args:
    paths: the files.
    check: called every few megabytes; its exceptions end the reading.

  Raises:
    UserError: one cannot be read.
  """
  paths = list(dict.fromkeys(paths))
  with futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
    try:
      return dict(zip(paths, pool.map(lambda path: _read(path, check), paths)))
    except BaseException:
      pool.shutdown(wait=True, cancel_futures=True)
      raise


def changed(contents: Mapping[str, FileContent]) -> list[str]:
  """The files whose content is another one by now. Only those are read that were written to, or replaced."""
  touched = [path for path, content in contents.items() if _state(path) != content.state]
  return [path for path in touched if not os.path.isfile(path) or _read(path).sha256 != contents[path].sha256]


def _read(path: str, check: Callable[[], None] = lambda: None) -> FileContent:
  state, total, num_bytes = _state(path), hashlib.sha256(), 0
  try:
    with open(path, 'rb') as f:
      while block := f.read(_BLOCK):
        total.update(block)
        num_bytes += len(block)
        if len(block) == _BLOCK:
          check()
  except OSError as error:
    raise errors.UserError(f'{path}: cannot be read: {error.strerror}') from error
  return FileContent(total.hexdigest(), num_bytes, state)


def _state(path: str) -> tuple[int, ...]:
  try:
    found = os.stat(path)
  except OSError:
    return ()
  return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
