"""A cache of results for other processes and later runs: folders that exist whole or not at all.

It lies in `$XDG_CACHE_HOME/official_ext`, or in `~/.cache/official_ext` if that is unset. All of it may be deleted at
any time: entries are made again.
"""

import atexit
from collections.abc import Callable
import hashlib
import json
import os
import shutil
import tempfile
import time

from absl import logging

from official_ext.base import errors
from official_ext.base.files import paths

_ABANDONED_SECONDS = 24 * 3600  # No entry takes that long to make.


def root() -> str:
  """The folder of everything that is kept."""
  home = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
  return os.path.join(home, 'official_ext')


def key_of(values: object) -> str:
  """A name for an entry: 32 hexadecimal digits that depend on JSON values alone."""
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def entry(kind: str, key: str, make: Callable[[str], None], folder: str = '') -> str:
  """The folder of an entry, which is made if it is missing.

  It is made under another name and renamed: of several processes that make it at the same time the first one wins, and
  the others take its. If the cache cannot be written, the entry is for this process alone.

  Args:
    kind: its kind, a word.
    key: see `key_of`.
    make: writes the files of the entry into an empty folder.
    folder: where entries are kept; '' for `root`.

  Raises:
    StorageError: there is no room for it, not even among the temporary files.
  """
  place = os.path.join(folder or root(), kind)
  path = os.path.join(place, key)
  if os.path.isdir(path):
    return path
  try:
    paths.make_folder(place)
    _remove_abandoned(place)
    temporary = tempfile.mkdtemp(prefix=f'{key}.tmp-', dir=place)
  except OSError as error:
    return _temporary_entry(kind, make, error)
  try:
    make(temporary)
    paths.sync_tree(temporary)  # An entry must not come back empty after a power loss.
    os.rename(temporary, path)
  except OSError as error:
    shutil.rmtree(temporary, ignore_errors=True)
    return path if os.path.isdir(path) else _temporary_entry(kind, make, error)
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise
  return path


def _temporary_entry(kind, make, error):
  logging.warning('%s: cannot be kept for later runs: %s', os.path.join(root(), kind), error.strerror or error)
  try:
    temporary = tempfile.mkdtemp(prefix=f'official_ext-{kind}-')
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    make(temporary)
  except OSError as again:
    raise errors.StorageError(
      f'TMPDIR: {tempfile.gettempdir()}: cannot be written: {again.strerror or again}'
    ) from again
  return temporary


def _remove_abandoned(place):
  """Removes the leftovers of processes that died while they made an entry."""
  for name in os.listdir(place):
    path = os.path.join(place, name)
    try:
      if '.tmp-' in name and time.time() - os.stat(path).st_mtime > _ABANDONED_SECONDS:
        shutil.rmtree(path, ignore_errors=True)
    except OSError:  # Another process has removed it.
      pass
