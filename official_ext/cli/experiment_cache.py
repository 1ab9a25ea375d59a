"""What `official-ext list` has read, kept for the next time: importing all experiments takes seconds.

It holds as long as nothing changes that it was read from: the files of all modules that were imported, other files that
were opened and folders that were listed meanwhile, the modules at hand in the search path, installed packages, Python,
the current directory, the arguments. An environment variable that a registry looks at is not among them.
"""

from collections.abc import Sequence
import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
from typing import Any

from official_ext.files import cache
from official_ext.files import paths

_SUFFIXES = ('.py', '.so', '.pth', '.egg-link', '.dist-info', '.egg-info')


class ExperimentCache:
  """The lines of `official-ext list` with some arguments, in this environment and directory."""

  def __init__(self, arguments: Sequence[str]):
    """Notes what was opened and listed from now on. To be made before anything is imported.

    Args:
      arguments: of the command.
    """
    # Where a registry is in memory already, asking it is cheap, and it may hold more than a new process finds.
    self._is_fresh = 'official' not in sys.modules
    key = [2, sys.version, sys.prefix, os.getcwd(), sys.path, list(arguments), os.path.dirname(__file__)]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    self._path = os.path.join(cache.root(), f'list-{name}.json')
    self._folders: set[str] = {os.path.abspath(folder) for folder in sys.path}
    self._files: set[str] = set()
    # Asked for now: inside the hook it would open files itself.
    temporary = os.path.join(tempfile.gettempdir(), 'tmp')
    self._left_out = (sys.prefix, sys.base_prefix, '/proc/', '/sys/', '/dev/', temporary)

  def read(self) -> list[str] | None:
    """The lines; None if there are none, or something has changed since."""
    if not self._is_fresh:
      return None
    try:
      with open(self._path, encoding='utf-8') as f:
        content = json.load(f)
      holds = all(_state(path) == state for path, state in content['states'].items())
      return [str(line) for line in content['lines']] if holds else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
      return None

  def watch(self) -> None:
    """Notes which files are opened and which folders are listed from now on."""
    if self._is_fresh:
      sys.addaudithook(self._hear)

  def write(self, lines: Sequence[str], entry_points: str) -> None:
    """Keeps lines, if a new process would find the same. That it cannot is no mistake.

    Args:
      lines: what was read.
      entry_points: the group of entry points that register experiments.
    """
    modules = {point.value.partition(':')[0] for point in importlib.metadata.entry_points(group=entry_points)}
    if not self._is_fresh or not modules <= sys.modules.keys():  # One has failed, which is told each time.
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
      paths.write_atomically(self._path, json.dumps({'states': states, 'lines': list(lines)}).encode())
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


def _state(path: str) -> Any:
  """What changes when a file or folder does; None if there is none. JSON values."""
  try:
    stat = os.stat(path)
    if not os.path.isdir(path):
      return [stat.st_mtime_ns, stat.st_size]
    entries: dict[str, int] = {}
    with os.scandir(path) as found:
      for entry in found:
        if entry.name.endswith('-info'):  # An installation anew makes it anew.
          entries[entry.name] = entry.stat().st_mtime_ns
        elif entry.name.endswith(_SUFFIXES) or (entry.is_dir() and not entry.name.startswith(('.', '__'))):
          entries[entry.name] = 0
    return hashlib.sha256(json.dumps(sorted(entries.items())).encode()).hexdigest()
  except OSError:
    return None
