"""The rollbacks of a run: the steps that it went back to, and the batches that it has skipped since.

`rollbacks.json` in the run's folder is their only record. It is synced and renamed into place, and only then has a
rollback happened: checkpoints of the future that was rolled back are deleted after that, or, if the process is killed
in between, by the next process.
"""

import dataclasses
import json
import os

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.files import storage

_NAME = 'rollbacks.json'


@dataclasses.dataclass(frozen=True)
class Rollback:
  """One rollback.

  Attributes:
    from_step: the step at which the run rolled back.
    to_step: the step of the checkpoint that it restored.
    data_offset: how many updates further than its number a step after `to_step` finds its batches.
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
    if _NAME not in paths.names(os.path.dirname(self._path)):
      return
    try:
      self._all = _parse(paths.read(self._path, regular_files.MAX_RECORD))
    except (OSError, ValueError, TypeError, RecursionError) as error:
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
    """Forgets all but the first rollbacks, as those of another line of training.

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
    """How many updates further than its number a step finds its batches, if the run continues from `step`."""
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


def _parse(content: bytes) -> list[Rollback]:
  """Parses the content; raises a ValueError or a TypeError if it cannot be trusted."""
  entries = json.loads(content)
  if not isinstance(entries, list):
    raise ValueError('expected a list')
  found = [Rollback(**entry) for entry in entries]
  for entry in found:
    for name, value in dataclasses.asdict(entry).items():
      if not json_types.is_int(value):
        raise ValueError(f'{name}: expected a whole number, got {value!r}')
  return found


def _write(path: str, rollbacks: list[Rollback]) -> None:
  text = json.dumps([dataclasses.asdict(entry) for entry in rollbacks], indent=2) + '\n'
  storage.write(path, text)
