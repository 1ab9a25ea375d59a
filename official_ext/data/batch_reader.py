"""Reads batches of numbered examples; names a bad example, or skips it.

In training, the next good example of the source replaces a bad one. That is a function of the example alone, so the
batch at a step remains a pure function of (seed, step), however many replicas share it.
"""

from collections.abc import Sequence
import contextlib

import numpy as np
from official.modeling.hyperparams import base_config
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import batch_share
from official_ext.data import collators
from official_ext.data import sources

MAX_RUN = 100  # So many bad examples in a row are not an accident.


def may_skip(params: base_config.Config) -> bool:
  """Whether a batch may have fewer examples than requested: in evaluation, where each counts once."""
  return getattr(params, 'on_bad_example', 'error') == 'skip' and not params.is_training


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
    self._field = batch_share.path_of(params)
    self._action = getattr(params, 'on_bad_example', 'error')
    if self._action not in bad_examples.ACTIONS:
      known = ' or '.join(bad_examples.ACTIONS)
      raise errors.UserError(f'{self._field}.on_bad_example: expected {known}, got {self._action!r}')
    self._hint = (
      f'; repair or replace it, or set {self._field}.on_bad_example=skip' if hasattr(params, 'on_bad_example') else ''
    )
    self.may_skip = may_skip(params)
    self._log = bad_examples.current_log()
    self._reference, self.batch = self._choose_reference()

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
    """(position, example) for each index, except those that are skipped."""
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
      return None, f'cannot be batched with others: {bad_examples.one_line(self._told_alone(example) or error)}'
    return example, None

  def _told_alone(self, example) -> Exception | None:
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
    if not found:
      raise bad_examples.BadExampleError(f'{self._field}: {problem}; nor can two others, far from it')
    for example, batch in found:
      for other, _ in found:
        with contextlib.suppress(Exception):
          if other is not example:
            _conformed(self._collate([example, other]), batch, self._collate.fixed_shapes, 2)
            return example, batch
    return found[0]


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
