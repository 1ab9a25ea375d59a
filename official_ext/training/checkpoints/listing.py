"""Lists the checkpoints of a run's folder that count: they have a manifest, and were not rolled back.

`rollbacks.json` is the only record of rollbacks. A rollback has happened when this file is synced and renamed into
place. The checkpoints that were rolled back are deleted afterwards; if the process is killed in between, the next one
deletes them.
"""

from collections.abc import Sequence
import dataclasses
import os

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths as paths_lib
from official_ext.base.files import storage
from official_ext.training.checkpoints import manifests

_NAME = 'rollbacks.json'


@dataclasses.dataclass(frozen=True)
class Rollback:
  """One rollback.

  Attributes:
    from_step: the step at which the run rolled back.
    to_step: the step of the checkpoint that it restored.
    data_offset: added to the number of a step after `to_step` to choose its batches.
    skipped_updates: how many updates were skipped between the previous rollback and this one.
  """

  from_step: int
  to_step: int
  data_offset: int
  skipped_updates: int = 0


class Rollbacks:
  """The rollbacks of the run in a folder, oldest first."""

  def __init__(self, directory: str):
    """Reads them.

    Raises:
      CheckpointError: the file exists and cannot be read.
    """
    self._path = os.path.join(directory, _NAME)
    self._all: list[Rollback] = []
    self.read()

  def read(self) -> None:
    """Reads the file again."""
    self._all = []
    if _NAME not in paths_lib.names(os.path.dirname(self._path)):
      return
    try:
      self._all = _read(self._path)
    except (OSError, ValueError, TypeError) as error:
      raise errors.CheckpointError(
        f'{self._path}: cannot be read ({error}), and says which of the checkpoints beside it count'
      ) from error

  def __len__(self) -> int:
    return len(self._all)

  def add(self, rollback: Rollback, write: bool = True) -> None:
    """Notes one more rollback.

    Args:
      rollback: the newest.
      write: whether to write the file; false on a worker whose files do not count.

    Raises:
      StorageError: it cannot be noted, and so has not happened.
    """
    noted = [*self._all, rollback]
    if write:
      _write(self._path, noted)
    self._all = noted

  def keep(self, number: int, aside: str) -> None:
    """Forgets all but the first rollbacks: the others are of another line of training.

    Args:
      number: how many are kept.
      aside: a folder that gets a copy of the file.
    """
    if len(self._all) > number:
      _write(os.path.join(aside, _NAME), self._all)
      self._all = self._all[:number]
      _write(self._path, self._all)

  @property
  def skipped_updates(self) -> int:
    """The number of updates that were skipped up to the last rollback, including futures that were rolled back."""
    return sum(entry.skipped_updates for entry in self._all)

  def data_offset(self, step: int) -> int:
    """The offset added to a step's number to choose its batches, if the run resumes from `step`."""
    return next((entry.data_offset for entry in reversed(self._all) if entry.to_step <= step), 0)

  def is_new_at(self, step: int, num_rollbacks: int) -> bool:
    """Whether a rollback restored a checkpoint after it was saved: see `leaves_behind`."""
    return any(step >= entry.to_step for entry in self._all[num_rollbacks:])

  def leaves_behind(self, step: int, num_rollbacks: int) -> bool:
    """Whether a checkpoint belongs to a future that was rolled back.

    Args:
      step: the checkpoint's.
      num_rollbacks: how many there had been when it was saved.
    """
    return any(step > entry.to_step for entry in self._all[num_rollbacks:])


def _read(path: str) -> list[Rollback]:
  """The content of a file; raises a ValueError or a TypeError if it cannot be trusted."""
  found = [Rollback(**entry) for entry in json_values.load_list_file(path)]
  for entry in found:
    for name, value in dataclasses.asdict(entry).items():
      if not json_values.is_int(value):
        raise ValueError(f'{name}: expected a whole number, got {value!r}')
  return found


def _write(path: str, rollbacks: list[Rollback]) -> None:
  storage.write_bytes(path, json_values.encode([dataclasses.asdict(entry) for entry in rollbacks]))


def checkpoint_paths(directory: str) -> list[str]:
  """The paths of the checkpoints that count, by step, oldest first.

  If a run is killed during a rollback, its next start deletes the checkpoints that were rolled back.

  Args:
    directory: the run's folder.

  Raises:
    CheckpointError: the list of rollbacks cannot be read.
  """
  found = manifests.complete_paths(directory)
  rollbacks = Rollbacks(directory)
  return [path for path in found if not is_rolled_back(path, rollbacks)]


def newest(directory: str) -> str | None:
  """The newest checkpoint in a folder that is not damaged.

  Args:
    directory: the run's folder, or one of another program's.

  Returns:
    If none has a manifest, as with Model Garden's own trainer: the one that the file named `checkpoint` names, or else
    the newest. None without a checkpoint, or if all are damaged.

  Raises:
    CheckpointError: the list of rollbacks cannot be read.
  """
  if not manifests.complete_paths(directory):
    return manifests.newest_in_state_file(directory) or next(reversed(manifests.saved_paths(directory)), None)
  counted = checkpoint_paths(directory)
  candidates = [*counted, *of_another_program(directory, counted)]
  return next((path for path in reversed(candidates) if manifests.find_unreadable(path) is None), None)


def of_another_program(directory: str, counted: Sequence[str]) -> list[str]:
  """The paths of the checkpoints that another program, such as Model Garden's trainer, has saved last, oldest first.

  They are whole, have no manifest, and are newer than the checkpoints that count. An unfinished save leaves a mark.

  Args:
    directory: the run's folder.
    counted: the paths of the checkpoints that count, oldest first.
  """
  with_manifest = manifests.complete_paths(directory)
  newest_step = manifests.step_of(counted[-1]) if counted else -1
  return [
    path
    for path in manifests.saved_paths(directory)
    # A save may end between the two lists.
    if manifests.step_of(path) > newest_step and path not in with_manifest and not manifests.has_manifest(path)
  ]


def is_rolled_back(path: str, rollbacks: Rollbacks) -> bool:
  """Whether a checkpoint was rolled back after it was saved.

  Args:
    path: the checkpoint's.
    rollbacks: of its folder.
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
    if not paths_lib.exists(f'{checkpoint}.index'):
      raise errors.UserError(f'--checkpoint={checkpoint}: no such checkpoint; a path such as {model_dir}/ckpt-100')
    damage = manifests.find_unreadable(checkpoint)
    if damage is not None:
      raise errors.UserError(f'--checkpoint={checkpoint}: it is damaged: {damage}')
  elif mode == 'eval' and not manifests.saved_paths(model_dir):
    raise errors.UserError(
      f'--mode=eval: there is no checkpoint in {model_dir}; train first, or name one with --checkpoint'
    )
