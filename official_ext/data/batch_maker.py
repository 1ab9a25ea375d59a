"""Makes a batch from the positions and the numbers of its examples."""

from collections.abc import Callable
import dataclasses
from typing import Any

import tensorflow as tf

from official_ext.data import example_order

Batch = Any
Transform = Callable[[Batch, tf.Tensor], Batch]
Load = Callable[[tf.Tensor, tf.Tensor], tuple[Batch, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class BatchMaker:
  """Makes batches from the positions and the indices of their examples.

  Attributes:
    num_examples: the number of examples in the source.
    seed: of the transforms.
    is_partial: whether positions may be beyond the last example.
    load: a function from positions and indices of shape [b] to a batch and the positions of its examples, fewer than b
      if some are skipped.
    transform: see `build_dataset`.
    transform_per_example: see `build_dataset`.
  """

  num_examples: int
  seed: int
  is_partial: bool
  load: Load
  transform: Transform | None
  transform_per_example: Transform | None

  def __call__(self, positions: tf.Tensor, indices: tf.Tensor) -> Batch:
    """Makes the batch of these positions (int64, [b]), at which the examples `indices` (int64, [b]) are."""
    num_left = self.num_examples - positions[0]
    if self.is_partial:
      # At least one example is always read: it determines the shapes of a batch without examples.
      num_read = tf.clip_by_value(num_left, 1, tf.shape(positions, tf.int64)[0])
      positions, indices = positions[:num_read], indices[:num_read]
    batch, positions = self.load(positions, indices)
    seeds = example_order.transform_seeds(positions, self.seed)
    if self.transform_per_example is not None:
      batch = _map_examples(self.transform_per_example, batch, seeds)
    if self.transform is not None:
      batch = self.transform(batch, seeds)
    return _emptied_if(num_left <= 0, batch) if self.is_partial else batch


def _map_examples(function: Transform, batch: Batch, seeds: tf.Tensor) -> Batch:
  """Applies a function of (example, seed) to every example of a batch."""
  specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape[1:], tensor.dtype), (batch, seeds))
  outputs = tf.function(function).get_concrete_function(*specs).structured_outputs
  signature = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), outputs)
  return tf.map_fn(lambda element: function(*element), (batch, seeds), fn_output_signature=signature)


def _emptied_if(condition: tf.Tensor, batch: Batch) -> Batch:
  """The batch, or none of its rows."""

  def rows_of(tensor):
    return tensor[: tf.where(condition, tf.constant(0, tf.int64), tf.shape(tensor, tf.int64)[0])]

  return tf.nest.map_structure(rows_of, batch)
