"""Computes the numbers and the memory of a model's weights, gradients and optimizer slots.

Also finds the frozen weights of a model, which no gradient reaches and checkpoints leave out. A layer has some if its
attribute `is_frozen` is true; its method `own_weights` returns them by attribute.

Example:

  >>> model = tf_keras.Sequential([tf_keras.Input([256]), tf_keras.layers.Dense(1024)])
  >>> optimizer = tf_keras.optimizers.Adam()
  >>> optimizer.build(model.trainable_variables)
  >>> size = ext.model_size.of(model, optimizer)
  >>> size.parameters, size.weight_bytes
  (263168, 1052672)
  >>> size.describe()
  '263,168 parameters, all trained; weights 1 MiB, gradients 1 MiB, optimizer slots 2.01 MiB'
"""

from collections.abc import Iterable
import dataclasses
from typing import Any

import tensorflow as tf

from official_ext.base import tf_internals

# Of the names of variables that hold the digest of frozen weights in their own name.
DIGEST_PREFIX = 'frozen_weights_sha256_'


def constants(model: Any) -> list[object]:
  """The variables that no gradient reaches and no checkpoint holds; [] without frozen layers.

  Args:
    model: a `tf.Module`, whose frozen layers have a true attribute `is_frozen`.
  """
  return [variable for part in _parts_that_are('is_frozen', model) for variable in part.own_weights().values()]


def _parts_that_are(state: str, model: Any) -> list[Any]:
  return [part for part in (model, *model.submodules) if getattr(part, state, False)]


_PACKED = 0.9  # Weights that take less than this part of their memory in float32 are reported with it.


@dataclasses.dataclass(frozen=True)
class ModelSize:
  """The size of a model and of its training, without activations.

  Attributes:
    parameters: floating-point numbers in its weights; of packed weights the numbers that they represent.
    trained_parameters: the numbers in trainable variables.
    weight_bytes: the memory of all its variables.
    gradient_bytes: the memory of the gradients of its trainable variables.
    slot_bytes: the memory of the optimizer's variables: moments, moving averages.
  """

  parameters: int
  trained_parameters: int
  weight_bytes: int
  gradient_bytes: int
  slot_bytes: int

  def describe(self) -> str:
    """The size in one line, in MiB: '1,000 parameters, all trained; weights 0.00381 MiB, ...'."""
    text = f'{self.parameters:,} parameters'
    weights = f'weights {_mebibytes(self.weight_bytes)}'
    whole = 4 * self.parameters
    if self.weight_bytes < _PACKED * whole:
      weights += f' ({_mebibytes(whole)} in float32)'
    if not self.trained_parameters:
      return f'{text}; {weights}'
    share = 100 * self.trained_parameters / max(self.parameters, 1)
    trained = 'all trained' if self.trained_parameters == self.parameters else f'{self.trained_parameters:,} trained'
    trained += f' ({share:.2g} %)' if share < 99.5 else ''
    sizes = (('gradients', self.gradient_bytes), ('optimizer slots', self.slot_bytes))
    return ', '.join([f'{text}, {trained}; {weights}', *(f'{name} {_mebibytes(count)}' for name, count in sizes)])


def of(model: Any, optimizer: Any = None) -> ModelSize | None:
  """The size of a model, a `tf.Module`; None while it has no variables, as before its first call.

  Args:
    model: the model.
    optimizer: trains it; None if nothing does, so that no variable is counted as trained.
  """
  try:
    variables = _each_once(tf_internals.variables_of(model))
  except ValueError:  # Of a Keras model that makes them at its first call.
    return None
  if not variables:
    return None
  trained = _each_once(model.trainable_variables) if optimizer is not None else []
  packed = _parts_that_are('is_packed', model)
  packed_ids = {id(variable) for part in packed for variable in part.own_weights().values()}
  numbers = sum(_count(each) for each in variables if each.dtype.is_floating and id(each) not in packed_ids)
  return ModelSize(
    parameters=numbers + sum(part.num_weights() for part in packed),
    trained_parameters=sum(map(_count, trained)),
    weight_bytes=sum(map(_bytes, variables)),
    gradient_bytes=sum(map(_bytes, trained)),
    slot_bytes=sum(map(_bytes, _each_once(tf_internals.variables_of(optimizer)))),
  )


def _each_once(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
  return list({id(variable): variable for variable in variables}.values())


def _count(variable: tf.Variable) -> int:
  return variable.shape.num_elements() or 0


def _bytes(variable: tf.Variable) -> int:
  return _count(variable) * variable.dtype.size


def _mebibytes(count: int) -> str:
  return f'{count / 2**20:,.3g} MiB'
