"""Meshes of devices, and tensors that are split over them: a thin layer on `tf.experimental.dtensor`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from official_ext.base import errors
from official_ext.training.config import mesh_config


class Mesh:
  """A grid of devices with named axes: the virtual CPUs of this process and the processes joined with it.

  The processes follow each other in the order of the devices. All of them call the same methods, in the same order.

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
    self._num_processes = dtensor.num_clients()
    count = int(np.prod(list(self.sizes.values())))
    num_local = count // self._num_processes
    there = dtensor.num_local_devices('CPU')
    if num_local > there:
      raise errors.UserError(
        f'runtime.mesh: {self} has {num_local} devices in this process, and there are {there} CPUs; set '
        f'runtime.num_virtual_cpus={num_local}'
      )
    # Grappler would make temporary variables of long sums, by name: the devices of a mesh run one program in one
    # process, and the second one finds the name taken ("AlreadyExistsError: AddOpsRewrite").
    tf.config.optimizer.set_experimental_options({'arithmetic_optimization': False})
    axes, devices = list(self.sizes.items()), [f'CPU:{i}' for i in range(num_local)]
    first = num_local * dtensor.client_id()
    self._local = range(first, first + num_local)
    if self.is_shared:
      self._mesh = dtensor.create_distributed_mesh(axes, local_devices=devices, device_type='CPU')
    else:
      self._mesh = dtensor.create_mesh(axes, devices=devices)

  @property
  def is_shared(self) -> bool:
    """Whether several processes have devices of it."""
    return self._num_processes > 1

  def __str__(self) -> str:
    return mesh_config.describe(self.sizes)

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
    array = np.asarray(value)
    rows_of = self._rows(array.shape, axes)
    parts = [tf.constant(array[rows_of[device]]) for device in self._local]
    return dtensor.pack(parts, self.layout(axes))

  def whole(self, tensor: tf.Tensor) -> np.ndarray:
    """The value of a tensor of the mesh, put together from its parts. On a shared mesh each part must be the whole."""
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
