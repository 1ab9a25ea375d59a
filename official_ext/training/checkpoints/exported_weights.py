"""Writes checkpoints for use, not for resuming: `best/`, `ema_checkpoints/`; with `ema`, of the averaged weights.

While a run trains, and in `ckpt-N`, the model has the raw weights and the optimizer has the averages. In checkpoints
for use the two are swapped. The manifest notes this under `weights`, and a restore swaps them back.

A run that rolls back writes some of these checkpoints again. The new one is written whole into the folder `PATH_temp`,
then moved into the place of the old one, so that one of them survives a power failure.
"""

from collections.abc import Callable
import os
import tempfile

from absl import logging
from official.core import actions
from official.core import train_utils
import orbit
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.training.checkpoints import contents as contents_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.optimization import ema_optimizer

RAW, AVERAGED = 'raw', 'averaged'
SLOT = ema_optimizer.SLOT
# The names of exported checkpoints without a note, such as Model Garden's own.
_AVERAGED_NAMES = (train_utils.BEST_CHECKPOINT_NAME, 'average_weights')


def _averages_in(checkpoint: tf.train.Checkpoint) -> ema_optimizer.ExponentialMovingAverage | None:
  return ema_optimizer.find(getattr(checkpoint, 'optimizer', None))


def manifest_entries(checkpoint: tf.train.Checkpoint) -> dict[str, object]:
  """The entries of the manifest of a checkpoint: which weights the model has, and which variables have slots."""
  ema = _averages_in(checkpoint)
  weights = AVERAGED if ema is not None and ema.is_swapped else RAW
  return {'weights': weights, **contents_lib.note_slot_owners(checkpoint)}


def held_weights(path: str, contents: contents_lib.Contents) -> str:
  """Which weights the model has in a checkpoint: AVERAGED, or RAW, also if there are no averages."""
  noted = manifests.entries(path).get('weights')
  if noted in (RAW, AVERAGED):
    return noted
  is_export = os.path.basename(path).rpartition('-')[0] in _AVERAGED_NAMES
  return AVERAGED if is_export and contents.slots(SLOT) else RAW


def put_back_weights(
  checkpoint: tf.train.Checkpoint, path: str, contents: contents_lib.Contents, optimizer_is_read: bool
) -> None:
  """Ends a restore: afterwards the model has the raw weights, and the optimizer the averages, if it keeps any.

  Args:
    checkpoint: the object that was restored.
    path: of the checkpoint that it was restored from.
    contents: the contents of that.
    optimizer_is_read: whether the optimizer was restored too; an evaluation reads only a part of it.

  Raises:
    UserError: averages must be evaluated, and the checkpoint lacks some or all of them.
  """
  ema = _averages_in(checkpoint)
  if ema is None:
    return
  places = contents.match(checkpoint).places
  if not optimizer_is_read:
    _read_averages(ema, places, path, contents)
  ema.has_begun = bool(contents.slots(SLOT))
  if held_weights(path, contents) == AVERAGED:
    ema.is_swapped = True
    ema.swap_weights()
  # Checkpoints of older versions have no exact averages, and averages of counters that stay at 0.
  exact = contents.slots(ema_optimizer.EXACT_SLOT) if optimizer_is_read else {}
  ema.complete_restore(have_exact={id(place.variable) for place in places.values() if place.key in exact})


def _read_averages(ema, places, path, contents):
  slots, missing = contents.slots(SLOT), {id(average) for average in ema.averages.values()}
  for place in places.values():
    average = ema.averages.get(id(place.variable))
    if average is not None and place.key in slots:
      average.assign(contents.value(slots[place.key]))
      missing.discard(id(average))
  if missing:
    raise errors.UserError(
      f'{path}: {"it holds no moving averages" if not slots else f"{len(missing)} moving averages are not in it"}; '
      '--set=trainer.optimizer_config.ema=null takes the weights themselves'
    )
  counter = next((place for name, place in places.items() if place.variable is ema.iterations), None)
  if counter is not None:
    counter.variable.assign(contents.value(counter.key))


_NEW = '_temp'


def write_export(checkpoint: tf.train.Checkpoint, path: str, is_chief: bool, **entries: object) -> None:
  """Writes one checkpoint with its manifest, whole or not at all; deletes the remains of unfinished saves.

  Args:
    checkpoint: the object to write.
    path: of the checkpoint, `FOLDER/NAME-NUMBER`. The folder is made if it does not exist.
    is_chief: whether this worker's files count. Others write to a folder that is thrown away, because all workers must
      read the variables.
    **entries: of the manifest, JSON values.

  Raises:
    StorageError: it could not be written. It is removed completely, unless it was already replacing the checkpoint at
      `path`: the next `end_unfinished_exports` then completes that.
  """
  try:
    if not is_chief:
      with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        checkpoint.write(os.path.join(folder, 'ckpt'))
      return
    folder, name = os.path.split(path)
    end_unfinished_exports(folder, name.rpartition('-')[0])
    entries |= manifest_entries(checkpoint)
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


def end_unfinished_exports(folder: str, name: str) -> None:
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
    paths.move(file, os.path.join(manifests.folder_of(path), os.path.basename(file)))
  paths.sync_to_disk(manifests.folder_of(path))
  paths.move(new + manifests.SUFFIX, path + manifests.SUFFIX)
  paths.sync_to_disk(manifests.folder_of(path))
  storage.remove(path + manifests.UNFINISHED)


EMA_FOLDER = 'ema_checkpoints'
_NAME = 'average_weights'


class EMACheckpointing(actions.EMACheckpointing):
  """After every evaluation, saves the averaged weights as `ema_checkpoints/average_weights-N`: see base class.

  N is the optimizer's count of updates. Only the chief's files count; other workers write to a folder that is thrown
  away, because all of them must read the variables. A checkpoint has a manifest, and the one just saved is never
  deleted. If one cannot be written, that is reported; the run continues, and the earlier ones stay.
  """

  def __init__(
    self,
    export_dir: str,
    optimizer: tf_keras.optimizers.Optimizer,
    checkpoint: tf.train.Checkpoint,
    max_to_keep: int | None = 1,
    is_chief: bool = True,
    owns: Callable[[], bool] = lambda: True,
  ):
    """Initializes the action; writes nothing.

    Args:
      export_dir: the run's folder.
      optimizer: an optimizer with a moving average, which may be inside a LossScaleOptimizer.
      checkpoint: the object to save.
      max_to_keep: how many are kept; None keeps all.
      is_chief: whether this worker's files count.
      owns: called every time: whether this process may write to the folder; the same on all workers.

    Raises:
      ValueError: the optimizer has no moving average.
    """
    # Without the base class's constructor, which makes a manager that writes on every worker.
    self._folder = os.path.join(export_dir, EMA_FOLDER)
    average = ema_optimizer.find(optimizer)
    if average is None:
      raise ValueError(f'{type(optimizer).__name__} keeps no moving average of the weights.')
    self._optimizer = average
    self._checkpoint = checkpoint
    self._max_to_keep = max_to_keep
    self._is_chief = is_chief
    self._owns = owns

  def __call__(self, output: orbit.runner.Output) -> None:
    """Saves. The training weights come back even if it fails.

    Args:
      output: the logs of the evaluation.
    """
    del output
    if not self._owns():
      return
    number = int(self._optimizer.iterations.numpy())
    path = os.path.join(self._folder, f'{_NAME}-{number}')
    self._optimizer.swap_weights()
    try:
      write_export(self._checkpoint, path, self._is_chief, step=number)
      if self._is_chief:
        self._tidy(path, number)
    except (errors.StorageError, *storage.FAILURES) as error:
      logging.error('%s: could not be saved: %s. The averages saved before it stay.', path, storage.reason_of(error))
    finally:
      self._optimizer.swap_weights()

  def _tidy(self, path: str, number: int) -> None:
    there = manifests.complete_paths(self._folder, _NAME)
    # Later ones are from a future that this run has not reached again.
    past = [old for old in there if manifests.step_of(old) <= number]
    outdated = past[: -self._max_to_keep] if self._max_to_keep else []
    manifests.write_state_file(self._folder, path, [each for each in there if each not in outdated])
    for old in outdated:
      manifests.remove(old)
