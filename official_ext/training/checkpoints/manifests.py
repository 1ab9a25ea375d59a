"""Writes and verifies manifests: a checkpoint counts if it has a manifest of its files, which is written last.

`PATH.manifest.json` holds the sizes and SHA-256 sums of `PATH.index` and `PATH.data-*`, and a sum over itself. It is
renamed into place when these files are on disk. It may come from anywhere, so it may only name the checkpoint's own
files, in its folder; no other file is read.

Only synced data survive a power loss. A save syncs, in this order: the mark `PATH.unfinished`, the data files, their
names in the folder, the manifest, its name. A deletion syncs the mark, then deletes the manifest, then the data files.
The mark exists while files are written or deleted. It distinguishes an unfinished save from Model Garden's checkpoints,
which have no manifest either.

The file named `checkpoint`, by which TensorFlow's tools find the newest checkpoint, is written for them, and read only
in a folder without manifests.
"""

from collections.abc import Callable, Sequence
import hashlib
import json
import os
import re
from typing import BinaryIO

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths as paths_lib
from official_ext.base.files import storage
from official_ext.base.run_folder import run_files

STATE_FILE = 'checkpoint'


def write_state_file(folder: str, newest: str, others: Sequence[str] = ()) -> None:
  """Writes the file, which names checkpoints in its own folder: a folder that is copied or moved names its own.

  Args:
    folder: of the file and the checkpoints.
    newest: path of the checkpoint that tools take.
    others: paths of the other checkpoints that are kept, oldest first; `newest` may be one of them.

  Raises:
    StorageError: it cannot be written.
  """
  name, *rest = (json.dumps(os.path.basename(each)) for each in (newest, *others))
  kept = [*(other for other in rest if other != name), name]  # As TensorFlow does: the newest is the last.
  lines = [f'all_model_checkpoint_paths: {each}\n' for each in kept]
  text = ''.join([f'model_checkpoint_path: {name}\n', *lines])
  path = os.path.join(folder, STATE_FILE)
  try:  # A temporary file that a kill leaves is the next one's.
    paths_lib.write_atomically(path, text.encode(), temporary=f'{path}.tmp')
  except storage.FAILURES as error:
    raise storage.not_written(path, error) from error


def newest_in_state_file(folder: str) -> str | None:
  """The path of the checkpoint that the file in a folder names.

  An absolute path in it may name the folder from which this one was copied or moved: a checkpoint of that name in this
  folder comes first. Without one the path counts, as other programs may name a checkpoint elsewhere.

  Returns:
    None without such a checkpoint, or if the file is damaged: a crash of another program leaves it empty.
  """
  try:
    if not paths_lib.is_remote(folder):
      local_files.check_regular(os.path.join(folder, STATE_FILE))
    state = tf.train.get_checkpoint_state(folder)
  except (ValueError, OSError):
    return None
  named = state.model_checkpoint_path if state else ''
  if not named:
    return None
  beside = os.path.join(folder, os.path.basename(named))
  is_inside = named.startswith(os.path.join(folder, ''))
  candidates = (named,) if is_inside else (beside, named)
  return next((path for path in candidates if paths_lib.exists(f'{path}.index')), None)


SUFFIX = run_files.MANIFEST_SUFFIX
UNFINISHED = '.unfinished'
_CHUNK = 2**20


def begin(path: str) -> None:
  """Marks the checkpoint at `path`, whose files are about to be written; makes its folder if it does not exist.

  A manifest of earlier files of this name is deleted.

  Raises:
    OSError or tf.errors.OpError: the mark cannot be written.
  """
  paths_lib.make_folder(folder_of(path))
  _mark(path)
  _remove_manifest(path)


def _mark(path: str) -> None:
  with tf.io.gfile.GFile(path + UNFINISHED, 'w') as f:
    f.write('The files of this checkpoint are being written or deleted; without a manifest, they do not count.\n')
  paths_lib.sync_to_disk(path + UNFINISHED)
  paths_lib.sync_to_disk(folder_of(path))


def write(path: str, **values: json_values.Json) -> None:
  """Writes the manifest of the checkpoint at `path`, whose files must be complete; takes the mark away.

  Args:
    path: of the checkpoint.
    **values: further entries, JSON values.

  Raises:
    FileNotFoundError: files are missing.
    OSError: the disk may not have stored all of it: the checkpoint does not count.
  """
  files = {}
  for file in files_of(path):
    paths_lib.sync_to_disk(file)
    with paths_lib.open_to_read(file) as opened:
      files[os.path.basename(file)] = {'size': _size(file), 'sha256': _sha256(opened)}
  if not run_files.is_complete_checkpoint(files):
    raise FileNotFoundError(f'{path}: no files of a checkpoint, but {", ".join(files) or "none at all"}')
  content = {'files': files, **values}
  content['sha256'] = run_files.manifest_sum(content)
  text = json.dumps(content, separators=(',', ':'))  # Every byte has a meaning, so that damage to any of them shows.
  paths_lib.sync_to_disk(folder_of(path))
  try:
    paths_lib.write_atomically(path + SUFFIX, text.encode(), temporary=_temporary(path))
  except OSError:
    storage.remove(path + SUFFIX)  # It may exist, but not on the disk.
    raise
  storage.remove(path + UNFINISHED)  # If that fails: with a manifest, it means nothing.


def read(path: str) -> json_values.JsonObject:
  """The entries of a manifest.

  Raises:
    ValueError: it is damaged.
    tf.errors.NotFoundError: it does not exist.
    tf.errors.OpError: it cannot be read.
  """
  name = os.path.basename(path)
  try:
    content = paths_lib.read(path + SUFFIX, local_files.MAX_RECORD)
  except local_files.UnreadableError as error:
    raise ValueError(f'{name}{SUFFIX} {error.strerror}') from error
  except FileNotFoundError as error:
    raise tf.errors.NotFoundError(None, None, str(error)) from error
  except OSError as error:
    raise tf.errors.UnknownError(None, None, str(error)) from error
  return run_files.parse_manifest(content, name)


def entries(path: str) -> json_values.JsonObject:
  """The entries of a manifest; none if it is missing or damaged."""
  try:
    return read(path)
  except (ValueError, tf.errors.OpError):
    return {}


def folder_of(path: str) -> str:
  """The folder of a checkpoint; '.' for a name without a folder."""
  return os.path.dirname(path) or '.'


def fingerprint(path: str) -> str | None:
  """A checksum that differs between checkpoints; None if the manifest is missing or damaged."""
  try:
    return run_files.manifest_sum(read(path))
  except (ValueError, tf.errors.OpError):
    return None


def find_damage(path: str) -> str | None:
  """The error of the checkpoint at `path`; None if every byte is as it was written."""
  try:
    files = read(path)['files']
  except (ValueError, tf.errors.OpError) as error:
    return str(error) if isinstance(error, ValueError) else 'it has no manifest'
  folder = os.path.dirname(path)
  for name, entry in sorted(files.items()):
    file = os.path.join(folder, name)
    try:
      with paths_lib.open_to_read(file) as opened:
        size = _size(file)
        if size != entry['size']:
          return f'{name} has {size} bytes instead of {entry["size"]}'
        if _sha256(opened) != entry['sha256']:
          return f'{name} is not the written content'
    except (FileNotFoundError, tf.errors.NotFoundError):
      return f'{name} is missing'
    except (local_files.UnreadableError, IsADirectoryError) as error:
      return f'{name} {error.strerror}'
    except (OSError, tf.errors.OpError) as error:
      return f'{name} cannot be read: {error}'
  return None


def has_manifest(path: str) -> bool:
  """Whether the checkpoint at `path` has a manifest, which may be damaged."""
  return paths_lib.exists(path + SUFFIX)


def find_unreadable(path: str) -> str | None:
  """The error of a checkpoint, by its manifest or, if it has none, by reading it; None if nothing is."""
  if has_manifest(path):
    return find_damage(path)
  try:
    reader = storage.open_checkpoint(path)
    for name in reader.get_variable_to_shape_map():
      np.asarray(reader.get_tensor(name))
  except Exception as error:  # The type depends on the place of the reader's error; even an IndexError.
    return ' '.join(str(error).split())[:200]
  return None


def complete_paths(directory: str, name: str = 'ckpt') -> list[str]:
  """The paths of the checkpoints in a folder that have a manifest, by step, oldest first."""
  return _paths(directory, name, SUFFIX)


def saved_paths(directory: str, name: str = 'ckpt') -> list[str]:
  """The paths of all checkpoints in a folder, with or without a manifest, but whole, by step, oldest first."""
  found = _paths(directory, name, '.index')  # Before the marks: a save may begin meanwhile.
  partial = unfinished(directory, name)
  return [path for path in found if path not in partial]


def is_unfinished(path: str) -> bool:
  """Whether a save or a deletion of the checkpoint at `path` has begun and not ended."""
  return paths_lib.exists(path + UNFINISHED) and not paths_lib.exists(path + SUFFIX)


def unfinished(directory: str, name: str = 'ckpt') -> list[str]:
  """The paths of the checkpoints in a folder whose save or deletion has begun and not ended, by step."""
  return [path for path in _paths(directory, name, UNFINISHED) if is_unfinished(path)]


def _paths(directory: str, name: str, suffix: str) -> list[str]:
  files = paths_lib.matching(directory, rf'{re.escape(name)}-[0-9]+{re.escape(suffix)}')
  return sorted((file[: -len(suffix)] for file in files), key=step_of)


def step_of(path: str) -> int:
  """The step in a checkpoint's name, `ckpt-STEP`."""
  return int(path.rpartition('-')[2])


def files_of(path: str) -> list[str]:
  """The paths of the files of the checkpoint at `path`."""
  folder, name = os.path.split(path)
  return paths_lib.matching(folder, re.escape(name) + run_files.CHECKPOINT_PART)


def remove(path: str) -> None:
  """Deletes a checkpoint, its manifest first: half a checkpoint does not count.

  Raises:
    OSError or tf.errors.OpError: it cannot be deleted.
  """
  try:
    _mark(path)
  except storage.FAILURES:  # A full disk: deleting helps.
    pass
  _remove_files(path)


def remove_unfinished(directory: str, name: str = 'ckpt') -> list[str]:
  """Deletes the remains of unfinished saves and deletions, as far as that is possible. Nothing may be saving there.

  These are the folders in which TensorFlow collects a checkpoint's parts, and marked checkpoints without a manifest. A
  marked one that the file named `checkpoint` has named since is whole: another program has written it.

  Returns:
    The paths of the marked checkpoints without a manifest that were deleted, by step.
  """
  removed = []
  for folder in paths_lib.matching(directory, rf'{re.escape(name)}-[0-9]+_temp'):
    _try(paths_lib.remove_folder, folder)
  for path in _paths(directory, name, UNFINISHED):
    if is_unfinished(path) and not _was_named_since(path):
      if _try(_remove_files, path):
        removed.append(path)
    else:
      storage.remove(path + UNFINISHED)
  return removed


def _was_named_since(path: str) -> bool:
  """Whether the file named `checkpoint` names a marked checkpoint, and is younger than the mark."""
  folder, name = os.path.split(path)
  if os.path.basename(newest_in_state_file(folder) or '') != name:
    return False
  times = [tf.io.gfile.stat(file).mtime_nsec for file in (os.path.join(folder, STATE_FILE), path + UNFINISHED)]
  return times[0] > times[1]


def remove_partial(path: str) -> None:
  """Deletes the remains of a failed save at `path`, as far as that is possible."""
  try:
    for file in (_temporary(path), f'{path}_temp'):
      if paths_lib.is_folder(file):
        paths_lib.remove_folder(file)
    if paths_lib.exists(path + SUFFIX):
      _remove_each(_temporary(path), path + UNFINISHED)
    else:
      _remove_files(path)
  except storage.FAILURES:  # The failure itself is being reported.
    pass


def _try(remove_: Callable[[str], None], path: str) -> bool:
  """Calls a function that deletes. Returns whether it succeeded; reports a failure of the storage."""
  try:
    remove_(path)
  except storage.FAILURES as error:  # The mark stays, so that it does not count.
    logging.warning('%s: the rest of it cannot be deleted: %s.', path, storage.reason_of(error))
    return False
  return True


def _remove_files(path: str) -> None:
  """Deletes the manifest, the files and the mark; a power loss in between leaves the mark, or nothing."""
  _remove_manifest(path)
  files = files_of(path)
  _remove_each(*sorted(files, key=lambda file: not file.endswith('.index')), _temporary(path))
  if files:
    paths_lib.sync_to_disk(folder_of(path))
  _remove_each(path + UNFINISHED)


def _remove_manifest(path: str) -> None:
  if paths_lib.exists(path + SUFFIX):
    _remove_each(path + SUFFIX)
    paths_lib.sync_to_disk(folder_of(path))


def _remove_each(*files: str) -> None:
  """Deletes as many of the files as possible; raises the first error if some cannot be deleted."""
  failures = []
  for file in files:
    try:
      tf.io.gfile.remove(file)
    except tf.errors.NotFoundError:
      pass
    except storage.FAILURES as error:
      failures.append(error)
  if failures:
    raise failures[0]


def _temporary(path: str) -> str:
  return f'{path}{SUFFIX}.tmp'


def set_aside(path: str) -> str:
  """Renames a damaged checkpoint to `PATH.broken`, with all its files. Returns the new path.

  The manifest comes last: without one, the files could be taken for another program's checkpoint.
  """
  broken = f'{path}.broken'
  for files in (files_of(path), [path + SUFFIX]):
    for file in files:
      if paths_lib.exists(file):
        paths_lib.move(file, broken + file[len(path) :])
    paths_lib.sync_to_disk(folder_of(path))
  return broken


def _size(file: str) -> int:
  return tf.io.gfile.stat(file).length


def _sha256(file: BinaryIO) -> str:
  """The sum of an open file."""
  digest = hashlib.sha256()
  while chunk := file.read(_CHUNK):
    digest.update(chunk)
  return digest.hexdigest()
