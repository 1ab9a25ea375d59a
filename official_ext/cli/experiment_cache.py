"""Caches the results of `official-ext list` and `describe`: importing all experiments takes seconds.

It is valid as long as nothing changes that it was read from: the files of all modules that were imported, other files
that were opened and folders that were listed meanwhile, the modules in the search path, installed packages, Python,
the current directory, the arguments. An environment variable that a registry reads is not among these.
"""

from collections.abc import Sequence
import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile

from official_ext.base.files import cache
from official_ext.base.files import paths
from official_ext.base.files import regular_files

_SUFFIXES = ('.py', '.so', '.pth', '.egg-link', '.dist-info', '.egg-info')


class ExperimentCache:
  """The lines of a command with some arguments, in this environment and directory."""

  def __init__(self, command: str, arguments: Sequence[str]):
    """Records the files opened and the folders listed from now on. Make it before anything is imported.

    Args:
      command: its name.
      arguments: of the command. They may name no files: TensorFlow would open them without this function's knowledge.
    """
    # If a registry is in memory already, reading it is cheap, and it may have more than a new process finds.
    self._is_fresh = 'official' not in sys.modules
    key = [2, sys.version, sys.prefix, os.getcwd(), sys.path, list(arguments), os.path.dirname(__file__)]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    self._path = os.path.join(cache.root(), f'{command}-{name}.json')
    self._folders: set[str] = {os.path.abspath(folder) for folder in sys.path}
    self._files: set[str] = set()
    # Computed now: inside the hook, this would open files itself.
    temporary = os.path.join(tempfile.gettempdir(), 'tmp')
    self._left_out = (sys.prefix, sys.base_prefix, '/proc/', '/sys/', '/dev/', temporary)

  def read(self) -> list[str] | None:
    """Returns the lines; None if there are none, or if something has changed since."""
    if not self._is_fresh:
      return None
    try:
      with regular_files.open_to_read(self._path) as f:
        content = json.load(f)
      holds = all(_state(path) == state for path, state in content['states'].items())
      return [str(line) for line in content['lines']] if holds else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
      return None

  def watch(self) -> None:
    """Starts to note which files are opened and which folders are listed."""
    if self._is_fresh:
      sys.addaudithook(self._hear)

  def write(self, lines: Sequence[str], entry_points: str) -> None:
    """Keeps the lines, if a new process would find the same. It is not an error if they cannot be kept.

    Args:
      lines: the lines that were read.
      entry_points: the group of entry points that register experiments.
    """
    modules = {point.value.partition(':')[0] for point in importlib.metadata.entry_points(group=entry_points)}
    if not self._is_fresh or not modules <= sys.modules.keys():  # One has failed, which must be reported again.
      return
    files = set(self._files)
    for module in list(sys.modules.values()):
      path = getattr(module, '__file__', None)
      if isinstance(path, str):
        files.add(path)
        if not path.startswith((sys.prefix, sys.base_prefix)):
          self._folders.add(os.path.dirname(path))
    states = {path: _state(path) for path in [*files, *self._folders]}
    try:
      os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
      paths.write_atomically(self._path, json.dumps({'states': states, 'lines': list(lines)}).encode(), sync=False)
    except OSError:
      pass

  def _hear(self, event, arguments):
    if event not in ('open', 'os.listdir', 'os.scandir') or not isinstance(arguments[0], (str, bytes, os.PathLike)):
      return
    path = os.path.abspath(os.fsdecode(arguments[0]))
    if path.startswith(self._left_out):
      return
    if event != 'open':
      self._folders.add(path)
    elif not path.endswith('.pyc') and not _is_written(arguments):
      self._files.add(path)


def _is_written(arguments) -> bool:
  mode, flags = arguments[1], arguments[2]
  return bool(isinstance(mode, str) and set(mode) & set('wax+')) or bool(flags & (os.O_WRONLY | os.O_RDWR))


def _state(path: str) -> object:
  """JSON values that change if a file or folder changes; None if it does not exist."""
  try:
    stat = os.stat(path)
    if not os.path.isdir(path):
      return [stat.st_mtime_ns, stat.st_size]
    entries: dict[str, int] = {}
    with os.scandir(path) as found:
      for entry in found:
        if entry.name.endswith('-info'):  # Another installation makes another file.
          entries[entry.name] = entry.stat().st_mtime_ns
        elif entry.name.endswith(_SUFFIXES) or (entry.is_dir() and not entry.name.startswith(('.', '__'))):
          entries[entry.name] = 0
    return hashlib.sha256(json.dumps(sorted(entries.items())).encode()).hexdigest()
  except OSError:
    return None
