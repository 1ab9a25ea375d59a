"""Looks at the examples of a task, as many as a few seconds and some megabytes allow."""

from collections.abc import Iterator, Sequence
import dataclasses
import time
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext import tf_internals
from official_ext.checks import findings
from official_ext.data import bad_examples
from official_ext.data import pipelines
from official_ext.data import position

_SECONDS = 2.0  # For each of the searches below.
_MAX_BATCHES = 4096  # Where only reading tells whether there is an end.
_NUM_LOOKED_AT = 64  # Batches, elsewhere.
_MAX_BYTES = 2**26
_NUM_KEPT = 3
_MAX_EXTREME = 4
_MIN_RUN = 8  # So many examples of a class one after the other, on average and of each class, are no chance.
_NAMES_OF_DATA = (('input_path',), ('tfds_name', 'tfds_split', 'tfds_data_dir'))


@dataclasses.dataclass(frozen=True)
class Sample:
  """Some batches of an input.

  Attributes:
    kept: the first ones.
    size: the number of examples in a batch; 0 if that is not clear.
    partial: one with fewer examples, such as the last; None if there is none.
    extreme: those with the smallest and the largest integers of all that were read, as (number from 0, batch).
  """

  kept: list[Any]
  size: int = 0
  partial: Any = None
  extreme: Sequence[tuple[int, Any]] = ()


class _Reading:
  """What the first batches of an input have shown.

  Attributes:
    kept: the first of them.
    size: the number of examples in the first; 0 if its parts have different numbers.
    partial: a batch with fewer examples.
    not_finite: by the names of tensors, in how many examples they are not finite.
    num_examples: how many examples were read.
    num_batches: how many were read.
    ended: whether there are no more.
    shapes: of each tensor by name, those that were seen, without the batches after which the input ended.
    examples: the hashes of the examples, by the names of their tensors.
    repeats: whether the first batch came again.
  """

  def __init__(self, dataset: Any, needed: int):
    self.kept: list[Any] = []
    self.num_batches = 0
    self.ended = False
    self.repeats = False
    self.shapes: dict[str, set[tuple[int, ...]]] = {}
    self.examples: list[dict[str, int]] = []
    self.size = 0
    self.partial: Any = None
    self.not_finite: dict[str, int] = {}
    self.num_examples = 0
    self.classes: dict[str, list[np.ndarray]] = {}  # Of integer tensors of rank 1, all that was read.
    self._extremes: dict[str, tuple[int, int, Any]] = {}  # Least and largest: (value, number of the batch, batch).
    self._bytes = 0
    first: list[Any] | None = None
    deadline = time.monotonic() + _SECONDS
    for batch in dataset:
      self.num_batches += 1
      if len(self.kept) < _NUM_KEPT:
        self.kept.append(batch)
      content = self._note(batch)
      first = first or content
      self.repeats = self.repeats or (self.num_batches > 1 and bool(content) and content == first)
      if self.num_batches >= min(max(needed, 1), _MAX_BATCHES) or time.monotonic() > deadline:
        return
    self.ended = True

  def _note(self, batch: Any) -> list[dict[str, int]]:
    """Notes shapes and examples of a batch; returns the hashes of its examples."""
    named = [
      (name, value)
      for name, value in zip(bad_examples.paths(batch), tf.nest.flatten(batch))
      if isinstance(value, tf.Tensor)
    ]
    for name, value in named:
      self.shapes.setdefault(name, set()).add(tuple(value.shape))
    arrays = {name: value.numpy() for name, value in named if value.shape.rank}
    size = sum(array.nbytes for array in arrays.values())
    lengths = {len(array) for array in arrays.values()}
    self._note_values(batch, arrays)
    self._note_size(batch, lengths)
    if self._bytes + size > _MAX_BYTES or len(lengths) != 1:
      return []
    self._bytes += size
    hashes: list[dict[str, int]] = [{} for _ in range(lengths.pop())]
    for name, array in arrays.items():
      for row, example in zip(array, hashes):
        example[name] = hash(row.tobytes() if hasattr(row, 'tobytes') else row)
    self.examples += hashes
    return hashes

  def _note_size(self, batch, lengths):
    if len(lengths) != 1:
      return
    (length,) = lengths
    self.num_examples += length
    if self.num_batches == 1:
      self.size = length
    elif length < self.size:
      self.partial = batch

  def _note_values(self, batch, arrays):
    for name, array in arrays.items():
      if array.dtype.kind == 'f' and not np.isfinite(array).all():
        self.not_finite[name] = self.not_finite.get(name, 0) + int(
          (~np.isfinite(array.reshape(len(array), -1))).any(axis=1).sum()
        )
      if array.dtype.kind not in 'iu' or array.ndim > 2 or not array.size:
        continue
      if array.ndim == 1:
        self.classes.setdefault(name, []).append(array)
      for key, value, sign in ((f'{name} least', array.min(), -1), (f'{name} largest', array.max(), 1)):
        if key not in self._extremes or sign * int(value) > sign * self._extremes[key][0]:
          self._extremes[key] = int(value), self.num_batches - 1, batch

  def sample(self, num_examples: int | None = None) -> Sample:
    """The batches to look at; if there are `num_examples`, and the last batch was not reached, it is made up."""
    partial = self.partial
    if partial is None and not self.ended and self.size and (num_examples or 0) % self.size:
      partial = cut(self.kept[0], 0, (num_examples or 0) % self.size, self.size)
    extreme = {number: batch for _, number, batch in self._extremes.values() if number >= len(self.kept)}
    return Sample(self.kept, self.size, partial, list(extreme.items())[:_MAX_EXTREME])


def find(task: Any, params: Any) -> tuple[list[findings.Finding], Sample, Sample]:
  """Looks at the training and the validation data.

  Args:
    task: a task.
    params: its experiment, with train_steps resolved.

  Returns:
    (findings, a sample of the training data, one of the validation data). No batches if there are no such data, or
    they cannot be read, which the dry run then tells.
  """
  found: list[findings.Finding] = []
  trainer = params.trainer
  needed = trainer.train_steps * getattr(trainer, 'gradient_accumulation_steps', 1)
  with position.starting_at(0) as start:
    training = _dataset(task, getattr(params.task, 'train_data', None))
  train = _read(training, needed, start.honoured)
  if train is not None and not start.honoured:
    found += _check_end(training, train, needed)
  if train is not None:
    found += _check_shapes(train, params.runtime.enable_xla)
    found += _check_order(train)
  validating = _dataset(task, getattr(params.task, 'validation_data', None))
  validation = _read(validating, trainer.validation_steps if trainer.validation_steps > 0 else _MAX_BATCHES)
  if validation is not None:
    if trainer.validation_steps == -1:
      found += _check_endless(validating, validation, _num_examples(task, params.task.validation_data))
    if train is not None:
      found += _check_same(params.task, train, validation, _num_examples(task, params.task.train_data))
  for name, reading in (('task.train_data', train), ('task.validation_data', validation)):
    found += _check_finite(name, reading) if reading is not None else ()
  return found, train.sample() if train else Sample([]), _validation_sample(task, params, validating, validation)


def _validation_sample(task: Any, params: Any, dataset: Any, reading: _Reading | None) -> Sample:
  """The sample of validation data; the last batch counts only if it can be smaller, and is evaluated."""
  if reading is None:
    return Sample([])
  num_examples = _num_examples(task, params.task.validation_data)
  steps = params.trainer.validation_steps
  is_reached = steps < 0 or steps * reading.size > (num_examples or 0)
  return reading.sample(num_examples if _has_sizes(dataset) and is_reached else None)


def cut(batch: Any, start: int, end: int, size: int) -> Any | None:
  """Some examples of a batch; None if its parts have not all `size` of them."""
  parts = [part for part in tf.nest.flatten(batch) if tf.is_tensor(part)]
  if not parts or any(
    not isinstance(part, tf.Tensor) or not part.shape.rank or part.shape[0] != size for part in parts
  ):
    return None
  return tf.nest.map_structure(lambda part: part[start:end] if tf.is_tensor(part) else part, batch)


def _dataset(task: Any, data: Any) -> Any:
  """The input of a data configuration; None if there is none, or it cannot be built."""
  if data is None:
    return None
  try:
    with bad_examples.logged_in(bad_examples.ExampleLog()):
      dataset = pipelines.transformed(task.build_inputs, pipelines.without_autotune)(data)
  except Exception:  # pylint: disable=broad-except  # Each task fails in its own way: the dry run tells it.
    return None
  return dataset if isinstance(dataset, tf.data.Dataset) else None


def _read(dataset: Any, needed: int, is_endless: bool = False) -> _Reading | None:
  if dataset is None:
    return None
  if is_endless or int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY or _repeats_forever(dataset):
    needed = min(needed, _MAX_BATCHES if _has_sizes(dataset) else _NUM_LOOKED_AT)
  try:
    reading = _Reading(dataset, needed)
  except Exception:  # pylint: disable=broad-except  # As above.
    return None
  return reading if reading.num_batches else None


def _has_sizes(dataset: tf.data.Dataset) -> bool:
  """Whether the batches of a dataset may have different numbers of examples."""
  return all(
    spec.shape.rank is None or (spec.shape.rank and spec.shape[0] is None)
    for spec in tf.nest.flatten(dataset.element_spec)
    if isinstance(spec, tf.TensorSpec)
  )


def _num_examples(task: Any, data: Any) -> int | None:
  return task.num_examples(data) if hasattr(task, 'num_examples') else None


def _check_end(dataset: tf.data.Dataset, train: _Reading, needed: int) -> Iterator[findings.Finding]:
  """Training data that are used up before training ends."""
  cardinality = int(dataset.cardinality())
  holds = train.num_batches if train.ended else cardinality
  if 0 <= holds < needed:
    yield findings.Finding(
      'error',
      'task.train_data',
      f'the data end after {holds} batches, and training takes {needed}',
      'let build_inputs call dataset.repeat() if params.is_training, or use step_indexed.build_dataset',
    )


def _check_order(train: _Reading) -> Iterator[findings.Finding]:
  """Classes that come one after the other: an order that is to be shuffled."""
  for name, arrays in train.classes.items():
    values = np.concatenate(arrays)
    runs = values[np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))]
    classes, counts = np.unique(values, return_counts=True)
    num_runs = np.unique(runs, return_counts=True)[1]
    if len(classes) > 1 and (counts / num_runs).min() >= _MIN_RUN:
      yield findings.Finding(
        'warning',
        'task.train_data',
        f'the first {len(values)} examples are sorted by {name}: first all with '
        f'{runs[0]}, then all with {runs[1]}, ...',
        'shuffle them all, or use step_indexed.build_dataset',
      )


def _check_finite(path: str, reading: _Reading) -> Iterator[findings.Finding]:
  """Inputs that are NaN or infinite."""
  for name, count in reading.not_finite.items():
    yield findings.Finding(
      'warning',
      path,
      f'{name} is NaN or infinite in {count} of the first {reading.num_examples} examples',
      'leave them out, or put a number and a mask in their place',
    )


def _check_shapes(train: _Reading, enable_xla: Any) -> Iterator[findings.Finding]:
  """Training batches whose shapes differ, which only XLA minds."""
  if enable_xla is False:
    return
  consequence = 'XLA compiles the step anew for each'
  if enable_xla == 'auto':
    consequence = 'XLA would compile the step anew for each, and runtime.enable_xla=auto leaves it out'
  for name, shapes in train.shapes.items():
    if len(shapes) > 1:
      listed = ', '.join(str(list(shape)) for shape in sorted(shapes)[:3])
      yield findings.Finding(
        'warning',
        'task.train_data',
        f'the shape of {name} changes from batch to batch ({listed}, ...): {consequence}',
        "pad to one length (collator 'pad' with seq_length, padded_batch), and batch(..., drop_remainder=True)",
      )


def _check_endless(
  dataset: tf.data.Dataset, validation: _Reading, num_examples: int | None
) -> Iterator[findings.Finding]:
  """Validation data without end, of which an evaluation takes all."""
  if validation.ended:
    return
  batch_size = max(1, len(validation.examples) // validation.num_batches)
  if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY or _repeats_forever(dataset):
    what = 'the data never end'
  elif validation.repeats:
    what = f'the data begin again and again: the first batch came again within {validation.num_batches}'
  elif num_examples is not None and validation.num_batches * batch_size >= 2 * num_examples + batch_size:
    what = f'the data do not end after their {num_examples} examples'
  else:
    return
  yield findings.Finding(
    'error',
    'task.validation_data',
    f'{what}, and trainer.validation_steps is -1: an evaluation takes all of them',
    'do not repeat if params.is_training is false, or set trainer.validation_steps',
  )


def _repeats_forever(dataset: Any) -> bool:
  """Whether all that a dataset is made from has no end, and nothing takes a part of it."""
  if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
    return True
  if 'Take' in type(dataset).__name__ or int(dataset.cardinality()) >= 0:
    return False
  inputs = tf_internals.inputs_of(dataset)
  return bool(inputs) and all(_repeats_forever(part) for part in inputs)


def _check_same(task: Any, train: _Reading, validation: _Reading, num_train: int | None) -> Iterator[findings.Finding]:
  """Validation examples that are among those of training."""
  what = ''
  for names in _NAMES_OF_DATA:
    values = [[getattr(data, name, None) for name in names] for data in (task.train_data, task.validation_data)]
    if values[0][0] and values[0] == values[1]:
      what = f'{" and ".join(names[:2])} are those of task.train_data'
  if not what and train.examples and validation.examples:
    common = sorted(train.examples[0].keys() & validation.examples[0].keys())
    seen = {tuple(example[name] for name in common) for example in train.examples}
    examples = [tuple(example[name] for name in common) for example in validation.examples]
    distinct = set(examples)
    shared = sum(example in seen for example in distinct)
    # What is read of a large training set holds only a part of the examples that are in both.
    share = min(1.0, len(seen) / num_train) if num_train else 0.1
    if common and 2 * len(distinct) >= len(examples) and shared > 1 and shared >= 0.5 * share * len(distinct):
      what = f'{shared} of the first {len(distinct)} examples are among the first {len(seen)} of task.train_data'
  if what:
    yield findings.Finding(
      'warning', 'task.validation_data', what, 'take another split: a metric says nothing on examples that were learnt'
    )
