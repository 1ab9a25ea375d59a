"""Where each weight of a layer lies: in a variable of its own, or in a row of stacked ones."""

import dataclasses
import re
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.modeling import layers


@dataclasses.dataclass(frozen=True)
class Slot:
  """A place for the weight of one layer.

  Attributes:
    variable: that holds it.
    row: which of its rows; None for the whole variable.
  """

  variable: Any
  row: int | None = None

  @property
  def shape(self) -> tuple[int, ...]:
    """Of the weight."""
    shape = tuple(self.variable.shape)
    return shape if self.row is None else shape[1:]

  def assign(self, value: np.ndarray) -> None:
    """Sets the weight."""
    value = tf.cast(tf.convert_to_tensor(value), self.variable.dtype)
    if self.row is None:
      self.variable.assign(value)
    else:
      self.variable.scatter_update(tf.IndexedSlices(value[tf.newaxis], tf.constant([self.row])))

  def numpy(self) -> np.ndarray:
    """A copy of the weight."""
    value = self.variable if self.row is None else self.variable[self.row]
    return tf.convert_to_tensor(value).numpy()


def find(model: Any) -> dict[str, Slot]:
  """The slots of a model by their path, 'decoder/blocks/3/mlp/up_proj/kernel', whether layers are stacked or not."""
  found: dict[str, Slot] = {}
  for part in model.submodules:
    if isinstance(part, layers.Part):
      for attribute, value in vars(part).items():
        if isinstance(value, tf.Variable):
          found.update(_of(f'{part.name}/{attribute}', value, part.num_rows))
  return found


def _of(path, variable, num_rows):
  if not num_rows:
    return {path: Slot(variable)}
  rows = range(num_rows)
  return {re.sub(r'(^|/)blocks/', rf'\g<1>blocks/{row}/', path, count=1): Slot(variable, row) for row in rows}
