"""Turns a list of examples into a batch.

A collator is a function from a list of examples (dictionaries of arrays, numbers or strings, possibly nested) to a
dictionary of arrays with a leading batch dimension. `task.train_data.collator` names the factory that makes one from
the data configuration:

    @collators.register('shifted')
    def shifted(params):
      def collate(examples):
        tokens = np.stack([example['tokens'][:params.seq_length + 1] for example in examples])
        return {'inputs': tokens[:, :-1], 'targets': tokens[:, 1:]}
      return collate
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.base import registry
from official_ext.data import config_fields

Example = Mapping[str, Any]
Collate = Callable[[list[Example]], Example]
Factory = Callable[[base_config.Config], Collate]


@dataclasses.dataclass(frozen=True)
class Collator:
  """A collating function, and the facts known about its batches.

  Attributes:
    collate: the function.
    fixed_shapes: whether all its batches have the same shape, except for the leading dimension.
  """

  collate: Collate
  fixed_shapes: bool

  def __call__(self, examples: list[Example]) -> Example:
    return self.collate(examples)


@dataclasses.dataclass(frozen=True)
class _Registration:
  factory: Factory
  fixed_shapes: bool


_REGISTRY: registry.Registry[_Registration] = registry.Registry('collator')


def register(name: str, fixed_shapes: bool = True) -> Callable[[Factory], Factory]:
  """Registers a factory of collators.

  Args:
    name: its name in the field `collator` of a data configuration.
    fixed_shapes: False if the shapes of batches, beyond the leading dimension, depend on the examples.

  Returns:
    A decorator for a function from the data configuration to the collating function.

  Raises:
    UserError: the name is taken.

  Example:

    >>> @ext.register_collator('first_field')
    ... def build(config):
    ...   return lambda examples: {'x': np.stack([each['x'] for each in examples])}
  """
  return _REGISTRY.register(name, lambda factory: _Registration(factory, fixed_shapes))


def get(name: str, params: base_config.Config) -> Collator:
  """Makes the collator of this name.

  Args:
    name: a registered name.
    params: the data configuration, for the factory.

  Raises:
    UserError: there is no such collator.
  """
  registration = _REGISTRY.find(name, 'collator')
  return Collator(registration.factory(params), registration.fixed_shapes)


def as_array(value: object) -> np.ndarray:
  """A value of an example as an array. Bytes and text are unchanged: NumPy's own strings lose zero bytes at the end.

  Args:
    value: an array, a number, bytes or text.
  """
  return np.asarray(value, object) if isinstance(value, (bytes, str)) else np.asarray(value)


def stack_examples(examples: Sequence[Example]) -> Mapping[str, object]:
  """Stacks the examples' values, feature by feature. The examples must agree in structure and shapes."""
  return tf.nest.map_structure(lambda *values: np.stack([as_array(value) for value in values]), *examples)


@register('stack')
def stack(params: base_config.Config) -> Collate:
  """Stacks the examples' values, feature by feature."""
  del params
  return stack_examples


@register('pad', fixed_shapes=False)
def pad(params: base_config.Config) -> Collate:
  """Pads every feature at the end of its first dimension, and stacks.

  The length is the longest example's, or the configuration's `seq_length` if it has that field and it is not 0: longer
  examples are then cut. The padding is the configuration's `pad_value`, or 0 if it has none. Only
  numeric features with dimensions are padded; scalars and strings are stacked.

  Without `seq_length` the shape depends on the examples of one replica, and so on the number of replicas.
  """
  fields = config_fields.of_data(params)
  seq_length, pad_value = fields.seq_length or 0, fields.pad_value

  def pad_feature(*values):
    arrays = [as_array(value) for value in values]
    if arrays[0].ndim == 0 or arrays[0].dtype.kind not in 'biuf':
      return np.stack(arrays)
    length = seq_length or max(len(array) for array in arrays)
    padded = np.full((len(arrays), length) + arrays[0].shape[1:], pad_value, arrays[0].dtype)
    for row, array in zip(padded, arrays):
      if array.shape[1:] != arrays[0].shape[1:]:  # NumPy would broadcast some of them.
        raise ValueError(f'shapes {list(array.shape)} and {list(arrays[0].shape)} differ in more than their length')
      row[: len(array)] = array[:length]
    return padded

  return lambda examples: tf.nest.map_structure(pad_feature, *examples)
