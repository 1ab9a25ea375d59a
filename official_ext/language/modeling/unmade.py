"""Layers whose weights are still to come: they have a shape and a type, and take no memory.

with unmade.weights():
  model = decoder.LanguageModel(config)      # each weight is an `Unmade`
...                                          # values arrive in any order, one tensor at a time
unmade.finish(frozen.parts(model))           # each weight is a variable, made of those very bytes
"""

from collections.abc import Iterator
import contextlib
import math
import mmap
import threading
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

_PART = 2**20  # Values that are cast at once.
_STRIP = 64  # Columns of a matrix that are copied at once: more of them are not in the processor's cache any more.
_LARGE = 2**23  # Bytes from which on memory comes in large pages, of 2 MiB as a rule.


class _Local(threading.local):
  is_unmade = False


_LOCAL = _Local()


class Unmade:
  """A weight without values.

  Attributes:
    shape: of the variable that it becomes, the rows of stacked layers included.
    dtype: in which values arrive: a cast to it is part of loading.
    kept_dtype: of the variable: values are cast to it after that.
    initializer: Keras' word for the values, if none arrive.
    options: more arguments of the variable's `add_weight`.
  """

  def __init__(
    self,
    shape: tuple[int, ...],
    dtype: tf.DType | str | None,
    initializer: tf_keras.initializers.Initializer | str = 'zeros',
    options: dict[str, Any] | None = None,
  ):
    self.shape = shape
    self.dtype = self.kept_dtype = tf.as_dtype(dtype)
    self.initializer = initializer
    self.options = dict(options or {})
    self._values: np.ndarray | None = None

  def assign(self, value: np.ndarray, row: int | tuple[int, ...] | None) -> None:
    """Takes the value, or that of a row of stacked ones.

    Args:
      value: is copied.
      row: which row, or which slice of which row; None for the whole.
    """
    if self._values is None:
      self._values = _own_pages(self.shape, self.kept_dtype.as_numpy_dtype)  # In memory as they are written to.
    if self.dtype == self.kept_dtype:
      place = ... if row is None else row
      if value.ndim != 2 or value.flags.c_contiguous:
        self._values[place] = value  # A row of numbers gives a scalar, not a view to copy to.
      else:
        _copy_transposed(value, self._values[place])
      return
    target = self._values if row is None else self._values[row]
    rows = max(1, _PART * len(value) // value.size)
    for start in range(0, len(value), rows):  # In parts: the whole in another type may be twice the kept size.
      target[start : start + rows] = value[start : start + rows].astype(self.dtype.as_numpy_dtype)

  def tensor(self) -> tf.Tensor:
    """All values, in the memory of the input, to which nobody else may write from now on."""
    if self._values is None:
      return tf.cast(tf_keras.initializers.get(self.initializer)(self.shape, self.dtype), self.kept_dtype)
    values, self._values = self._values, None
    bits = values.view(f'i{values.itemsize}')  # numpy's bfloat16 is unknown to DLPack.
    return tf.bitcast(tf.experimental.dlpack.from_dlpack(bits.__dlpack__()), self.kept_dtype)


def _own_pages(shape, dtype):
  """An array of zeros, aligned as TensorFlow asks of memory that it uses without a copy.

  It lies in separate pages, not between temporary reads, which would leave holes behind it.
  """
  size = max(1, math.prod(shape)) * np.dtype(dtype).itemsize
  pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
  if size >= _LARGE and hasattr(mmap, 'MADV_HUGEPAGE'):  # Linux.
    with contextlib.suppress(OSError):  # A kernel without them.
      pages.madvise(mmap.MADV_HUGEPAGE)
  return np.frombuffer(pages, dtype, math.prod(shape)).reshape(shape)


def _copy_transposed(value, target):
  """Copies a transposed matrix by strips: row by row it would take up to four times as long."""
  for start in range(0, value.shape[1], _STRIP):
    target[:, start : start + _STRIP] = value[:, start : start + _STRIP]


@contextlib.contextmanager
def weights() -> Iterator[None]:
  """Within, the weights of layers that are made are `Unmade`."""
  _LOCAL.is_unmade = True
  try:
    yield
  finally:
    _LOCAL.is_unmade = False


def is_wanted() -> bool:
  """Whether layers that are made here are to have unmade weights."""
  return _LOCAL.is_unmade


def finish(parts: list[Any]) -> None:
  """Makes variables of all unmade weights, of the values that have arrived.

  Args:
    parts: `layers.Part`s. Variables come in the order in which their weights were described, whichever arrived first:
      optimizers number them.
  """
  for part in parts:
    for attribute, weight in list(vars(part).items()):
      if type(weight) is Unmade:
        part.put_weight(attribute, weight.tensor(), weight.kept_dtype, **weight.options)
