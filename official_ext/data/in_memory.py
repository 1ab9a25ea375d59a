"""Training batches of examples in memory, as functions of their numbers: a compiled program can gather its own."""

from collections.abc import Callable
import dataclasses

import tensorflow as tf

_ATTRIBUTE = '_official_ext_in_memory'


@dataclasses.dataclass(frozen=True)
class InMemoryBatches:
  """The batches of a training dataset, whole and on one replica.

  Attributes:
    indices: the examples of batches: from int64 numbers of shape [n] to int64 indices of shape [n, b]. One call for
      many batches costs little more than for one.
    gather: the batch of indices of shape [b], as an element of the dataset.
  """

  indices: Callable[[tf.Tensor], tf.Tensor]
  gather: Callable[[tf.Tensor], object]

  def batch(self, number: tf.Tensor) -> object:
    """The batch of a number, an int64 scalar."""
    return self.gather(self.indices(number[tf.newaxis])[0])


def attach(dataset: tf.data.Dataset, batches: InMemoryBatches) -> tf.data.Dataset:
  """Notes the contents of a dataset on it. A dataset that is made from it does not have the note."""
  setattr(dataset, _ATTRIBUTE, batches)
  return dataset


def of(dataset: tf.data.Dataset) -> InMemoryBatches | None:
  """The note on a dataset; None if nothing is."""
  return getattr(dataset, _ATTRIBUTE, None)
