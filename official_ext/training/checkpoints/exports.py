"""Writes the checkpoints that a run keeps for use, not to continue from: `best/`, `ema_checkpoints/`.

A run that goes back to an earlier step writes some of them again. The new one is then written whole into the folder
`PATH_temp`, and moved into the place of the old one, so that one of them exists whenever the power fails.
"""

import os
import tempfile

import tensorflow as tf

from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.training.checkpoints import averaged_weights
from official_ext.training.checkpoints import manifests

_NEW = '_temp'


def write(checkpoint: tf.train.Checkpoint, path: str, is_chief: bool, **entries: object) -> None:
  """Writes one checkpoint with its manifest, whole or not at all; deletes the remains of unfinished saves.

  Args:
    checkpoint: the object to write.
    path: of the checkpoint, `FOLDER/NAME-NUMBER`. The folder is made if it does not exist.
    is_chief: whether this worker's files count. Others write to a folder that is thrown away, because all workers must
      read the variables.
    **entries: of the manifest, JSON values.

  Raises:
    StorageError: it could not be written. It is removed completely, unless it was already replacing the checkpoint at
      `path`: the next `end_unfinished` then completes that.
  """
  try:
    if not is_chief:
      with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        checkpoint.write(os.path.join(folder, 'ckpt'))
      return
    folder, name = os.path.split(path)
    end_unfinished(folder, name.rpartition('-')[0])
    entries |= averaged_weights.note(checkpoint)
    if manifests.find_damage(path) is not None:
      manifests.begin(path)
      manifests.write(checkpoint.write(path), **entries)
      return
    new = os.path.join(path + _NEW, name)
    manifests.begin(new)
    manifests.write(checkpoint.write(new), **entries)
    if manifests.fingerprint(new) != manifests.fingerprint(path):
      manifests.begin(path)
      _move(new, path)
    paths.remove_folder(path + _NEW)
  except storage.FAILURES as error:
    if is_chief and not _is_moving(path):  # During a move, the files in PATH_temp are the only whole copy.
      manifests.remove_partial(path)
    raise storage.not_written(path, error) from error


def end_unfinished(folder: str, name: str) -> None:
  """Ends the operations that a kill or a power loss interrupted: moves that had begun are completed, other remains are
  deleted.

  Args:
    folder: of the checkpoints `NAME-NUMBER`. Nothing may be saving there.
    name: the part of their names before the number.
  """
  for path in manifests.unfinished(folder, name):
    if _is_moving(path):
      _move(os.path.join(path + _NEW, os.path.basename(path)), path)
  manifests.remove_unfinished(folder, name)


def _is_moving(path: str) -> bool:
  """Whether a move to `path` has begun and not ended; false if the storage does not answer."""
  try:
    return manifests.is_unfinished(path) and bool(manifests.entries(os.path.join(path + _NEW, os.path.basename(path))))
  except storage.FAILURES:
    return False


def _move(new: str, path: str) -> None:
  """Moves a whole checkpoint to the place of one that is marked; may be repeated if it was interrupted."""
  for file in manifests.files_of(new):
    tf.io.gfile.rename(file, os.path.join(manifests.folder_of(path), os.path.basename(file)), overwrite=True)
  paths.sync_to_disk(manifests.folder_of(path))
  tf.io.gfile.rename(new + manifests.SUFFIX, path + manifests.SUFFIX, overwrite=True)
  paths.sync_to_disk(manifests.folder_of(path))
  storage.remove(path + manifests.UNFINISHED)
