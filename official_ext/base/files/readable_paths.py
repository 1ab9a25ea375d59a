"""Paths of checkpoints that TensorFlow can read: without pipes, and not in folders whose names are patterns to it.

TensorFlow looks for a checkpoint's index by a pattern before it opens it (`Env::GetMatchingPaths`), and finds none
if the path holds `[` or a backslash. Such a folder is read by way of a symbolic link.
"""

import atexit
import functools
import os
import re
import shutil
import tempfile

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.base.files import regular_files

_PATTERN = re.compile(r'[\[\\]')


def readable(path: str) -> str:
  """A path by which TensorFlow can read a checkpoint, for as long as this process lives.

  Args:
    path: path of the checkpoint.

  Raises:
    UserError: there is none, on a remote file system.
    UnreadableError: one of its files is not a regular file: see regular_files.py.
  """
  if not paths.is_remote(path) and os.path.lexists(f'{path}.index'):
    folder, name = os.path.split(path)
    for file in paths.matching(folder, rf'{re.escape(name)}\.(index|data-.*)'):
      regular_files.check(file)
  if not _PATTERN.search(path):
    return path
  if paths.is_remote(path):
    raise errors.UserError(
      f'{path}: TensorFlow reads no checkpoint from a remote path with [ or a backslash; choose another name'
    )
  folder, name = os.path.split(path)
  return os.path.join(_link_to(os.path.abspath(folder)), name)


@functools.cache
def _link_to(folder: str) -> str:
  place = tempfile.mkdtemp(prefix='checkpoints-')  # Read until the end: variables that are made late are restored late.
  atexit.register(shutil.rmtree, place, ignore_errors=True)
  link = os.path.join(place, 'folder')
  os.symlink(folder, link)
  if _PATTERN.search(link):
    raise errors.UserError(f'TMPDIR: {place}: temporary files must be in a folder without [ and backslash in its path')
  return link
