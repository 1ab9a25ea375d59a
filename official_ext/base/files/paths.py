"""Files by their exact path, on local and remote file systems: a path is never a pattern.

`tf.io.gfile.glob` reads every `[`, `*`, `?` and backslash of a path as part of a pattern, so that a run in `m/run[1]`
would find the files of `m/run1` instead of those of that run. This module lists folders and matches names. Paths such
as `gs://bucket/run` need TensorFlow, which is imported for these alone.
"""

from collections.abc import Iterator
import contextlib
import ctypes
import errno
import os
import re
import shutil
from typing import Any, BinaryIO

from official_ext.base import errors
from official_ext.base.files import regular_files

_HOME = re.compile(r'^~[^/]*(?=/|$)')
# A disk that is full or fails, which is not a mistake of the user: a retry may succeed.
FULL_OR_FAILING = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
# The file system cannot sync this. Any other error means that written data may be lost.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)

_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # Of Linux: renameat2(2).


def is_remote(path: str) -> bool:
  """Whether a path names its file system: `gs://bucket/run`."""
  return '://' in path


def names(folder: str) -> list[str]:
  """The names in a folder, sorted; [] if there is no such folder."""
  if is_remote(folder):
    gfile = _gfile()
    return sorted(name.rstrip('/') for name in gfile.listdir(folder)) if gfile.isdir(folder) else []
  try:
    return sorted(os.listdir(folder or '.'))
  except (FileNotFoundError, NotADirectoryError):
    return []


def matching(folder: str, pattern: str) -> list[str]:
  """Paths of a folder's contents, by name.

  Args:
    folder: its path, taken literally.
    pattern: a regular expression for whole names.

  Returns:
    The paths, sorted; [] if there is no such folder.
  """
  return [os.path.join(folder, name) for name in names(folder) if re.fullmatch(pattern, name)]


def refuse_used(folder: str) -> None:
  """Refuses the path of a new folder where something is already; an empty folder is nothing.

  Raises:
    UserError: with the path.
  """
  if is_remote(folder):
    is_file = _gfile().exists(folder) and not _gfile().isdir(folder)
  else:
    is_file = os.path.lexists(folder) and not os.path.isdir(folder)
  if is_file or names(folder):
    raise errors.UserError(f'{folder}: exists already; name a folder that does not, or an empty one')


def absolute(path: str) -> str:
  """A path that does not depend on the current folder."""
  return path if is_remote(path) else os.path.abspath(path)


def exists(path: str) -> bool:
  """Whether there is a file or a folder."""
  return _gfile().exists(path) if is_remote(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
  """Whether there is a folder."""
  return _gfile().isdir(path) if is_remote(path) else os.path.isdir(path)


def size_and_time(path: str) -> tuple[int, float]:
  """The size of a file in bytes, and its modification time in seconds since 1970.

  Raises:
    OSError: there is none, or it cannot be read.
  """
  if not is_remote(path):
    found = os.stat(path)
    return found.st_size, found.st_mtime
  with _os_errors(path):
    remote = _gfile().stat(path)
    return remote.length, remote.mtime_nsec / 1e9


def size(path: str) -> int:
  """The bytes of a local file; 0 if there is none, or it cannot be read."""
  try:
    return os.stat(path).st_size
  except OSError:
    return 0


def folder_size(folder: str) -> int:
  """The bytes of all files in a local folder and in those below it."""
  return sum(os.path.getsize(os.path.join(base, name)) for base, _, names in os.walk(folder) for name in names)


def read(path: str, max_bytes: int | None = None, pipes: bool = False) -> bytes:
  """The content of a regular file: see regular_files.py.

  Args:
    path: its path.
    max_bytes: the size above which it is refused; None: no bound.
    pipes: whether to read a pipe too, as of a file that the user names: `--config_file=<(...)`.

  Raises:
    FileNotFoundError: there is none.
    OSError: it cannot be read, or is larger. IsADirectoryError: it is a folder.
  """
  may_be_pipe = pipes and not is_remote(path)
  with _os_errors(path), open(path, 'rb') if may_be_pipe else open_to_read(path) as file:
    return regular_files.read_whole(file, path, max_bytes)


def lines(path: str, max_bytes: int = 2**20) -> list[str]:
  """The lines of a text file; [] if it cannot be read."""
  try:
    return read(path, max_bytes).decode('utf-8', 'replace').splitlines()
  except OSError:
    return []


def open_to_read(path: str) -> BinaryIO:
  """Opens a regular file for reading bytes: see regular_files.py. The result is a context that closes it.

  Raises:
    FileNotFoundError: there is none.
    OSError: it cannot be read. IsADirectoryError: it is a folder.
  """
  if not is_remote(path):
    return regular_files.open_to_read(path)
  with _os_errors(path):
    if _gfile().isdir(path):
      raise IsADirectoryError(errno.EISDIR, 'is a folder', path)
    if not _gfile().exists(path):
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return _gfile().GFile(path, 'rb')


@contextlib.contextmanager
def _os_errors(path: str) -> Iterator[None]:
  """A context in which the errors of a remote file system become OSError."""
  if not is_remote(path):
    yield
    return
  try:
    yield
  except _op_error() as error:
    kind = FileNotFoundError if type(error).__name__ == 'NotFoundError' else OSError
    raise kind(f'{path}: {error}') from error


@contextlib.contextmanager
def storing(folder: str) -> Iterator[None]:
  """A context in which files are written to a folder, or one file is: errors are reported in a line.

  Raises:
    StorageError: a file cannot be written.
  """
  try:
    yield
  except OSError as error:
    where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else folder
    raise errors.StorageError(f'{where}: cannot be written: {error.strerror or error}') from error


def write_atomically(path: str, content: bytes, temporary: str = '', sync: bool = True) -> None:
  """Writes a file under a temporary name, then renames it. A local file keeps its predecessor's permissions.

  After a power loss the file has this content, or the one before it.

  Args:
    path: the final path.
    content: its content.
    temporary: the path to write to first; empty: one that no other process uses.
    sync: whether to make the disk store a local file before it is renamed, and its name after that. Without it, a power
      loss may leave an empty or damaged file: only for files that may be lost.

  Raises:
    OSError: it cannot be written, or the disk may not have stored it, and it must be written again; `filename` says
      which.
  """
  temporary = temporary or f'{path}.tmp-{os.uname().nodename}-{os.getpid()}'
  if not is_remote(path):
    try:
      with open(temporary, 'wb') as f:
        f.write(content)
        if sync:
          f.flush()
          sync_descriptor(f.fileno())
      with contextlib.suppress(FileNotFoundError):
        shutil.copymode(path, temporary)
      os.replace(temporary, path)
      if sync:
        sync_to_disk(os.path.dirname(path))
    except OSError as error:
      if os.path.isfile(temporary):
        os.remove(temporary)
      if error.filename is None:  # The system's errors on an open file do not name the file.
        error.filename = path
      raise
    return
  try:
    with _gfile().GFile(temporary, 'wb') as f:
      f.write(content)
    _gfile().rename(temporary, path, overwrite=True)
  except _op_error() as error:
    raise OSError(f'{path}: {error}') from error


def sync_descriptor(descriptor: int) -> None:
  """Makes the disk store an open file or folder, if its file system can.

  Raises:
    OSError: it may not be stored, as after EIO or ENOSPC. The system reports that once, and takes the content as stored
      from then on: write it again, do not just sync again.
  """
  try:
    os.fsync(descriptor)
  except OSError as error:
    if error.errno not in _CANNOT_SYNC:
      raise


def sync_to_disk(path: str) -> None:
  """Makes the disk store a local file's content, or the names in a local folder; '' is the current one.

  Only synced changes are certain after a power loss: a file's content by syncing the file, its name, and that a name is
  gone, by syncing the folder. Remote storage has stored a file when it is closed.

  Raises:
    OSError: see `sync_descriptor`; or there is no such path.
  """
  if is_remote(path):
    return
  try:
    descriptor = os.open(path or '.', os.O_RDONLY | os.O_CLOEXEC)
  except PermissionError:
    if os.path.isdir(path):  # One may add names to a folder that one may not read; it cannot be synced.
      return
    raise
  try:
    sync_descriptor(descriptor)
  except OSError as error:
    error.filename = path
    raise
  finally:
    os.close(descriptor)


def sync_tree(folder: str) -> None:
  """Makes the disk store a local folder with all files and folders in it, but not the folder's own name.

  Raises:
    OSError: see `sync_descriptor`.
  """
  for base, _, files in os.walk(folder, topdown=False):
    for file in (os.path.join(base, name) for name in files):
      if os.path.isfile(file) and not os.path.islink(file):
        sync_to_disk(file)
    sync_to_disk(base)


def make_folder(folder: str, mode: int = 0o777) -> None:
  """Makes a folder, and its missing parents; the disk stores their names.

  Args:
    folder: its path.
    mode: the permissions of the folder itself, if it is made.

  Raises:
    OSError: it cannot be made.
  """
  if not is_remote(folder):
    made, path = [], folder.rstrip('/') or folder
    while path and not os.path.isdir(path):
      made.append(path)
      path = os.path.dirname(path)
    os.makedirs(folder or '.', mode, exist_ok=True)
    for path in made:
      sync_to_disk(os.path.dirname(path))
    return
  try:
    _gfile().makedirs(folder)
  except _op_error() as error:
    raise OSError(f'{folder}: {error}') from error


def rename(path: str, target: str) -> None:
  """Renames a local file or folder, whose content is synced; the disk stores the new name and then the loss of the old.

  Raises:
    OSError: it cannot be renamed, or the disk may not have stored it.
  """
  os.rename(path, target)
  parents = [os.path.dirname(target), os.path.dirname(path)]
  for parent in dict.fromkeys(parents):
    sync_to_disk(parent)


def exchange(path: str, other: str) -> bool:
  """Lets two local files or folders exchange their names, so that at no moment either name is missing.

  Returns:
    False, and nothing has changed, if this system or the file system cannot.

  Raises:
    OSError: one of them is missing, or may not be renamed.
  """
  renameat2 = getattr(ctypes.CDLL(None, use_errno=True), 'renameat2', None)
  if renameat2 is None:
    return False
  if not renameat2(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
    return True
  number = ctypes.get_errno()
  if number in _CANNOT_EXCHANGE:
    return False
  raise OSError(number, os.strerror(number), path, None, other)


def remove(path: str) -> None:
  """Deletes a file, if it exists; it does not come back with a power loss."""
  if is_remote(path):
    if _gfile().exists(path):
      _gfile().remove(path)
    return
  try:
    os.remove(path)
  except FileNotFoundError:
    return
  sync_to_disk(os.path.dirname(path))


def remove_folder(path: str) -> None:
  """Deletes a folder with all its content; of a symbolic link only the link, as the target is somebody else's."""
  if is_remote(path):
    _gfile().rmtree(path)
  elif os.path.islink(path):
    os.remove(path)
  else:
    shutil.rmtree(path)


def expand_home(path: str, where: str) -> str:
  """A path whose `~` or `~user` at the start is replaced by that home folder, as a shell does.

  Shells do not expand `--model_dir=~/run`, because the word does not begin with `~`.

  Args:
    path: any path.
    where: the flag or field that it is from.

  Raises:
    UserError: there is no such user.
  """
  home = _HOME.match(path)
  if home is None:
    return path
  expanded = os.path.expanduser(path)
  if expanded == path:
    raise errors.UserError(
      f'{where}: {path}: there is no home folder of {home.group()}; a folder of that name is written ./{path}'
    )
  return expanded


def check_utf8(text: str, where: str) -> None:
  """Refuses a path, or another text, with bytes that are not UTF-8: TensorFlow opens no file of such a name.

  Args:
    text: as Python reads it from the command line.
    where: the flag or field that it is from.

  Raises:
    UserError: it has such bytes.
  """
  try:
    text.encode()
  except UnicodeEncodeError:
    shown = text.encode(errors='backslashreplace').decode()
    raise errors.UserError(
      f'{where}: {shown}: is not UTF-8, and TensorFlow opens no such file; rename it, or link to it'
    ) from None


def _gfile() -> Any:
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  return tf.io.gfile


def _op_error() -> Any:
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  return tf.errors.OpError
