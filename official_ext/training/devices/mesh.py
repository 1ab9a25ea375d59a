"""Meshes of devices, and tensors that are split over them: a thin layer on `tf.experimental.dtensor`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from official_ext.base import errors


class Mesh:
  """A grid of this process's CPUs with named axes.

  Attributes:
    sizes: the axes, and the devices along each.
  """

  def __init__(self, sizes: Mapping[str, int]):
    """Makes a mesh of the first devices that there are.

    Args:
      sizes: of its axes.

    Raises:
      UserError: there are not enough devices.
    """
    self.sizes = dict(sizes)
    count = int(np.prod(list(self.sizes.values())))
    there = len(tf.config.list_logical_devices('CPU'))
    if count > there:
      raise errors.UserError(
        f'runtime.mesh: {self} has {count} devices, and there are {there} CPUs; set runtime.num_virtual_cpus={count}'
      )
    # Grappler would make temporary variables of long sums, by name: the devices of a mesh run one program in one
    # process, and the second one finds the name taken ("AlreadyExistsError: AddOpsRewrite").
    tf.config.optimizer.set_experimental_options({'arithmetic_optimization': False})
    self._mesh = dtensor.create_mesh(list(self.sizes.items()), devices=[f'CPU:{i}' for i in range(count)])

  def __str__(self) -> str:
    return ' x '.join(f'{name} {size}' for name, size in self.sizes.items())

  def layout(self, axes: Sequence[str]) -> dtensor.Layout:
    """A layout: for each dimension its axis, '' for none. An axis of size 1 is like none: DTensor thinks it splits."""
    splits = [bool(axis) and self.sizes[axis] > 1 for axis in axes]
    return dtensor.Layout([axis if split else dtensor.UNSHARDED for axis, split in zip(axes, splits)], self._mesh)

  def split(self, value: Any, axes: Sequence[str]) -> tf.Tensor:
    """A tensor of the mesh.

    Args:
      value: an array, or an ordinary tensor.
      axes: see `layout`; every split must be even.
    """
    array = value.numpy() if hasattr(value, 'numpy') else np.asarray(value)
    parts = [tf.constant(array[rows]) for rows in self._rows(array.shape, axes)]
    return dtensor.pack(parts, self.layout(axes))

  def whole(self, tensor: tf.Tensor) -> np.ndarray:
    """The value of a tensor of the mesh, put together from its parts."""
    layout = dtensor.fetch_layout(tensor)
    axes = ['' if axis == dtensor.UNSHARDED else axis for axis in layout.sharding_specs]
    parts = dtensor.unpack(tensor)
    if not any(axes):
      return parts[0].numpy()
    array = np.empty(tensor.shape, tensor.dtype.as_numpy_dtype)
    for part, rows in zip(parts, self._rows(array.shape, axes)):
      array[rows] = part.numpy()
    return array

  def variable(self, value: object, axes: Sequence[str], name: str) -> tf.Variable:
    """A variable that is split in this way for good."""
    return dtensor.DVariable(self.split(value, axes), name=name)

  def _rows(self, shape: Sequence[int], axes: Sequence[str]) -> list[tuple[slice, ...]]:
    """Which part of an array of this shape each device has, in the order of the devices."""
    found = []
    for coordinates in np.ndindex(*self.sizes.values()):
      place = dict(zip(self.sizes, coordinates))
      rows = []
      for size, axis in zip(shape, axes):
        length = size // self.sizes[axis] if axis else size
        start = place[axis] * length if axis else 0
        rows.append(slice(start, start + length))
      found.append(tuple(rows))
    return found
