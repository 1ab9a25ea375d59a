"""Makes a folder hold a state of the model, by as few changes as possible."""

import os
import pathlib
import shutil

from tests.powercut import file_system


class Folder:
  """A folder that takes one state after the other.

  Attributes:
    path: the folder.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    self._stamps: dict[str, tuple[int, ...]] = {}
    self._contents: dict[str, bytes] = {}

  def hold(self, tree: file_system.Tree) -> None:
    """Makes it hold exactly these files and folders, independent of changes in it since the last time."""
    for name in self._found():
      if name not in tree or (tree[name] is None) != (self.path / name).is_dir():
        _remove(self.path / name)
    for name, content in tree.items():  # A folder comes before its contents.
      path = self.path / name
      if content is None:
        path.mkdir(exist_ok=True)
      elif self._contents.get(name) != content or _stamp(path) != self._stamps.get(name):
        path.write_bytes(content)
        self._contents[name], self._stamps[name] = content, _stamp(path)

  def _found(self) -> list[str]:
    """Its contents; of a folder that is gone, nothing."""
    found = []
    for base, folders, files in os.walk(self.path):
      below = os.path.relpath(base, self.path)
      found += [name if below == '.' else f'{below}/{name}' for name in [*folders, *files]]
    return found


def read(path: pathlib.Path) -> file_system.Tree:
  """The contents of a folder."""
  found: dict[str, bytes | None] = {}
  for each in sorted(path.rglob('*')):
    found[str(each.relative_to(path))] = None if each.is_dir() else each.read_bytes()
  return found


def _stamp(path: pathlib.Path) -> tuple[int, ...]:
  try:
    status = path.stat()
  except FileNotFoundError:
    return ()
  return status.st_ino, status.st_size, status.st_mtime_ns


def _remove(path: pathlib.Path) -> None:
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)
