"""Checks a task's data on as many examples as a few seconds and some megabytes allow.

`data_of` and `open_batches` serve previews and the log of a start too.
"""

from collections.abc import Iterable, Iterator, Sequence
import contextlib
import dataclasses
import time
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import model_garden_configs
from official_ext.base import protocols
from official_ext.data import bad_examples
from official_ext.data import config_fields
from official_ext.data import input_faults
from official_ext.data import pipelines
from official_ext.training.config import definitions
from official_ext.training.diagnosis import findings
from official_ext.training.step import step_plan

SPLITS = {'train': 'train_data', 'validation': 'validation_data'}


def data_of(task_config: Any, split: str) -> tuple[Any, str]:
  """The data configuration of a split, and its dotted path.

  Raises:
    UserError: it is not set, or names no file that exists.
  """
  path = f'task.{SPLITS[split]}'
  data = config_fields.data_of(task_config, SPLITS[split])
  if data is None:
    raise errors.UserError(f'{path}: is not set; there are no examples to show')
  missing = input_faults.unmatched(data)
  if missing is not None:
    raise errors.UserError(f'{path}.input_path: {missing}: No such file or directory')
  return data, path


@contextlib.contextmanager
def open_batches(task: Any, data: Any, path: str) -> Iterator[tuple[Iterable[Any], bad_examples.ExampleLog]]:
  """A context with the batches of an input, and the log that describes its examples by their position.

  Args:
    task: builds the input.
    data: its configuration.
    path: the dotted path of `data`, for messages.

  Raises:
    UserError: the input is damaged.
  """
  log = bad_examples.ExampleLog()
  with input_faults.explained(path, data, task.build_inputs):
    with bad_examples.logged_in(log):
      dataset = task.build_inputs(data)
    yield dataset, log


_SECONDS = 2.0  # The time for each of the searches below.
_MAX_BATCHES = 4096  # The time if only reading can show whether the data end.
_NUM_LOOKED_AT = 64  # Batches, elsewhere.
_MAX_BYTES = 2**26
_NUM_KEPT = 3
_MAX_EXTREME = 4
_MIN_RUN = 8  # If runs of a class are so long, on average and for each class, the order is not chance.
_NAMES_OF_DATA = (('input_path',), ('tfds_name', 'tfds_split', 'tfds_data_dir'))


@dataclasses.dataclass(frozen=True)
class Sample:
  """Some batches of an input.

  Attributes:
    kept: the first ones.
    size: the number of examples in a batch; 0 if that is not clear.
    partial: a batch with fewer examples, such as the last; None if all have the same number.
    extreme: the batches with the smallest and the largest integers of all that were read, as (number from 0, batch).
  """

  kept: list[Any]
  size: int = 0
  partial: Any = None
  extreme: Sequence[tuple[int, object]] = ()


class _Reading:
  """The facts about the first batches of an input.

  Attributes:
    kept: the first of them.
    size: the number of examples in the first; 0 if its parts have different numbers.
    partial: a batch with fewer examples.
    not_finite: by the names of tensors, the number of examples in which they are not finite.
    num_examples: the number of examples that were read.
    num_batches: the number of batches that were read.
    ended: whether the input has no more.
    shapes: by the names of tensors, the shapes that were seen, except in the last batch of the input.
    examples: the hashes of the examples, by the names of their tensors.
    repeats: whether the first batch came again.
  """

  def __init__(self, dataset: tf.data.Dataset, needed: int):
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
    self.classes: dict[str, list[np.ndarray]] = {}  # All values of integer tensors of rank 1.
    self._extremes: dict[str, tuple[int, int, object]] = {}  # Least and largest: (value, number of the batch, batch).
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

  def _note(self, batch: object) -> list[dict[str, int]]:
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
    """The batches to look at. If the input has `num_examples` and its last batch was not read, one is made up."""
    partial = self.partial
    if partial is None and not self.ended and self.size and (num_examples or 0) % self.size:
      partial = cut(self.kept[0], 0, (num_examples or 0) % self.size, self.size)
    extreme = {number: batch for _, number, batch in self._extremes.values() if number >= len(self.kept)}
    return Sample(self.kept, self.size, partial, list(extreme.items())[:_MAX_EXTREME])


def find(task: protocols.Task, params: definitions.ExperimentConfig) -> tuple[list[findings.Finding], Sample, Sample]:
  """Looks at the training and the validation data.

  Args:
    task: a task.
    params: its experiment, with train_steps resolved.

  Returns:
    (findings, a sample of the training data, one of the validation data). A sample has no batches if there are no such
    data, or if they cannot be read, which the dry run then reports.
  """
  found: list[findings.Finding] = []
  trainer = params.trainer
  needed = trainer.train_steps * getattr(trainer, 'gradient_accumulation_steps', 1)
  with pipelines.starting_at(0) as start:
    training = _dataset(task, config_fields.of_task(params.task).train_data)
  train = _read(training, needed, start.honoured)
  if train is not None and not start.honoured:
    found += _check_end(training, train, needed)
  if train is not None:
    found += _check_shapes(train, params.runtime.enable_xla)
    found += _check_order(train)
  validating = _dataset(task, config_fields.of_task(params.task).validation_data)
  validation = _read(validating, trainer.validation_steps if trainer.validation_steps > 0 else _MAX_BATCHES)
  if validation is not None:
    if trainer.validation_steps == -1:
      found += _check_endless(validating, validation, task.num_examples(params.task.validation_data))
    if train is not None:
      found += _check_same(params.task, train, validation, task.num_examples(params.task.train_data))
  for name, reading in (('task.train_data', train), ('task.validation_data', validation)):
    found += _check_finite(name, reading) if reading is not None else ()
  return found, train.sample() if train else Sample([]), _validation_sample(task, params, validating, validation)


def _validation_sample(
  task: protocols.Task, params: definitions.ExperimentConfig, dataset: tf.data.Dataset, reading: _Reading | None
) -> Sample:
  """The sample of validation data; it has a smaller last batch only if an evaluation has one."""
  if reading is None:
    return Sample([])
  num_examples = task.num_examples(params.task.validation_data)
  steps = params.trainer.validation_steps
  is_reached = steps < 0 or steps * reading.size > (num_examples or 0)
  return reading.sample(num_examples if _has_sizes(dataset) and is_reached else None)


def cut(batch: object, start: int, end: int, size: int) -> object | None:
  """Some examples of a batch; None if not all of its parts have `size` examples."""
  parts = [part for part in tf.nest.flatten(batch) if tf.is_tensor(part)]
  if not parts or any(
    not isinstance(part, tf.Tensor) or not part.shape.rank or part.shape[0] != size for part in parts
  ):
    return None
  return tf.nest.map_structure(lambda part: part[start:end] if tf.is_tensor(part) else part, batch)


def _dataset(task: protocols.Task, data: object) -> Any:
  """The input of a data configuration; None without one, or if it cannot be built."""
  if data is None:
    return None
  try:
    with bad_examples.logged_in(bad_examples.ExampleLog()):
      dataset = pipelines.transformed(task.build_inputs, pipelines.without_autotune)(data)
  except Exception:  # pylint: disable=broad-except  # Each task fails in its own way: the dry run reports it.
    return None
  return dataset if isinstance(dataset, tf.data.Dataset) else None


def _read(dataset: tf.data.Dataset, needed: int, is_endless: bool = False) -> _Reading | None:
  if dataset is None:
    return None
  if is_endless or int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY or pipelines.never_ends(dataset):
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


def _check_end(dataset: tf.data.Dataset, train: _Reading, needed: int) -> Iterator[findings.Finding]:
  """Finds training data that end before training does."""
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
  """Finds examples that are sorted by class, and should be shuffled."""
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
  """Finds inputs that are NaN or infinite."""
  for name, count in reading.not_finite.items():
    yield findings.Finding(
      'warning',
      path,
      f'{name} is NaN or infinite in {count} of the first {reading.num_examples} examples',
      'skip them, or replace them by a number and a mask',
    )


def _check_shapes(train: _Reading, enable_xla: object) -> Iterator[findings.Finding]:
  """Finds training batches whose shapes differ, which matters only to XLA."""
  if enable_xla is False:
    return
  consequence = 'XLA compiles the step anew for each'
  if enable_xla == 'auto':
    limit = step_plan.MAX_SHAPES
    consequence = f'runtime.enable_xla=auto compiles the step for the first {limit} on a GPU, and for none on a CPU'
  for name, shapes in train.shapes.items():
    if len(shapes) > 1:
      listed = ', '.join(str(list(shape)) for shape in sorted(shapes)[:3])
      yield findings.Finding(
        'warning',
        'task.train_data',
        f'the shape of {name} changes from batch to batch ({listed}, ...): {consequence}',
        "pad to one length (collator 'pad' with seq_length, padded_batch) or a few (bucket_by_sequence_length with "
        'pad_to_bucket_boundary=True), and batch(..., drop_remainder=True)',
      )


def _check_endless(
  dataset: tf.data.Dataset, validation: _Reading, num_examples: int | None
) -> Iterator[findings.Finding]:
  """Finds validation data that never end, if an evaluation reads all of them."""
  if validation.ended:
    return
  batch_size = max(1, len(validation.examples) // validation.num_batches)
  if pipelines.never_ends(dataset):
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


def _check_same(
  task: model_garden_configs.TaskConfig, train: _Reading, validation: _Reading, num_train: int | None
) -> Iterator[findings.Finding]:
  """Finds validation examples that are training examples too."""
  what = ''
  both = [config_fields.of_data(data) for data in (task.train_data, task.validation_data)]
  for names in _NAMES_OF_DATA:
    values = [[getattr(fields, name) for name in names] for fields in both]
    if values[0][0] and values[0] == values[1]:
      what = f'{" and ".join(names[:2])} are those of task.train_data'
  if not what and train.examples and validation.examples:
    common = sorted(train.examples[0].keys() & validation.examples[0].keys())
    seen = {tuple(example[name] for name in common) for example in train.examples}
    examples = [tuple(example[name] for name in common) for example in validation.examples]
    distinct = set(examples)
    shared = sum(example in seen for example in distinct)
    # The sample of a large training set has only a part of the examples that are in both.
    share = min(1.0, len(seen) / num_train) if num_train else 0.1
    if common and 2 * len(distinct) >= len(examples) and shared > 1 and shared >= 0.5 * share * len(distinct):
      what = f'{shared} of the first {len(distinct)} examples are among the first {len(seen)} of task.train_data'
  if what:
    yield findings.Finding(
      'warning', 'task.validation_data', what, 'use another split: a metric on learnt examples is meaningless'
    )
