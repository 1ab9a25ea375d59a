"""A file system that forgets: the contents of memory, the part that a power cut certainly leaves, and the part that it
may leave.

The rules are those of POSIX, and no more: `fsync` of a file keeps its content, `fsync` of a folder the names in it.
Unsynced changes may be kept or not, each change of a name by itself; a rename is kept whole or not at all. That is
more than any one file system loses: ext4 keeps the changes of names in their order.
"""

from collections.abc import Collection, Iterator, Mapping
import dataclasses
import os
import pathlib

ROOT = 0
# A state: the content of every file, and None for every folder, by the path below the root.
Tree = Mapping[str, bytes | None]


@dataclasses.dataclass(frozen=True)
class NameChange:
  """A change of names that is kept whole or not at all.

  Attributes:
    kind: 'create', 'mkdir', 'rename', 'link' or 'remove'.
    entries: (folder, name, the node that the name leads to afterwards, or None).
  """

  kind: str
  entries: tuple[tuple[int, str, int | None], ...]

  def touches(self, folder: int) -> bool:
    """Whether one of its names is in a folder."""
    return any(entry[0] == folder for entry in self.entries)

  def shares_a_name(self, other: 'NameChange') -> bool:
    """Whether both change the same name."""
    return bool({entry[:2] for entry in self.entries} & {entry[:2] for entry in other.entries})


class FileSystem:
  """Files and folders below a root that is certain to be kept. Nodes have numbers, the root is 0.

  Attributes:
    pending: the changes of names that are not certain to be kept, in order.
  """

  def __init__(self):
    self._num_nodes = 1
    self._folders: dict[int, dict[str, int]] = {ROOT: {}}  # In memory.
    self._kept_folders: dict[int, dict[str, int]] = {ROOT: {}}
    self._contents: dict[int, bytes] = {}
    self._kept_contents: dict[int, bytes] = {}
    self.pending: list[NameChange] = []

  @classmethod
  def of_folder(cls, folder: pathlib.Path) -> 'FileSystem':
    """The contents of a folder, all synced."""
    made = cls()
    for path in sorted(folder.rglob('*')):
      name = str(path.relative_to(folder))
      if path.is_dir():
        made.make_folder(name)
      else:
        made.write(made.create(name), 0, path.read_bytes())
    made.sync_all()
    return made

  # Looking.

  def find(self, path: str) -> int | None:
    """The node at a path in memory; None if there is none."""
    node: int | None = ROOT
    for name in filter(None, path.split('/')):
      node = self._folders.get(node, {}).get(name) if node is not None else None
    return node

  def is_folder(self, node: int) -> bool:
    return node in self._folders

  def content(self, node: int) -> bytes:
    """The content of a file, in memory."""
    return self._contents[node]

  def unsynced(self) -> list[int]:
    """The files whose content is not certain to be kept."""
    return [node for node, content in self._contents.items() if content is not self._kept_contents.get(node)]

  def kept_content(self, node: int) -> bytes:
    """The content of a file when it was last synced; b'' if it never was."""
    return self._kept_contents.get(node, b'')

  def tree(self) -> Tree:
    """The contents of memory: the state after a kill."""
    return dict(self._walk(self._folders, self._contents, ROOT, ''))

  def after_power_cut(self, kept: Collection[int] = (), contents: Mapping[int, bytes] | None = None) -> Tree:
    """One state that a power cut can leave.

    Args:
      kept: which of `pending` are kept, by their indices.
      contents: of unsynced files, by their nodes; others have their synced contents.
    """
    folders = self._kept_folders
    if kept:
      folders = {node: dict(names) for node, names in folders.items()}
      for index in sorted(kept):
        _apply(folders, self.pending[index])
    return dict(self._walk(folders, {**self._kept_contents, **(contents or {})}, ROOT, ''))

  def _walk(self, folders, contents, node, path) -> Iterator[tuple[str, bytes | None]]:
    for name, child in folders.get(node, {}).items():
      if child in self._folders:
        yield path + name, None
        yield from self._walk(folders, contents, child, f'{path}{name}/')
      else:
        yield path + name, contents.get(child, b'')

  # Changing.

  def create(self, path: str) -> int:
    """Makes an empty file; returns its node."""
    node = self._new(path, 'create')
    self._contents[node] = b''
    return node

  def make_folder(self, path: str) -> int:
    """Makes a folder; returns its node."""
    node = self._new(path, 'mkdir')
    self._folders[node] = {}
    self._kept_folders[node] = {}  # Without names, until it is synced itself.
    return node

  def link(self, old: str, new: str) -> None:
    """Gives a file one more name."""
    self._change('link', [(*self._place(new), self._existing(old))])

  def rename(self, old: str, new: str) -> None:
    """Gives a file or a folder another name, replacing an earlier one."""
    node = self._existing(old)
    if self.find(new) != node:
      self._change('rename', [(*self._place(new), node), (*self._place(old), None)])

  def exchange(self, path: str, other: str) -> None:
    """Lets two nodes exchange their names."""
    nodes = self._existing(path), self._existing(other)
    self._change('rename', [(*self._place(path), nodes[1]), (*self._place(other), nodes[0])])

  def remove(self, path: str) -> None:
    """Takes a name away, of a file or of an empty folder."""
    self._existing(path)
    self._change('remove', [(*self._place(path), None)])

  def write(self, node: int, offset: int, data: bytes) -> None:
    """Writes into a file; bytes between its end and `offset` are zero."""
    content = self._contents[node].ljust(offset, b'\0')
    self._contents[node] = content[:offset] + data + content[offset + len(data) :]

  def truncate(self, node: int, size: int) -> None:
    """Gives a file another size."""
    self._contents[node] = self._contents[node][:size].ljust(size, b'\0')

  def sync(self, node: int) -> None:
    """The effect of fsync: of a file for its content, of a folder for the names in it."""
    if node not in self._folders:
      self._kept_contents[node] = self._contents[node]
      return
    certain = {index for index, change in enumerate(self.pending) if change.touches(node)}
    for index in reversed(range(len(self.pending))):  # Of one name no earlier change can follow a later one.
      later = (self.pending[other] for other in certain if other > index)
      if index not in certain and any(self.pending[index].shares_a_name(change) for change in later):
        certain.add(index)
    for index in sorted(certain):
      _apply(self._kept_folders, self.pending[index])
    self.pending = [change for index, change in enumerate(self.pending) if index not in certain]

  def sync_all(self) -> None:
    """The effect of sync."""
    for node in [*self._folders, *self._contents]:
      self.sync(node)

  def _new(self, path, kind) -> int:
    node = self._num_nodes
    self._num_nodes += 1
    self._change(kind, [(*self._place(path), node)])
    return node

  def _change(self, kind, entries) -> None:
    change = NameChange(kind, tuple(entries))
    _apply(self._folders, change)
    self.pending.append(change)

  def _place(self, path: str) -> tuple[int, str]:
    folder, name = os.path.split(path)
    node = self.find(folder)
    if node is None or node not in self._folders:
      raise FileNotFoundError(f'{path}: there is no such folder in the model')
    return node, name

  def _existing(self, path: str) -> int:
    node = self.find(path)
    if node is None:
      raise FileNotFoundError(f'{path}: is not in the model')
    return node


def _apply(folders: dict[int, dict[str, int]], change: NameChange) -> None:
  for folder, name, node in change.entries:
    if node is None:
      folders[folder].pop(name, None)
    else:
      folders[folder][name] = node
