"""Decides which checkpoints of a run's folder are kept; the others are deleted when a newer one counts."""

from absl import logging

from official_ext import tf_internals
from official_ext.checkpoints import manifests
from official_ext.files import storage


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
    """Deletes checkpoints, and notes those that are left for tools that look for the file named `checkpoint`.

    Args:
      saved: path of the one that was just saved: it stays, whatever is there with a higher number.
    """
    try:
      self._prune(saved)
    except storage.FAILURES as error:
      self._tell_once(f'{self._directory}: checkpoints that are not to be kept cannot be deleted', error)
    try:
      tf_internals.update_checkpoint_state(
        self._directory, model_checkpoint_path=saved, all_model_checkpoint_paths=manifests.paths(self._directory)
      )
    except storage.FAILURES as error:
      self._tell_once(f'{self._directory}/checkpoint: cannot be written', error)

  def _prune(self, saved: str) -> None:
    if self._max_to_keep is None:
      return
    for path in manifests.paths(self._directory)[: -self._max_to_keep]:
      if path != saved and not (self._keep_every and manifests.step_of(path) % self._keep_every == 0):
        manifests.remove(path)

  def _tell_once(self, what: str, error: BaseException) -> None:
    if what not in self._told:
      self._told.add(what)
      logging.error('%s: %s', what, storage.reason_of(error))
