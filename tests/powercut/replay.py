"""Repeats recorded calls in the model of a file system, one after the other."""

from collections.abc import Iterable, Iterator
import dataclasses
import os
import re

from tests.powercut import file_system
from tests.powercut import strace_log

_AT_FDCWD = -100


@dataclasses.dataclass
class _OpenFile:
  """The target of a descriptor; copies of the descriptor share it.

  Attributes:
    node: in the model.
    appends: whether every write goes to the end.
    offset: where the next write goes.
  """

  node: int
  appends: bool = False
  offset: int = 0


class Replay:
  """Applies calls to a model. Calls outside of the root change nothing."""

  def __init__(self, root: str, model: file_system.FileSystem):
    """Initializes it.

    Args:
      root: the folder that the model is of, absolute and without symbolic links.
      model: its contents before the first call.
    """
    self._root = root
    self.model = model
    self._tables: dict[int, dict[int, _OpenFile]] = {}  # By thread; threads of a process share one.

  def run(self, calls: Iterable[strace_log.Call]) -> Iterator[str]:
    """Applies the calls, and yields a line after each that has changed something.

    Raises:
      RecordingError: the model cannot follow a call.
    """
    for call in calls:
      name = {'creat': 'open', 'openat': 'open', 'fdatasync': 'fsync', 'pwritev': 'pwrite64', 'pwritev2': 'pwrite64'}
      do = getattr(self, f'_{name.get(call.name, call.name)}', None)
      try:
        done = do(call) if do else None
      except FileNotFoundError as error:
        raise strace_log.RecordingError(f'{call.name}: {error}') from error
      if done:
        yield done

  # Descriptors.

  def _table(self, thread: int) -> dict[int, _OpenFile]:
    return self._tables.setdefault(thread, {})

  def _file(self, call: strace_log.Call, index: int = 0) -> _OpenFile | None:
    """The open file of an argument; None if it is not in the root."""
    found = self._table(call.thread).get(call.descriptor(index))
    path = call.descriptor_path(index)
    if found is None and self._inside(path) is not None and not call.arguments[index].endswith('(deleted)'):
      raise strace_log.RecordingError(f'{call.name}: {path} was opened by nobody')
    return found

  def _fork(self, call: strace_log.Call) -> None:
    table = self._table(call.thread)
    shared = 'CLONE_FILES' in ''.join(call.arguments)
    self._tables[call.result] = table if shared else dict(table)

  _clone = _clone3 = _vfork = _fork

  def _close(self, call: strace_log.Call) -> None:
    self._table(call.thread).pop(call.descriptor(0), None)

  def _close_range(self, call: strace_log.Call) -> None:
    table = self._table(call.thread)
    first, last = (int(argument) for argument in call.arguments[:2])
    for number in [number for number in table if first <= number <= last]:
      if 'CLOEXEC' not in call.arguments[2]:
        del table[number]

  def _dup(self, call: strace_log.Call) -> None:
    table = self._table(call.thread)
    table.pop(call.result, None)
    if call.descriptor(0) in table:
      table[call.result] = table[call.descriptor(0)]

  _dup2 = _dup3 = _dup

  def _fcntl(self, call: strace_log.Call) -> None:
    if call.arguments[1].startswith('F_DUPFD'):
      self._dup(call)

  def _lseek(self, call: strace_log.Call) -> None:
    file = self._file(call)
    if file is not None:
      file.offset = call.result

  def _open(self, call: strace_log.Call) -> str | None:
    table = self._table(call.thread)
    table.pop(call.result, None)
    index = 1 if call.name == 'openat' else 0
    path = self._path(call, index - 1, index) if index else self._inside(_text(call, index))
    if path is None:
      return None
    flags = set('O_CREAT|O_TRUNC'.split('|')) if call.name == 'creat' else set(call.arguments[index + 1].split('|'))
    if 'O_TMPFILE' in flags and 'O_EXCL' in flags:
      return None  # It never gets a name.
    if 'O_TMPFILE' in flags:
      raise strace_log.RecordingError(f'{path}: a file that gets a name later is not known to the model')
    node = self.model.find(path)
    done = None
    if node is None and 'O_CREAT' in flags:
      node, done = self.model.create(path), f'create {path}'
    elif node is None:
      raise strace_log.RecordingError(f'{path}: is opened, and not in the model')
    elif 'O_TRUNC' in flags and self.model.content(node):
      self.model.truncate(node, 0)
      done = f'empty {path}'
    if flags & {'O_DSYNC', 'O_SYNC'}:
      raise strace_log.RecordingError(f'{path}: files that are opened to be synced are not known to the model')
    table[call.result] = _OpenFile(node, 'O_APPEND' in flags)
    return done

  # Contents.

  def _write(self, call: strace_log.Call) -> str | None:
    file = self._file(call)
    return None if file is None else self._put(call, file, call.text(1)[: call.result])

  _writev = _write

  def _put(self, call, file, data) -> str | None:
    if file.appends:
      file.offset = len(self.model.content(file.node))
    if not data:
      return None
    self.model.write(file.node, file.offset, data)
    file.offset += len(data)
    return f'write {len(data)} bytes: {self._name(call, 0)}'

  def _pwrite64(self, call: strace_log.Call) -> str | None:
    file = self._file(call)
    if file is None:
      return None
    offset = len(self.model.content(file.node)) if file.appends else int(call.arguments[3])
    self.model.write(file.node, offset, call.text(1)[: call.result])
    return f'write {call.result} bytes at {offset}: {self._name(call, 0)}'

  def _ftruncate(self, call: strace_log.Call) -> str | None:
    file = self._file(call)
    if file is None:
      return None
    self.model.truncate(file.node, int(call.arguments[1]))
    return f'truncate to {call.arguments[1]}: {self._name(call, 0)}'

  def _truncate(self, call: strace_log.Call) -> str | None:
    path = self._inside(_text(call, 0))
    if path is None:
      return None
    self.model.truncate(self._node(path), int(call.arguments[1]))
    return f'truncate to {call.arguments[1]}: {path}'

  def _fallocate(self, call: strace_log.Call) -> str | None:
    file = self._file(call)
    if file is None:
      return None
    if call.arguments[1] != '0':
      raise strace_log.RecordingError(f'fallocate: {call.arguments[1]} is not known to the model')
    size = int(call.arguments[2]) + int(call.arguments[3])
    self.model.truncate(file.node, max(size, len(self.model.content(file.node))))
    return f'fallocate {size}: {self._name(call, 0)}'

  def _sendfile(self, call: strace_log.Call) -> str | None:
    return self._copied(call, source=1, at=call.arguments[2], target=0)

  def _copy_file_range(self, call: strace_log.Call) -> str | None:
    if call.arguments[3] != 'NULL':
      raise strace_log.RecordingError('copy_file_range: an offset of the target is not known to the model')
    return self._copied(call, source=0, at=call.arguments[1], target=2)

  def _copied(self, call, source, at, target) -> str | None:
    file, origin = self._file(call, target), self._file(call, source)
    explicit = re.match(r'\[(\d+)\]', at)
    offset = int(explicit[1]) if explicit else origin.offset if origin else 0
    if origin is not None:
      data = self.model.content(origin.node)[offset : offset + call.result]
      origin.offset += 0 if explicit else call.result
    elif file is not None:
      raise strace_log.RecordingError(f'{call.name}: from {call.descriptor_path(source)}, which is not in the model')
    return None if file is None else self._put(call, file, data)

  def _splice(self, call: strace_log.Call) -> None:
    if self._file(call, 2) is not None:
      raise strace_log.RecordingError('splice is not known to the model')

  def _mmap(self, call: strace_log.Call) -> None:
    if 'MAP_SHARED' in call.arguments[3] and 'PROT_WRITE' in call.arguments[2] and self._file(call, 4) is not None:
      raise strace_log.RecordingError(f'mmap: writes to {call.descriptor_path(4)} cannot be seen')

  # Names.

  def _rename(self, call: strace_log.Call) -> str | None:
    names = self._two_paths(call, is_relative=call.name != 'rename')
    if names is None:
      return None
    old, new = names
    if 'RENAME_EXCHANGE' in call.arguments[-1]:
      self.model.exchange(old, new)
      return f'exchange {old} and {new}'
    self.model.rename(old, new)
    return f'rename {old} to {new}'

  _renameat = _renameat2 = _rename

  def _link(self, call: strace_log.Call) -> str | None:
    names = self._two_paths(call, is_relative=call.name != 'link')
    if names is None:
      return None
    old, new = names
    self.model.link(old, new)
    return f'link {old} as {new}'

  _linkat = _link

  def _symlink(self, call: strace_log.Call) -> None:
    path = self._inside(_text(call, 1)) if call.name == 'symlink' else self._path(call, 1, 2)
    if path is not None:
      raise strace_log.RecordingError(f'{path}: symbolic links are not known to the model')

  _symlinkat = _symlink

  def _unlink(self, call: strace_log.Call) -> str | None:
    path = self._path(call, 0, 1) if call.name == 'unlinkat' else self._inside(_text(call, 0))
    if path is None:
      return None
    self.model.remove(path)
    return f'remove {path}'

  _unlinkat = _rmdir = _unlink

  def _mkdir(self, call: strace_log.Call) -> str | None:
    path = self._path(call, 0, 1) if call.name == 'mkdirat' else self._inside(_text(call, 0))
    if path is None:
      return None
    self.model.make_folder(path)
    return f'mkdir {path}'

  _mkdirat = _mkdir

  # Syncing.

  def _fsync(self, call: strace_log.Call) -> str | None:
    file = self._file(call)
    if file is None:
      return None
    self.model.sync(file.node)
    return f'fsync {self._name(call, 0)}'

  def _sync(self, call: strace_log.Call) -> str:
    self.model.sync_all()
    return call.name

  _syncfs = _sync

  # Paths.

  def _inside(self, path: str) -> str | None:
    """A path below the root, without it; '' for the root; None outside."""
    path = os.path.normpath(path)
    return '' if path == self._root else path[len(self._root) + 1 :] if path.startswith(self._root + '/') else None

  def _path(self, call: strace_log.Call, folder: int, index: int) -> str | None:
    """The path of an argument that may be relative to the folder of another."""
    return self._inside(os.path.join(call.descriptor_path(folder), _text(call, index)))

  def _two_paths(self, call: strace_log.Call, is_relative: bool) -> tuple[str, str] | None:
    """The old and the new path of a call, each behind a folder if it is relative to one; None if both are outside."""
    if is_relative:
      old, new = self._path(call, 0, 1), self._path(call, 2, 3)
    else:
      old, new = (self._inside(_text(call, index)) for index in (0, 1))
    if old is None and new is None:
      return None
    if old is None or new is None:
      raise strace_log.RecordingError(f'{old or new}: {call.name} across the border of the model')
    return old, new

  def _name(self, call: strace_log.Call, index: int) -> str:
    path = call.descriptor_path(index)
    return self._inside(path) or path

  def _node(self, path: str) -> int:
    node = self.model.find(path)
    if node is None:
      raise strace_log.RecordingError(f'{path}: is not in the model')
    return node


def _text(call: strace_log.Call, index: int) -> str:
  return call.text(index).decode('utf-8', 'surrogateescape')
