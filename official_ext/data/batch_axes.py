"""Finds the axes of a batch that count its examples: the weight of a batch in a mean over examples.

An input may hold more than examples: anchors or class weights that are the same for a whole batch, or features whose
first axis is time. The axes are read from the shapes that tf.data knows before anything is read. If these do not
decide, the input is built a second time with another batch size, and the axes are the ones that follow it.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import tensorflow as tf

from official_ext.data import bad_examples


@dataclasses.dataclass(frozen=True)
class BatchAxes:
  """The axis of each component of a batch that counts examples.

  Attributes:
    axes: one for each component, in the order of `tf.nest.flatten`; None for a component that does not count, such as
      a constant or a scalar.
    is_checked: whether the shapes have decided. If not, the components may disagree: see `agree`.
    assumed: the assumption if nothing has decided, for a message; '' otherwise.
  """

  axes: tuple[int | None, ...]
  is_checked: bool = True
  assumed: str = ''

  def num_examples(self, batch: object) -> tf.Tensor:
    """The number of examples in a batch: float32 scalar; 1 if no component counts."""
    counts = self._counts(batch)
    return tf.cast(counts[0], tf.float32) if counts else tf.constant(1.0)

  def agree(self, batch: object) -> tf.Tensor:
    """Whether all components that count have the same number of examples: bool scalar."""
    counts = self._counts(batch)
    return tf.reduce_all([count == counts[0] for count in counts]) if counts else tf.constant(True)

  def _counts(self, batch):
    parts = tf.nest.flatten(batch)
    assert len(parts) == len(self.axes), (self, parts)
    return [_size(part, axis) for part, axis in zip(parts, self.axes) if axis is not None]


def of_spec(spec: object, batch_size: int | None = None) -> BatchAxes | None:
  """The axes by the shapes of a batch; None if these do not decide.

  Args:
    spec: the type specs or the tensors of a batch, a nested structure. A dimension that is not the same in all batches
      is None in its shapes.
    batch_size: b, the examples of a full batch, if known.
  """
  shapes = [_shape(each) for each in tf.nest.flatten(spec)]
  sizes = [shape[0] for shape in shapes if shape]
  if not sizes:
    return BatchAxes(tuple(None for _ in shapes))
  if all(size is None for size in sizes):
    return BatchAxes(tuple(0 if shape else None for shape in shapes), is_checked=len(sizes) == 1)
  if any(size is None for shape in shapes for size in shape):
    return None
  # Every batch is full. tf.distribute empties the first dimension of each part for a replica without a batch.
  counting = batch_size if batch_size in sizes else sizes[0]
  return BatchAxes(tuple(0 if shape and shape[0] == counting else None for shape in shapes))


def probed(spec: object, probe_spec: object, batch_size: int, probe_size: int) -> BatchAxes | None:
  """The axes that follow the batch size; None if no shape shows it.

  Args:
    spec: the type specs of a batch.
    probe_spec: the type specs of the same input, built with `probe_size` as batch size, without partial batches.
    batch_size: b, the examples of a full batch of `spec`.
    probe_size: another one.
  """
  shapes, probe_shapes = ([_shape(each) for each in tf.nest.flatten(each)] for each in (spec, probe_spec))
  if len(shapes) != len(probe_shapes):
    return None
  axes: list[int | None] = []
  for shape, probe_shape in zip(shapes, probe_shapes):
    follow = [
      axis
      for axis, (size, probe) in enumerate(zip(shape, probe_shape))
      if probe == probe_size and size in (None, batch_size)
    ]
    axes.append(follow[0] if follow else None)
  return BatchAxes(tuple(axes)) if any(axis is not None for axis in axes) else None


def assumed(spec: object) -> BatchAxes:
  """The axes if nothing decides: the first axis of the components whose length varies, else of the first with one."""
  names = list(bad_examples.paths(spec))
  shapes = [_shape(each) for each in tf.nest.flatten(spec)]
  chosen = [index for index, shape in enumerate(shapes) if shape and shape[0] is None]
  chosen = (chosen or [index for index, shape in enumerate(shapes) if shape])[:1]
  axes = tuple(0 if index in chosen else None for index in range(len(shapes)))
  return BatchAxes(axes, assumed=', '.join(f'the first dimension of {names[index]}' for index in chosen))


def find(spec: object, batch_size: int | None, build: Callable[[int], object] | None) -> BatchAxes:
  """The axes by the shapes of a batch, or of an input that is built once more, or else the assumed ones.

  Args:
    spec: the type specs of a batch.
    batch_size: b, the examples of a full batch of `spec`; None if unknown.
    build: makes the type specs of the same input with another batch size, without partial batches, or returns None.
      None: the input cannot be built again.
  """
  found = of_spec(spec, batch_size)
  if found is not None and found.is_checked:
    return found
  if batch_size and build is not None:
    # A single example is always there; an input that takes only multiples of a number takes twice the batch.
    for probe_size in (1, 2 * batch_size)[batch_size == 1 :]:
      found = probed(spec, build(probe_size), batch_size, probe_size)
      if found is not None:
        return found
  return assumed(spec)


@dataclasses.dataclass(frozen=True)
class FullBatch:
  """Compares the examples of a training batch with the configured number.

  Attributes:
    spec: the type specs of one replica's batch, a nested structure.
    size: the configured examples of one replica's batch.
    num_replicas: how many replicas share a global batch.
  """

  spec: Any
  size: int
  num_replicas: int = 1

  @property
  def _shapes(self) -> list[tuple[int | None, ...]]:
    """The shapes of the parts; () for a scalar, and for a part without a rank."""
    shapes = [tf.TensorShape(getattr(each, 'shape', None)) for each in tf.nest.flatten(self.spec)]
    return [tuple(shape.as_list()) if shape.rank else () for shape in shapes]

  def by_shapes(self) -> int | None:
    """The examples of a batch as its shapes have them; 0 if they leave it open, None if only a batch shows it."""
    shapes = [shape for shape in self._shapes if shape]
    sizes = {shape[0] for shape in shapes}
    if not sizes or self.size in sizes:
      return self.size
    if None in sizes:
      return None
    if len(sizes) > 1:
      return 0
    (found,) = sizes
    is_elsewhere = all(self.size in shape[1:] for shape in shapes)
    return 0 if is_elsewhere and found != self._whole else found

  def by_batch(self, batch: object) -> tf.Tensor:
    """The examples of a batch, for a spec of which `by_shapes` is None: int64 scalar; 0 if it leaves it open."""
    parts = [(part, shape) for part, shape in zip(tf.nest.flatten(batch), self._shapes) if shape and shape[0] is None]
    sizes = tf.stack([_size(part, 0) for part, _ in parts])
    is_elsewhere = tf.reduce_all([self._has_it_elsewhere(part, shape) for part, shape in parts])
    is_open = tf.reduce_any(sizes != sizes[0]) | (is_elsewhere & (sizes[0] != self._whole))
    found = tf.where(is_open, tf.constant(0, tf.int64), sizes[0])
    return tf.where(tf.reduce_any(sizes == self.size), tf.constant(self.size, tf.int64), found)

  @property
  def _whole(self) -> int:
    """The examples of a global batch that each of several replicas takes; -1 for one replica."""
    return self.size * self.num_replicas if self.num_replicas > 1 else -1

  def _has_it_elsewhere(self, part: Any, shape: tuple[int | None, ...]) -> tf.Tensor:
    """Whether a later dimension that varies has the configured size, as in a batch whose first axis is time."""
    if isinstance(part, (tf.RaggedTensor, tf.SparseTensor)):
      return tf.constant(False)
    others = [_size(part, axis) == self.size for axis, size in enumerate(shape) if axis and size is None]
    return tf.reduce_any(others) if others else tf.constant(False)


def _shape(value: Any) -> tuple[int | None, ...]:
  """The shape of a spec or tensor; () for a scalar and for anything that has none; (None,) if the rank is unknown."""
  shape = getattr(value, 'shape', None)
  if shape is None:
    return ()
  shape = tf.TensorShape(shape)
  return (None,) if shape.rank is None else tuple(shape.as_list())


def _size(value: Any, axis: int) -> tf.Tensor:
  if isinstance(value, tf.RaggedTensor):
    return tf.cast(value.nrows(), tf.int64)
  if isinstance(value, tf.SparseTensor):
    return tf.cast(value.dense_shape[axis], tf.int64)
  return tf.shape(value, tf.int64)[axis]
