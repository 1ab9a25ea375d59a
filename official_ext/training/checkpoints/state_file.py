"""The file named `checkpoint` in a folder, by which TensorFlow's tools and Model Garden's tasks find its newest one.

This library goes by manifests (manifests.py), and by this file only in a folder without any.
"""

from collections.abc import Sequence
import json
import os

import tensorflow as tf

from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.files import storage

NAME = 'checkpoint'


def write(folder: str, newest: str, others: Sequence[str] = ()) -> None:
  """Writes the file, which names checkpoints in its own folder: a folder that is copied or moved names its own.

  Args:
    folder: that of the file and the checkpoints.
    newest: path of the checkpoint that tools take.
    others: paths of those that are kept beside it, oldest first; `newest` may be one of them.

  Raises:
    StorageError: it cannot be written.
  """
  name, *rest = (json.dumps(os.path.basename(each)) for each in (newest, *others))
  kept = [*(other for other in rest if other != name), name]  # As TensorFlow does: the newest is the last.
  lines = [f'all_model_checkpoint_paths: {each}\n' for each in kept]
  text = ''.join([f'model_checkpoint_path: {name}\n', *lines])
  path = os.path.join(folder, NAME)
  try:  # A temporary file that a kill leaves is the next one's.
    paths.write_atomically(path, text.encode(), temporary=f'{path}.tmp')
  except storage.FAILURES as error:
    raise storage.not_written(path, error) from error


def newest(folder: str) -> str | None:
  """The path of the checkpoint that the file in a folder names.

  An absolute path in it may be that of a folder from which this one was copied or moved: a checkpoint of that name
  beside the file comes first. Without one the path counts, as other programs may name a checkpoint elsewhere.

  Returns:
    None if there is none, or the file is damaged: a crash of another program leaves it empty.
  """
  try:
    if not paths.is_remote(folder):
      regular_files.check(os.path.join(folder, NAME))
    state = tf.train.get_checkpoint_state(folder)
  except (ValueError, OSError):
    return None
  named = state.model_checkpoint_path if state else ''
  if not named:
    return None
  beside = os.path.join(folder, os.path.basename(named))
  is_inside = named.startswith(os.path.join(folder, ''))
  candidates = (named,) if is_inside else (beside, named)
  return next((path for path in candidates if tf.io.gfile.exists(f'{path}.index')), None)
