"""The place of each weight of a layer: a separate variable, in a row of stacked ones, in an expert's slice."""

import dataclasses
import re

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.language.modeling import layers
from official_ext.language.modeling import unmade


@dataclasses.dataclass(frozen=True)
class Slot:
  """A place for the weight of one layer.

  Attributes:
    variable: that holds it, or the `unmade.Unmade` that becomes one.
    row: which of its rows, or which slice of which row; None for the whole variable.
  """

  variable: tf.Variable
  row: int | tuple[int, ...] | None = None

  @property
  def shape(self) -> tuple[int, ...]:
    """Of the weight."""
    shape = tuple(self.variable.shape)
    return shape[len(self._index) :]

  @property
  def _index(self) -> tuple[int, ...]:
    return () if self.row is None else (self.row,) if isinstance(self.row, int) else self.row

  def assign(self, value: np.ndarray) -> None:
    """Sets the weight."""
    if isinstance(self.variable, unmade.Unmade):
      self.variable.assign(value, self.row)
      return
    value = tf.cast(tf.convert_to_tensor(value), self.variable.dtype)
    if self.row is None:
      self.variable.assign(value)
    else:
      self.variable.scatter_nd_update([self._index], value[tf.newaxis])

  def numpy(self) -> np.ndarray:
    """A copy of the weight."""
    value = self.variable if self.row is None else self.variable[self._index]
    return tf.convert_to_tensor(value).numpy()


def find(model: tf_keras.Model) -> dict[str, Slot]:
  """The slots of a model by their path, whether layers are stacked or not.

  'decoder/blocks/3/mlp/up_proj/kernel'; of experts, 'decoder/blocks/3/mlp/experts/5/up_proj'.
  """
  found: dict[str, Slot] = {}
  for part in model.submodules:
    if isinstance(part, layers.Part):
      for attribute, value in vars(part).items():
        if isinstance(value, (tf.Variable, unmade.Unmade)):
          found.update(_of(part, attribute, value))
  return found


def _of(part, attribute, variable):
  rows: list[tuple[str, tuple[int, ...]]] = [(part.name, ())]
  if part.num_rows:
    number = lambda row: re.sub(r'(^|/)blocks/', rf'\g<1>blocks/{row}/', part.name, count=1)
    rows = [(number(row), (row,)) for row in range(part.num_rows)]
  if part.num_slices:
    rows = [(f'{name}/{piece}', (*row, piece)) for name, row in rows for piece in range(part.num_slices)]
  return {f'{name}/{attribute}': Slot(variable, _short(row)) for name, row in rows}


def _short(row):
  """An index as `Slot` has it."""
  return row if len(row) > 1 else row[0] if row else None
