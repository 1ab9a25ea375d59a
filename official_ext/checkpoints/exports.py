"""Writes the checkpoints that a run keeps for use, not to continue from: `best/`, `ema_checkpoints/`."""

import os
import tempfile
from typing import Any

import tensorflow as tf

from official_ext.checkpoints import averaged_weights
from official_ext.checkpoints import manifests
from official_ext.files import storage


def write(checkpoint: tf.train.Checkpoint, path: str, is_chief: bool, **entries: Any) -> None:
  """Writes one checkpoint with its manifest, whole or not at all; deletes the remains of unfinished saves.

  Args:
    checkpoint: the object to write.
    path: of the checkpoint, `FOLDER/NAME-NUMBER`. The folder is made if it does not exist.
    is_chief: whether this worker's files count. Others write to a folder that is thrown away, because all workers must
      read the variables.
    **entries: of the manifest, JSON values.

  Raises:
    StorageError: it could not be written, and nothing of it is left.
  """
  try:
    if not is_chief:
      with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        checkpoint.write(os.path.join(folder, 'ckpt'))
      return
    folder, name = os.path.split(path)
    manifests.remove_unfinished(folder, name.rpartition('-')[0])
    manifests.begin(path)
    manifests.write(checkpoint.write(path), **entries, **averaged_weights.note(checkpoint))
  except storage.FAILURES as error:
    if is_chief:
      manifests.remove_partial(path)
    raise storage.not_written(path, error) from error
