"""Checkpoints of the averaged weights: `ema_checkpoints/` of a run whose optimizer keeps a moving average."""

from collections.abc import Callable
import os

from absl import logging
from official.core import actions
import orbit
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base.files import storage
from official_ext.training.checkpoints import exports
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import state_file
from official_ext.training.optimization import ema_optimizer

FOLDER = 'ema_checkpoints'
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
    self._folder = os.path.join(export_dir, FOLDER)
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
      exports.write(self._checkpoint, path, self._is_chief, step=number)
      if self._is_chief:
        self._tidy(path, number)
    except (errors.StorageError, *storage.FAILURES) as error:
      logging.error('%s: could not be saved: %s. The averages saved before it stay.', path, storage.reason_of(error))
    finally:
      self._optimizer.swap_weights()

  def _tidy(self, path: str, number: int) -> None:
    there = manifests.paths(self._folder, _NAME)
    # Later ones are from a future that this run has not reached again.
    past = [old for old in there if manifests.step_of(old) <= number]
    outdated = past[: -self._max_to_keep] if self._max_to_keep else []
    state_file.write(self._folder, path, [each for each in there if each not in outdated])
    for old in outdated:
      manifests.remove(old)
