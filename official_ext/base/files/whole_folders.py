"""Folders that exist whole or not at all, even if a writer dies or the power fails.

Example:

  >>> import os, pathlib, tempfile
  >>> folder = os.path.join(tempfile.mkdtemp(), 'results')
  >>> ext.whole_folders.write(folder, lambda place: pathlib.Path(place, 'loss.txt').write_text('0.5'))
  >>> os.listdir(folder)
  ['loss.txt']
  >>> def fail(place):
  ...   raise ValueError('stopped')
  >>> ext.whole_folders.write(folder, fail)
  Traceback (most recent call last):
    ...
  ValueError: stopped
  >>> os.listdir(folder)  # Unchanged.
  ['loss.txt']
"""

from collections.abc import Callable
import os
import re
import shutil
import tempfile

import tensorflow as tf

from official_ext.base.files import paths
from official_ext.base.files import storage

_MARKS = ('config.json', 'saved_model.pb')
_PARTIAL = '.{name}.{machine}-{process}.partial'


def write(folder: str, make: Callable[[str], None], replace: bool = True) -> None:
  """Writes a folder under another name in the same parent, then renames it.

  An earlier one exchanges names with it, so that at every moment one of them exists. Systems other than Linux cannot do
  that: there both are missing for a moment. If the writer dies then, the next writer restores the earlier one.

  Args:
    folder: its path; parents are made. Of a symbolic link the folder that it leads to is meant.
    make: writes the files into an empty folder.
    replace: whether an existing one is replaced, with all its contents; if not, it must be empty.

  Raises:
    StorageError: it cannot be written. An earlier folder is unchanged.
    UserError: there is something already, and it is not to be replaced.
    ValueError: the path is empty, which would be the current directory.
  """
  if not folder:
    raise ValueError('folder: is empty')
  try:
    if paths.is_remote(folder):
      _copy(folder, make, replace)
    else:
      _write(os.path.realpath(folder), make, replace)
  except storage.FAILURES as error:
    raise storage.not_written(folder, error) from error


def _write(folder, make, replace):
  parent, name = os.path.split(folder)
  paths.make_folder(parent)
  _remove_abandoned(parent, name)
  partial, old = (_beside(parent, f'{name}{suffix}') for suffix in ('', '.old'))
  made = None
  try:
    os.mkdir(partial)
    made = _identity(partial)
    make(partial)
    paths.sync_tree(partial)
    if not replace:
      paths.refuse_used(folder)  # Once more: writing has taken a while. Should it fill now, renaming fails.
    if not (replace and os.path.isdir(folder) and paths.exchange(partial, folder)):
      if replace and os.path.isdir(folder):
        os.rename(folder, old)
      os.rename(partial, folder)
    paths.sync_to_disk(parent)  # Only then is the old one deleted.
  except BaseException:
    _undo(folder, partial, old, made)
    raise
  finally:
    shutil.rmtree(partial, ignore_errors=True)
    if os.path.isdir(folder):  # Otherwise a second interrupt has come: the next writer renames the old one back.
      shutil.rmtree(old, ignore_errors=True)


def _undo(folder: str, partial: str, old: str, made: tuple[int, int] | None) -> None:
  """Restores the names from before, judging by the disk: an interrupt may come between a rename and a note of it.

  Args:
    folder: the path to which the new folder may have been renamed.
    partial: the path at which it was made.
    old: the path to which the folder before it may have been renamed.
    made: the identity of the new folder; None if it was not made.
  """
  if made is not None and _identity(folder) == made:
    if not (os.path.isdir(partial) and paths.exchange(partial, folder)):
      os.rename(folder, partial)
  if os.path.isdir(old) and not os.path.lexists(folder):
    os.rename(old, folder)


def _identity(path: str) -> tuple[int, int] | None:
  """The device and inode of a file or folder; None if it does not exist."""
  try:
    found = os.stat(path)
  except FileNotFoundError:
    return None
  return found.st_dev, found.st_ino


def _beside(parent, name):
  return os.path.join(parent, _PARTIAL.format(name=name, machine=os.uname().nodename, process=os.getpid()))


def _remove_abandoned(parent: str, name: str) -> None:
  """Removes the leftovers of processes of this machine that died while they wrote this folder.

  One that died between its two last steps has left the earlier folder under the other name: it is renamed back.
  """
  machine = re.escape(os.uname().nodename)
  for path in paths.matching(parent, rf'\.{re.escape(name)}(\.old)?\.{machine}-\d+\.partial'):
    process = int(path.rpartition('-')[2].removesuffix('.partial'))
    if process != os.getpid() and os.path.exists(f'/proc/{process}'):
      continue
    folder = os.path.join(parent, name)
    if f'{name}.old.' in os.path.basename(path) and not os.path.exists(folder):
      os.rename(path, folder)
    else:
      shutil.rmtree(path, ignore_errors=True)


def _copy(folder, make, replace):
  """Onto storage that knows no folders: the file that makes a folder a model goes first, and comes last."""
  with tempfile.TemporaryDirectory(prefix='official_ext-result-') as local:
    make(local)
    if not replace:
      paths.refuse_used(folder)
    names = sorted(paths.files_below(local), key=lambda name: (name.endswith(_MARKS), name))
    before = sorted(paths.files_below(folder), key=lambda name: not name.endswith(_MARKS))
    for name in before:  # One that the new folder lacks, such as an index of weights, would be read with it.
      if name.endswith(_MARKS) or name not in names:
        paths.remove(os.path.join(folder, name))
    for name in names:
      target = os.path.join(folder, name)
      paths.make_folder(os.path.dirname(target))
      tf.io.gfile.copy(os.path.join(local, name), target, overwrite=True)
