"""Batches of numbered examples: the share of an input pipeline, batches in memory, and how a batch is read and made.

The parts, in order: `Share`, the part of every global batch that a pipeline makes; `InMemoryBatches`, training batches
as functions of their numbers, which a compiled program gathers itself; `BatchMaker`, from positions and numbers to a
batch; `BatchReader`, which reads examples, and names a bad one or skips it.

In training, the next good example of the source replaces a bad one. That is a function of the example alone, so the
batch at a step remains a pure function of (seed, step), for any number of replicas.
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
from typing import Any

from absl import logging
import numpy as np
from official.modeling.hyperparams import base_config
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import collators
from official_ext.data import config_fields
from official_ext.data import keyed_random
from official_ext.data import sources


def config_path(params: base_config.Config) -> str:
  """The dotted path of a data configuration, for messages."""
  return f'task.{"train_data" if params.is_training else "validation_data"}'


@dataclasses.dataclass(frozen=True)
class Share:
  """The part of every global batch that one input pipeline makes.

  Attributes:
    global_batch_size: G, the number of examples in a global batch.
    batch_size: b, the number of examples in a replica's slice.
    first_replica: the index of the pipeline's first replica among all.
    num_replicas: the number of the pipeline's replicas.

  Example:

    >>> share = ext.Share(global_batch_size=8, batch_size=2, first_replica=2, num_replicas=2)
    >>> share.num_replicas * share.batch_size  # Of the 8 examples, this pipeline makes 4.
    4
  """

  global_batch_size: int
  batch_size: int
  first_replica: int
  num_replicas: int

  @classmethod
  def of(
    cls, params: base_config.Config, input_context: tf.distribute.InputContext | None, what: str = 'examples'
  ) -> 'Share':
    """The share of one input pipeline.

    Args:
      params: a data configuration. Fields read: global_batch_size, is_training.
      input_context: which of the pipelines it is. None: the only one, for one replica.
      what: the name of the batch's source, for messages.

    Raises:
      UserError: `global_batch_size` is not positive, or cannot be divided among the replicas.
      ValueError: the replicas cannot be divided among the pipelines.
    """
    size = params.global_batch_size
    field = f'{config_path(params)}.global_batch_size'
    if size <= 0:
      raise errors.UserError(f'{field}: must be positive, is {size}')
    if input_context is None:
      return cls(size, size, 0, 1)
    num_replicas = input_context.num_replicas_in_sync
    if size % num_replicas:
      raise errors.UserError(f'{field}: {size} {what} cannot be divided evenly among {num_replicas} replicas')
    num_local, rest = divmod(num_replicas, input_context.num_input_pipelines)
    if rest:
      raise ValueError(f'{num_replicas} replicas cannot share {input_context.num_input_pipelines} pipelines evenly.')
    return cls(size, size // num_replicas, input_context.input_pipeline_id * num_local, num_local)

  @property
  def is_whole(self) -> bool:
    """Whether it is the only replica."""
    return self.batch_size == self.global_batch_size

  def positions(self, steps: tf.Tensor) -> tf.Tensor:
    """The positions of the pipeline's elements.

    Args:
      steps: int64 tensor of shape [s].

    Returns:
      An int64 tensor of shape [s * num_replicas, b]: one row for each step and replica, replicas innermost.
    """
    replicas = tf.range(self.first_replica, self.first_replica + self.num_replicas, dtype=tf.int64)
    starts = steps[:, tf.newaxis] * self.global_batch_size + replicas * self.batch_size
    return tf.reshape(starts, [-1, 1]) + tf.range(self.batch_size, dtype=tf.int64)


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


def attach_in_memory(dataset: tf.data.Dataset, batches: InMemoryBatches) -> tf.data.Dataset:
  """Notes the contents of a dataset on it. A dataset that is made from it does not have the note."""
  setattr(dataset, _ATTRIBUTE, batches)
  return dataset


def in_memory_batches_of(dataset: tf.data.Dataset) -> InMemoryBatches | None:
  """The note on a dataset; None without one."""
  return getattr(dataset, _ATTRIBUTE, None)


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
    seeds = keyed_random.transform_seeds(positions, self.seed)
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
  """The batch, or none of its examples. Values of a static shape, such as a constant for the batch, are unchanged."""

  def rows_of(tensor):
    if not isinstance(tensor, tf.Tensor) or tensor.shape.rank is None:
      return tensor[: _none_if(condition, tensor)]
    varying = [axis for axis, size in enumerate(tensor.shape) if size is None]
    if not varying:
      return tensor
    ends = [slice(None)] * tensor.shape.rank
    ends[varying[0]] = slice(_none_if(condition, tensor, varying[0]))
    return tensor[tuple(ends)]

  return tf.nest.map_structure(rows_of, batch)


def _none_if(condition, tensor, axis=0):
  return tf.where(condition, tf.constant(0, tf.int64), tf.shape(tensor, tf.int64)[axis])


MAX_RUN = 100  # More bad examples in a row are not an accident.


def may_skip(params: base_config.Config) -> bool:
  """Whether a batch may have fewer examples than requested: in evaluation, where each counts once."""
  return config_fields.of_data(params).on_bad_example == 'skip' and not params.is_training


class BatchReader:
  """Reads examples and makes a batch of them. Called from several threads.

  Attributes:
    batch: a batch of one example, with the structure and dtypes of all batches, and the shapes if the collator fixes
      them.
    may_skip: see `may_skip`.
  """

  def __init__(self, source: sources.Source, collate: collators.Collator, params: base_config.Config):
    """Reads up to three examples, to learn their structure.

    Args:
      source: the examples, at least one.
      collate: makes batches.
      params: a data configuration. Fields read: is_training, on_bad_example.

    Raises:
      UserError: `on_bad_example` is unknown; or it is not 'skip', and one of the three cannot be used.
    """
    self._source = source
    self._collate = collate
    self._is_training = bool(params.is_training)
    self._field = config_path(params)
    self._action = config_fields.of_data(params).on_bad_example
    if self._action not in bad_examples.ACTIONS:
      known = ' or '.join(bad_examples.ACTIONS)
      raise errors.UserError(f'{self._field}.on_bad_example: expected {known}, got {self._action!r}')
    self._hint = (
      f'; repair or replace it, or set {self._field}.on_bad_example=skip'
      if config_fields.known(params, {'on_bad_example': 'skip'})
      else ''
    )
    self.may_skip = may_skip(params)
    self._log = bad_examples.current_log()
    self._reference, self.batch = self._choose_reference()

  def _warn_if_it_varies(self, index: int, first: collators.Example) -> None:
    """Warns if the batch of one example differs when it is read again, such as by draws of NumPy in `fetch`."""
    try:
      again = self._collate(self._source.fetch([index]))
    except Exception:  # pylint: disable=broad-except  # It is reported when it is trained on.
      return
    flat = [list(map(np.asarray, tf.nest.flatten(batch))) for batch in (first, again)]
    if not all(map(_is_equal, *flat)):
      logging.warning(
        '%s: %s differs when it is read again, so a resumed run has other examples than an undisturbed one, and '
        'workers may draw the same numbers; draw in transform_per_example, by its seed',
        self._field,
        self._source.describe(index),
      )

  def read(self, positions: Sequence[int], indices: Sequence[int]) -> tuple[list[np.ndarray], Sequence[int]]:
    """Reads the batch of the examples `indices`, which are at `positions`.

    Returns:
      (the batch's values, flat; the positions of its examples, which may be fewer than requested if `may_skip`).

    Raises:
      BadExampleError: one of them cannot be used.
    """
    try:
      return self._batch_of(self._source.fetch(indices), len(indices)), positions
    except Exception:  # pylint: disable=broad-except  # Each source, parser and collator fails in its own way.
      found = self._good_examples(positions, indices)
    kept = [position for position, _ in found]
    if not found:
      return [array[:0] for array in map(np.asarray, tf.nest.flatten(self.batch))], kept
    try:
      return self._batch_of([example for _, example in found], len(found)), kept
    except Exception as error:  # pylint: disable=broad-except
      raise bad_examples.BadExampleError(
        f'{self._field}: the examples at positions {positions[0]} to {positions[-1]} make no batch, though every one '
        f'does with another: {bad_examples.one_line(error)}'
      ) from error

  def _good_examples(self, positions, indices):
    """(position, example) for each index, without the skipped ones."""
    found = []
    for position, index in zip(positions, indices):
      example, problem = self._try(index)
      if problem is not None:
        message = f'{self._field}: {self._source.describe(index)}, at position {position} of the run, {problem}'
        if self._action != 'skip':
          raise bad_examples.BadExampleError(message + self._hint)
        self._log.add_skip(position, index, message)
        if not self._is_training:
          continue
        example = self._replacement(index, message)
      found.append((position, example))
    return found

  def _replacement(self, index, message):
    """The next good example after a bad one."""
    size = len(self._source)
    for distance in range(1, min(size, MAX_RUN)):
      example, problem = self._try((index + distance) % size)
      if problem is None:
        return example
    raise bad_examples.BadExampleError(f'{message}; nor can the {min(size, MAX_RUN) - 1} after it be used')

  def _try(self, index) -> tuple[object, str | None]:
    """Returns an example, and its error."""
    try:
      (example,) = self._source.fetch([index])
    except Exception as error:  # pylint: disable=broad-except
      return None, f'cannot be read: {bad_examples.one_line(error)}'
    try:
      self._batch_of([self._reference, example], 2)
    except Exception as error:  # pylint: disable=broad-except
      return None, f'cannot be batched with others: {bad_examples.one_line(self._error_alone(example) or error)}'
    return example, None

  def _error_alone(self, example) -> Exception | None:
    """The error of a single example, which is clearer than a collator's message about two."""
    try:
      self._batch_of([example], 1)
    except Exception as error:  # pylint: disable=broad-except
      return error
    return None

  def _batch_of(self, examples, count):
    return _conformed(self._collate(examples), self.batch, self._collate.fixed_shapes, count)

  def _choose_reference(self):
    """(example, batch of it): the first of up to three that can be batched with another of them."""
    size, found, problem = len(self._source), [], ''
    for index in sorted({0, size // 3, 2 * size // 3}):
      try:
        (example,) = self._source.fetch([index])
      except Exception as error:  # pylint: disable=broad-except
        problem = f'{self._source.describe(index)} cannot be read: {bad_examples.one_line(error)}'
        if self._action != 'skip':
          raise bad_examples.BadExampleError(f'{self._field}: {problem}{self._hint}') from error
      else:
        found.append((example, self._collate([example])))
        if len(found) == 1:
          self._warn_if_it_varies(index, found[0][1])
    if not found:
      raise bad_examples.BadExampleError(f'{self._field}: {problem}; nor can two others, far from it')
    for example, batch in found:
      for other, _ in found:
        with contextlib.suppress(Exception):
          if other is not example:
            _conformed(self._collate([example, other]), batch, self._collate.fixed_shapes, 2)
            return example, batch
    return found[0]


def _is_equal(one: np.ndarray, other: np.ndarray) -> bool:
  return np.array_equal(one, other, equal_nan=one.dtype.kind in 'fc' and other.dtype.kind in 'fc')


def _conformed(batch: object, model: tf_keras.Model, fixed_shapes: bool, count: int) -> list[np.ndarray]:
  """Returns a batch's values, flat, in the dtypes of the model's.

  Args:
    batch: a batch of `count` examples.
    model: a batch of one example.
    fixed_shapes: whether the shapes must agree beyond the first dimension.
    count: the number of examples.

  Raises:
    ValueError: batch and model differ in structure, dtype or shape.
  """
  tf.nest.assert_same_structure(model, batch)
  values = []
  names = dict(enumerate(bad_examples.paths(model)))
  for number, (value, expected) in enumerate(zip(tf.nest.flatten(batch), tf.nest.flatten(model))):
    name, value, expected = names.get(number, number), np.asarray(value), np.asarray(expected)
    if value.ndim != expected.ndim or (fixed_shapes and value.shape[1:] != expected.shape[1:]):
      raise ValueError(f'{name} has shape {list(value.shape[1:])}, elsewhere {list(expected.shape[1:])}')
    if value.ndim and len(value) != count:
      raise ValueError(f'{name} has {len(value)} rows for {count} examples')
    if value.dtype != expected.dtype and not (value.dtype.kind in 'OSU' and expected.dtype.kind in 'OSU'):
      if np.result_type(value.dtype, expected.dtype) != expected.dtype:
        raise ValueError(f'{name} is {value.dtype}, elsewhere {expected.dtype}')
      value = value.astype(expected.dtype)
    values.append(value)
  return values
