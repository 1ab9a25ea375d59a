"""Restores a checkpoint, all of it, even into variables that the first steps after it make."""

from collections.abc import Callable, Iterator
import contextlib
import os

import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base.files import readable_paths
from official_ext.training.checkpoints import averaged_weights
from official_ext.training.checkpoints import contents as contents_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.devices import workers as workers_lib

# The parts that an evaluation does not need.
_OF_TRAINING = ('optimizer', 'step_state')


class Restoring:
  """Restores, and compares the objects with the checkpoint: before it is read, or as soon as all variables exist."""

  def __init__(self, checkpoint: tf.train.Checkpoint, trains: bool, create_variables: Callable[[], bool]):
    """Initializes it; restores nothing.

    Args:
      checkpoint: the object to restore.
      trains: whether the process trains; another one does not need the optimizer.
      create_variables: builds a model that is built by its first call; False: it cannot.
    """
    self._checkpoint = checkpoint
    self._without = () if trains else _OF_TRAINING
    self._reads_optimizer = trains
    self._create_variables = create_variables
    self._unproven: str | None = None  # A checkpoint that variables which do not exist yet may need.

  def restore(self, path: str) -> None:
    """Restores one checkpoint.

    Raises:
      UserError: its variables, or their shapes, differ from those here.
    """
    contents = contents_lib.Contents(path)
    match, self._unproven = contents.match(self._checkpoint, self._without), None
    if match.may_fit_later and not self._is_built():
      all_made = self._create_variables()
      match = contents.match(self._checkpoint, self._without)
      self._unproven = path if match.may_fit_later and not all_made else None
    if self._unproven is None:
      match.check(path)
    children = dict(tf.train.TrackableView.children(self._checkpoint))
    readable = tf.train.Checkpoint(**{name: child for name, child in children.items() if name not in self._without})
    # Missing values were named above; the others are for variables that are made later.
    readable.read(readable_paths.readable(path)).expect_partial()
    averaged_weights.put_back(self._checkpoint, path, contents, optimizer_is_read=self._reads_optimizer)

  @contextlib.contextmanager
  def completing(self) -> Iterator[None]:
    """A context for steps that may make variables. At its end, an earlier restore must be complete.

    Raises:
      UserError: the variables of the restored checkpoint, or their shapes, differ from those that exist now.
    """
    path = self._unproven
    try:
      yield
    except ValueError as error:
      if path is None or isinstance(error, errors.UserError):
        raise
      # TensorFlow gives a variable that is made after the restore its shape in the file.
      raise errors.UserError(
        f'{path}: not a checkpoint of this model, or the first step has another error: '
        f'{" ".join(str(error).split())[:300]}'
      ) from error
    if path is not None:
      self._unproven = None
      contents_lib.Contents(path).match(self._checkpoint, self._without).check(path)

  def _is_built(self) -> bool:
    """Whether the model is known to make no more variables."""
    model = getattr(self._checkpoint, 'model', None)
    if not isinstance(model, tf_keras.layers.Layer):
      return model is None
    layers = [module for module in model.submodules if isinstance(module, tf_keras.layers.Layer)]
    return model.built and all(layer.built for layer in layers)


def check_same_as_chief(path: str, workers: workers_lib.Workers) -> None:
  """Makes sure that all workers restore the same checkpoint.

  Args:
    path: of the checkpoint that this worker restores.
    workers: all that train together. All of them must call.

  Raises:
    CheckpointError: the chief restores another one.
  """
  here = [os.path.basename(path), manifests.fingerprint(path)]
  name, fingerprint = workers.from_chief('restored checkpoint', lambda: here)
  if [name, fingerprint] == here:
    return
  what = f'worker 0 restores {name}' if name != here[0] else 'it is not the one that worker 0 restores'
  if not tf.io.gfile.exists(f'{path}.index'):
    what = 'worker 0 restores this checkpoint, and it is not here'
  raise errors.CheckpointError(f'{path}: {what}. All workers need the same model_dir, on a file system that they share')
