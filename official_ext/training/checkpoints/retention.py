"""Decides which checkpoints of a run's folder are kept; the others are deleted when a newer one counts."""

from collections.abc import Sequence

from absl import logging

from official_ext.base import errors
from official_ext.base.files import storage
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import state_file


class Retention:
  """Deletes checkpoints that need not be kept. The one just saved counts even if that fails."""

  def __init__(self, directory: str, max_to_keep: int | None = None, keep_every: int = 0):
    """Initializes it; deletes nothing.

    Args:
      directory: the run's folder.
      max_to_keep: how many of the newest checkpoints are kept; None keeps all.
      keep_every: checkpoints at multiples of this step are kept beside them; 0 for none.
    """
    self._directory = directory
    self._max_to_keep = max_to_keep
    self._keep_every = keep_every
    self._told: set[str] = set()

  def tidy(self, saved: str) -> None:
    """Names the checkpoints that are kept in the file named `checkpoint`, and deletes the others.

    Args:
      saved: path of the one that was just saved: it stays, even beside higher numbers.
    """
    there = manifests.paths(self._directory)
    outdated = [path for path in self._beyond_number(there) if path != saved]
    try:
      state_file.write(self._directory, saved, [path for path in there if path not in outdated])
    except errors.StorageError as error:
      self._tell_once(str(error))
    try:
      for path in outdated:
        manifests.remove(path)
    except storage.FAILURES as error:
      reason = storage.reason_of(error)
      self._tell_once(f'{self._directory}: checkpoints that are not to be kept cannot be deleted: {reason}')

  def _beyond_number(self, paths: Sequence[str]) -> list[str]:
    """Those of some checkpoints that are neither among the newest nor at a multiple of `keep_every`."""
    if self._max_to_keep is None:
      return []
    older = paths[: -self._max_to_keep]
    return [path for path in older if not (self._keep_every and manifests.step_of(path) % self._keep_every == 0)]

  def _tell_once(self, what: str) -> None:
    if what not in self._told:
      self._told.add(what)
      logging.error('%s', what)
