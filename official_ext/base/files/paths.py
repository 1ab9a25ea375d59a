"""Files by their exact path, on local and remote file systems: a path is never a pattern.

`tf.io.gfile.glob` reads every `[`, `*`, `?` and backslash of a path as part of a pattern, so that a run in `m/run[1]`
would find the files of `m/run1` instead of those of that run. This module lists folders and matches names. Paths such
as `gs://bucket/run` need TensorFlow, which is imported for these alone.

`file:///runs/a` is `/runs/a`: `expanded`, `expand_home` and `absolute` make it that where a path comes in, so that a
run has the same locks, checks and synced writes under both names. The other functions read both.
"""

import atexit
from collections.abc import Iterator
import contextlib
import ctypes
import errno
import io
import os
import re
import shutil
import tempfile
from typing import Any, BinaryIO

from official_ext.base import errors
from official_ext.base.files import local_files

_HOME = re.compile(r'^~[^/]*(?=/|$)')
_FILE, _RAM, _GS = 'file://', 'ram://', 'gs://'
# A disk that is full or fails, which is not a mistake of the user: a retry may succeed.
FULL_OR_FAILING = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
# The file system cannot sync this. Any other error means that written data may be lost.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)

_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_REMOTE_BUFFER = 1 << 18  # Bytes.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # Of Linux: renameat2(2).


def is_remote(path: str) -> bool:
  """Whether a path names its file system: `gs://bucket/run`."""
  return '://' in path


def local(path: str) -> str:
  """A path without `file://`, which names the local file system; any other path unchanged.

  Raises:
    UserError: it names another host, as `file://run` does.
  """
  if not path.startswith(_FILE):
    return path
  host, slash, rest = path.removeprefix(_FILE).partition('/')
  if host not in ('', 'localhost') or not slash:
    raise errors.UserError(f'{path}: names the host {host!r}; write file:///FOLDER with three slashes, or /FOLDER')
  return f'/{rest.lstrip("/")}'


def names(folder: str) -> list[str]:
  """The names in a folder, sorted; [] if there is no such folder."""
  if is_remote(folder):
    with _os_errors(folder):
      return sorted(_children(folder)) if is_folder(folder) else []
  try:
    return sorted(os.listdir(folder or '.'))
  except (FileNotFoundError, NotADirectoryError):
    return []


def entries(folder: str) -> list[tuple[str, bool]]:
  """The names in a folder, sorted, each with whether it is a folder or a link to one; [] if there is no such folder."""
  if not is_remote(folder):
    return [(name, os.path.isdir(os.path.join(folder, name))) for name in names(folder)]
  if not is_folder(folder):
    return []
  with _os_errors(folder):
    marked = {name.rstrip('/') for name in _gfile().listdir(folder) if name.endswith('/')}  # As gs:// marks folders.
    found = sorted(_children(folder))
    is_marked = folder.startswith(_GS)
  return [(name, name in marked or (not is_marked and is_folder(os.path.join(folder, name)))) for name in found]


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
  is_there = exists(folder) if is_remote(folder) else os.path.lexists(folder)
  if (is_there and not is_folder(folder)) or names(folder):
    raise errors.UserError(f'{folder}: exists already; name a folder that does not, or an empty one')


def expanded(path: str) -> str:
  """A path that a user gives, as the system opens it: `~` is the home folder if there is one, `file://` is left out.

  Raises:
    UserError: `file://` names another host.
  """
  return os.path.expanduser(local(path))


def absolute(path: str) -> str:
  """A path that does not depend on the current folder. `file:///runs/a` becomes `/runs/a`."""
  path = local(path)
  return path if is_remote(path) else os.path.abspath(path)


def joined(folder: str, path: str) -> str:
  """A path that is written relative to a folder, such as `../base`: remote storage knows no `..`."""
  if not is_remote(folder) or is_remote(path):
    return path if is_remote(path) else os.path.join(folder, path)
  scheme, _, rest = folder.partition('://')
  return f'{scheme}://{os.path.normpath(os.path.join(rest, path))}'


def real(path: str) -> str:
  """A path in the form that is the same for all names of a file: absolute, local links followed."""
  path = local(path)
  if is_remote(path):
    scheme, _, rest = path.partition('://')
    return f'{scheme}://{rest.rstrip("/")}'
  return os.path.realpath(path)


def exists(path: str) -> bool:
  """Whether there is a file or a folder."""
  if not is_remote(path):
    return os.path.exists(path)
  with _os_errors(path):
    return _gfile().exists(path) and (not _gfile().isdir(path) or is_folder(path))


def is_file(path: str) -> bool:
  """Whether there is a file."""
  return exists(path) and not is_folder(path) if is_remote(path) else os.path.isfile(path)


def is_folder(path: str) -> bool:
  """Whether there is a folder."""
  if not is_remote(path):
    return os.path.isdir(path)
  with _os_errors(path):
    if not _gfile().isdir(path):
      return False
    if not path.startswith(_RAM) or _children(path):
      return True
    parent, name = os.path.split(path.rstrip('/'))  # To ram://, `ckpt-1` is a folder because of `ckpt-1.index`.
    return not name or name in _gfile().listdir(parent)


def _children(folder: str) -> list[str]:
  """The names in a remote folder. For `run`, ram:// lists `2` too if there is `run2`."""
  found = [name.rstrip('/') for name in _gfile().listdir(folder)]
  return [name for name in found if not folder.startswith(_RAM) or _gfile().exists(os.path.join(folder, name))]


def files_below(folder: str) -> Iterator[str]:
  """The paths from a folder of all files in it and in the folders below it. Links to folders are not followed."""
  if not is_remote(folder):
    for base, _, found in os.walk(folder):
      yield from (os.path.relpath(os.path.join(base, name), folder) for name in sorted(found))
    return
  for name in names(folder):
    path = os.path.join(folder, name)
    if is_folder(path):
      yield from (os.path.join(name, below) for below in files_below(path))
    else:
      yield name


def size_and_time(path: str) -> tuple[int, float]:
  """The size of a file in bytes, and its modification time in seconds since 1970.

  Raises:
    OSError: the file is missing, or cannot be read.
  """
  if not is_remote(path):
    found = os.stat(path)
    return found.st_size, found.st_mtime
  with _os_errors(path):
    remote = _gfile().stat(path)
    return remote.length, remote.mtime_nsec / 1e9


def size(path: str) -> int:
  """The bytes of a file; 0 if it is missing, or cannot be read."""
  try:
    return size_and_time(path)[0]
  except OSError:
    return 0


def folder_size(folder: str) -> int:
  """The bytes of all files in a folder and in those below it."""
  return sum(size_and_time(os.path.join(folder, name))[0] for name in files_below(folder))


def read(path: str, max_bytes: int | None = None, pipes: bool = False) -> bytes:
  """The content of a regular file: see local_files.py.

  Args:
    path: its path.
    max_bytes: the size above which it is refused; None: no bound.
    pipes: whether to read a pipe too, as of a file that the user names: `--config_file=<(...)`.

  Raises:
    FileNotFoundError: the file is missing.
    OSError: it cannot be read, or is larger. IsADirectoryError: it is a folder.
  """
  may_be_pipe = pipes and not is_remote(path)
  with _os_errors(path), open(path, 'rb') if may_be_pipe else open_to_read(path) as file:
    return local_files.read_whole(file, path, max_bytes)


def lines(path: str, max_bytes: int = 2**25) -> list[str]:
  """The lines of a text file: see `split_lines`; [] if it cannot be read."""
  try:
    return split_lines(read(path, max_bytes), 'replace')
  except OSError:
    return []


def split_lines(content: bytes, on_error: str = 'strict') -> list[str]:
  """The lines of a text in UTF-8, divided at line feeds alone. A byte order mark at its beginning is dropped.

  `str.splitlines` divides at U+2028, U+0085 and others too, which are parts of names and tokens.

  Args:
    content: of a file.
    on_error: see `bytes.decode`.

  Raises:
    UnicodeDecodeError: it is not UTF-8.
  """
  found = content.decode('utf-8-sig', on_error).split('\n')
  return [line.removesuffix('\r') for line in (found if found[-1] else found[:-1])]


def open_to_read(path: str) -> BinaryIO:
  """Opens a regular file for reading bytes: see local_files.py. The result is a context that closes it.

  Raises:
    FileNotFoundError: the file is missing.
    OSError: it cannot be read. IsADirectoryError: it is a folder.
  """
  if not is_remote(path):
    return local_files.open_to_read(path)
  if is_folder(path):
    raise IsADirectoryError(errno.EISDIR, 'is a folder', path)
  if not exists(path):
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
  return io.BufferedReader(_RemoteFile(path), _REMOTE_BUFFER)


def local_copy(path: str) -> str:
  """A file for libraries that open local files alone: the path itself if it is local, else the path of a copy.

  The end of this process deletes the copy.

  Raises:
    OSError: see `open_to_read`; or there is no room for the copy.
  """
  if not is_remote(path):
    return path
  with open_to_read(path) as source:
    place = tempfile.mkdtemp(prefix='official_ext-')
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with open(os.path.join(place, os.path.basename(path)), 'wb') as target:
      shutil.copyfileobj(source, target, _REMOTE_BUFFER)
  return target.name


class _RemoteFile(io.RawIOBase):
  """A remote file for `io.BufferedReader`: TensorFlow's files lack most of what Python's have, such as readline(n)."""

  def __init__(self, path: str):
    super().__init__()
    self._path, self._file = path, _gfile().GFile(path, 'rb')
    self._position = self._size = 0  # The size as far as it is known.

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    with _os_errors(self._path):
      if self._position >= self._size:  # To TensorFlow that is an error, unless the file has grown.
        self._size = self._file.size()
      if self._position >= self._size:
        return 0
      if self._file.tell() != self._position:
        self._file.seek(self._position)
      content = self._file.read(len(buffer))
    buffer[: len(content)] = content
    self._position += len(content)
    return len(content)

  def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
    with _os_errors(self._path):
      starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size()}
    self._position = max(0, starts[whence] + offset)
    return self._position

  def tell(self) -> int:
    return self._position

  def close(self) -> None:
    if not self.closed:
      self._file.close()
    super().close()


@contextlib.contextmanager
def _os_errors(path: str) -> Iterator[None]:
  """A context in which the errors of a remote file system become OSError."""
  if not is_remote(path):
    yield
    return
  try:
    yield
  except _op_error() as error:
    reason = ' '.join(str(error).split())  # The message of gs:// has several lines.
    if type(error).__name__ == 'NotFoundError':
      raise FileNotFoundError(errno.ENOENT, reason or os.strerror(errno.ENOENT), path) from error
    raise OSError(None, reason or type(error).__name__, path) from error


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
  with _os_errors(path):
    with _gfile().GFile(temporary, 'wb') as f:
      f.write(content)
    _gfile().rename(temporary, path, overwrite=True)


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
  with _os_errors(folder):
    _gfile().makedirs(folder)


def rename(path: str, target: str) -> None:
  """Renames a local file or folder, whose content is synced; the disk stores the new name and then the loss of the old.

  Raises:
    OSError: it cannot be renamed, or the disk may not have stored it.
  """
  os.rename(path, target)
  parents = [os.path.dirname(target), os.path.dirname(path)]
  for parent in dict.fromkeys(parents):
    sync_to_disk(parent)


def move(path: str, target: str) -> None:
  """Renames a file or a folder, local or remote, both in the same place. A file replaces one of that name.

  Remote storage knows no folders: of one the files are renamed one after the other. The caller syncs the local names.

  Raises:
    OSError: it cannot be renamed.
  """
  if not is_remote(path):
    os.replace(path, target)
    return
  with _os_errors(path):
    if not is_folder(path):
      _gfile().rename(path, target, overwrite=True)
      return
    for name in list(files_below(path)):
      make_folder(os.path.dirname(os.path.join(target, name)))
      _gfile().rename(os.path.join(path, name), os.path.join(target, name), overwrite=True)
    remove_folder(path)


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
    with contextlib.suppress(FileNotFoundError), _os_errors(path):
      _gfile().remove(path)
    return
  try:
    os.remove(path)
  except FileNotFoundError:
    return
  sync_to_disk(os.path.dirname(path))


def remove_folder(path: str) -> None:
  """Deletes a folder with all its content; of a symbolic link, only the link: the target may belong to others."""
  if is_remote(path):
    try:
      with _os_errors(path):
        _gfile().rmtree(path)
    except FileNotFoundError:
      if names(path):  # Otherwise ram:// has missed a name that is in another folder.
        raise
  elif os.path.islink(path):
    os.remove(path)
  else:
    shutil.rmtree(path)


def expand_home(path: str, where: str) -> str:
  """A path whose `~` or `~user` at the start is replaced by that home folder, as a shell does; without `file://`.

  Shells do not expand `--model_dir=~/run`, because the word does not begin with `~`.

  Args:
    path: any path.
    where: the flag or field that it is from.

  Raises:
    UserError: there is no such user, or `file://` names another host.
  """
  try:
    path = local(path)
  except errors.UserError as error:
    raise errors.UserError(f'{where}: {error}') from None
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
