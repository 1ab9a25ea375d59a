"""Lists the checkpoints of a run's folder that count: they have a manifest, and were not rolled back."""

from collections.abc import Sequence

import tensorflow as tf

from official_ext.base import errors
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import rollbacks as rollbacks_lib
from official_ext.training.checkpoints import state_file


def paths(directory: str) -> list[str]:
  """The paths of the checkpoints that count, by step, oldest first.

  If a run is killed during a rollback, its next start deletes the checkpoints that were rolled back.

  Args:
    directory: the run's folder.

  Raises:
    CheckpointError: the list of rollbacks cannot be read.
  """
  found = manifests.paths(directory)
  rollbacks = rollbacks_lib.Rollbacks(directory)
  return [path for path in found if not is_rolled_back(path, rollbacks)]


def newest(directory: str) -> str | None:
  """The newest checkpoint in a folder that is not damaged.

  Args:
    directory: the run's folder, or one of another program's.

  Returns:
    If none has a manifest, as with Model Garden's own trainer: the one that the file named `checkpoint` names, or else
    the newest. None if there is none, or all are damaged.

  Raises:
    CheckpointError: the list of rollbacks cannot be read.
  """
  if not manifests.paths(directory):
    return state_file.newest(directory) or next(reversed(manifests.saved_paths(directory)), None)
  counted = paths(directory)
  candidates = [*counted, *of_another_program(directory, counted)]
  return next((path for path in reversed(candidates) if manifests.find_unreadable(path) is None), None)


def of_another_program(directory: str, counted: Sequence[str]) -> list[str]:
  """The paths of the checkpoints that another program, such as Model Garden's trainer, has saved last, oldest first.

  They are whole, have no manifest, and are newer than those that count. A save that was cut off leaves a mark instead.

  Args:
    directory: the run's folder.
    counted: the paths of the checkpoints that count, oldest first.
  """
  with_manifest = manifests.paths(directory)
  newest_step = manifests.step_of(counted[-1]) if counted else -1
  return [
    path
    for path in manifests.saved_paths(directory)
    # A save may end between the two lists.
    if manifests.step_of(path) > newest_step and path not in with_manifest and not manifests.has_manifest(path)
  ]


def is_rolled_back(path: str, rollbacks: rollbacks_lib.Rollbacks) -> bool:
  """Whether a rollback went back beyond a checkpoint after it was saved.

  Args:
    path: the checkpoint's.
    rollbacks: those of its folder.
  """
  return len(rollbacks) > 0 and rollbacks.leaves_behind(manifests.step_of(path), num_rollbacks(path))


def num_rollbacks(path: str) -> int:
  """The number of rollbacks before a checkpoint was saved; 0 if its manifest does not say."""
  return manifests.entries(path).get('num_rollbacks', 0)


def check_available(model_dir: str, mode: str, checkpoint: str | None) -> None:
  """Refuses to evaluate without a checkpoint.

  Args:
    model_dir: the run's folder.
    mode: the driver's mode.
    checkpoint: path of a checkpoint, or None for the newest in `model_dir`.

  Raises:
    UserError: there is no such checkpoint, or it is damaged.
  """
  if checkpoint is not None:
    if not tf.io.gfile.exists(f'{checkpoint}.index'):
      raise errors.UserError(f'--checkpoint={checkpoint}: no such checkpoint; a path such as {model_dir}/ckpt-100')
    damage = manifests.find_unreadable(checkpoint)
    if damage is not None:
      raise errors.UserError(f'--checkpoint={checkpoint}: it is damaged: {damage}')
  elif mode == 'eval' and not manifests.saved_paths(model_dir):
    raise errors.UserError(
      f'--mode=eval: there is no checkpoint in {model_dir}; train first, or name one with --checkpoint'
    )
