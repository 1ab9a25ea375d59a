"""Finds the checkpoint that a user's path names: --checkpoint, `task.init_checkpoint`, `ext.load`."""

import tensorflow as tf

from official_ext.base import errors
from official_ext.training.checkpoints import best_history
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests


def path_of(given: str, source: str) -> str:
  """The path of a checkpoint. A folder means the best in it, if it is one of best checkpoints, or else its newest.

  Args:
    given: the path of a checkpoint, or of a folder.
    source: who names it: the beginning of an error.

  Raises:
    UserError: there is none, or the folder has only damaged ones.
  """
  if tf.io.gfile.exists(f'{given}.index'):
    return given
  if not tf.io.gfile.isdir(given):
    raise errors.UserError(f'{source}: no such checkpoint; a path such as {manifests.folder_of(given)}/ckpt-100')
  step = best_history.best_step(given)
  best = [path for path in manifests.saved_paths(given) if manifests.step_of(path) == step]
  if best and manifests.find_unreadable(best[0]) is None:
    return best[0]
  try:
    newest = listing.newest(given)
  except errors.CheckpointError as error:
    raise errors.UserError(f'{source}: {error}') from error
  if newest is None:
    undamaged = 'undamaged ' if manifests.paths(given) else ''
    raise errors.UserError(f'{source}: no {undamaged}checkpoint in this folder')
  return newest
