"""Runs on remote file systems, such as gs://bucket/run: copies of their small files, for commands that only read."""

import atexit
import os
import shutil
import tempfile

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.operations.runs import run_checkpoints
from official_ext.operations.runs import run_folder

_CONTENTS = ('.json', '.jsonl', '.yaml', '.log')  # Of other files, such as checkpoints, only the size is copied.


def copied(folder: str) -> run_folder.Run:
  """Copies what `official-ext runs` reads of a remote run to a temporary folder, which the end of this process deletes.

  Checkpoints become sparse files of their size. TensorFlow reads the remote file system.

  Args:
    folder: the path of the run, such as gs://bucket/run.

  Returns:
    The copy, named like the remote folder.

  Raises:
    UserError: the folder has no run, or cannot be read.
  """
  folder = folder.rstrip('/')
  name = os.path.basename(folder)
  place = tempfile.mkdtemp(prefix='official_ext-')
  atexit.register(shutil.rmtree, place, ignore_errors=True)
  copy = run_folder.Run(os.path.join(place, name), name)
  try:
    _copy_files(folder, copy.path)
    if not copy.exists():
      paths.read(os.path.join(folder, 'run.json'))  # Raises the error of a file system that lists nothing.
    for below in run_checkpoints.folders_of(copy):
      _copy_files(os.path.join(folder, below), copy.file(below))
  except FileNotFoundError:
    raise errors.UserError(f'{folder}: no run; name the folder that has its run.json') from None
  except OSError as error:
    raise errors.UserError(f'{folder}: cannot be read: {error.strerror or error}') from error
  return copy


def _copy_files(folder: str, target: str) -> None:
  os.makedirs(target, exist_ok=True)
  for name in paths.names(folder):
    path, copy = os.path.join(folder, name), os.path.join(target, name)
    if paths.is_folder(path):
      continue
    size, seconds = paths.size_and_time(path)
    with open(copy, 'wb') as file:
      if name.endswith(_CONTENTS):
        file.write(paths.read(path))
      else:
        file.truncate(size)
    os.utime(copy, (seconds, seconds))
