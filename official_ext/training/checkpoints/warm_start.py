"""Starts a new run from the weights of another: `task.init_checkpoint`."""

from collections.abc import Sequence
import fnmatch
import logging

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.training.checkpoints import contents as contents_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import training_lines

_MAX_NAMED = 5
_OF_UNRESTORED = (
  'Detecting that an object or model or tf.train.Checkpoint is being deleted with unrestored values',
  'Value in checkpoint could not be found in the restored object',
  'An attribute in the restored object could not be found in the checkpoint',
)
_FIELD = 'task.init_checkpoint'


def find(path: str) -> str:
  """Finds the checkpoint for a value of `task.init_checkpoint`.

  Args:
    path: of a checkpoint or a folder: see `training_lines.checkpoint_named`.

  Returns:
    Its path.

  Raises:
    UserError: it does not exist, or is damaged.
  """
  path = training_lines.checkpoint_named(path, f'{_FIELD}: {path}')
  if paths.exists(path + manifests.SUFFIX):
    damage = manifests.find_damage(path)
    if damage is not None:
      raise errors.UserError(f'{_FIELD}: {path}: it is damaged: {damage}')
  return path


def load_weights(model: tf_keras.Model, path: str, may_miss: Sequence[str] = ()) -> None:
  """Assigns the weights of a checkpoint to a model: all of the model's variables, by name and shape.

  The rest of the checkpoint (optimizer, step) is ignored, and so are weights that have no place in the model.

  Args:
    model: built.
    path: see `find`.
    may_miss: patterns such as `*logits*`, of variable names or of the names in checkpoints, for variables that may be
      missing or of another shape in the checkpoint; they keep their values.

  Raises:
    UserError: a variable is missing or of another shape, and no pattern allows it; one has values that are not finite;
      or nothing fits.

  Example:

    >>> import os, tempfile
    >>> def build_model():
    ...   return tf_keras.Sequential([tf_keras.Input([2]), tf_keras.layers.Dense(3)])
    >>> trained, model = build_model(), build_model()
    >>> path = tf.train.Checkpoint(model=trained).save(os.path.join(tempfile.mkdtemp(), 'ckpt'))
    >>> ext.load_weights(model, path)
    Initialized 2 of 2 variables from ...
    >>> all(np.array_equal(*pair) for pair in zip(model.weights, trained.weights, strict=True))
    True
  """
  path = find(path)
  try:
    contents = contents_lib.Contents(path)
  except tf.errors.OpError as error:
    raise _damaged(path, error) from error
  root = tf.train.Checkpoint(model=model)
  match, present = contents.match(root), contents_lib.variables(root)
  if not present:
    raise errors.UserError(f'{_FIELD}: the model has no variables yet; let build_model call it once on an input')
  problems, num_loaded = [], 0
  for name, variable in present.items():
    shape = tuple(variable.shape.as_list())
    place = match.places.get(name)
    if place is not None and place.shape == shape:
      value = tf.convert_to_tensor(_read(contents, path, place.key))
      if value.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(value)):
        problems.append(f'{name} ({variable.name}) has values that are not finite in it')
        continue
      variable.assign(tf.cast(value, variable.dtype))
      num_loaded += 1
    elif not _matches(may_miss, name, variable):
      difference = f'has shape {place.shape} in it, {shape} here' if place is not None else 'is not in it'
      problems.append(f'{name} ({variable.name}) {difference}')
  if match.has_other_base and problems:
    raise errors.UserError(f'{_FIELD}: {path}: {contents_lib.OTHER_BASE}')
  if problems:
    more = f'; and {len(problems) - _MAX_NAMED} more' if len(problems) > _MAX_NAMED else ''
    raise errors.UserError(
      f'{_FIELD}: {path}: {"; ".join(problems[:_MAX_NAMED])}{more}. Variables that shall keep their initial values '
      f'are named by patterns in {_FIELD}_may_miss'
    )
  if not num_loaded:
    raise errors.UserError(f"{_FIELD}: {path}: none of the model's {len(present)} variables is in it")
  if tf.distribute.get_strategy().extended.should_checkpoint:
    num_left = len([name for name in match.unplaced if name.startswith('model/')])
    print(
      f'Initialized {num_loaded} of {len(present)} variables from {path}'
      + (f'; {num_left} of its weights have no place' if num_left else ''),
      flush=True,
    )


def hide_unrestored() -> None:
  """Drops TensorFlow's warnings about a failed restore, one for each value that was not restored.

  They come when its objects are deleted, at any time after the error, and add nothing to the error.
  """
  tf.get_logger().addFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
  return not str(record.msg).startswith(_OF_UNRESTORED)


def _read(contents: contents_lib.Contents, path: str, key: str) -> np.ndarray:
  try:
    return contents.value(key)
  except (tf.errors.OpError, IndexError) as error:  # The type depends on the place of the reader's error.
    raise _damaged(path, error) from error


def _damaged(path: str, error: BaseException) -> errors.UserError:
  return errors.UserError(f'{_FIELD}: {path}: it is damaged: {" ".join(str(error).split())[:200]}')


def _matches(patterns: Sequence[str], name: str, variable: tf.Variable) -> bool:
  return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns for text in (name, variable.name))
