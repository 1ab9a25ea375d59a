"""Looks at the examples of a task, as many as a few seconds and some megabytes allow."""

import time
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import tensorflow as tf

from official_ext.checks import findings
from official_ext.data import bad_examples
from official_ext.data import pipelines
from official_ext.data import position

_SECONDS = 2.0  # For each of the searches below.
_MAX_BATCHES = 4096  # Where only reading tells whether there is an end.
_NUM_LOOKED_AT = 64  # Batches, elsewhere.
_MAX_BYTES = 2**26
_NUM_KEPT = 3
_NAMES_OF_DATA = (('input_path',), ('tfds_name', 'tfds_split', 'tfds_data_dir'))


class _Reading:
  """What the first batches of an input have shown.

  Attributes:
    kept: the first of them.
    num_batches: how many were read.
    ended: whether there are no more.
    shapes: of each tensor by name, those that were seen, without the batches after which the input ended.
    examples: the hashes of the examples, by the names of their tensors.
    repeats: whether the first batch came again.
  """

  def __init__(self, dataset: Any, needed: int):
    self.kept: List[Any] = []
    self.num_batches = 0
    self.ended = False
    self.repeats = False
    self.shapes: Dict[str, Set[Tuple[int, ...]]] = {}
    self.examples: List[Dict[str, int]] = []
    self._bytes = 0
    first: Optional[List[Any]] = None
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

  def _note(self, batch: Any) -> List[Dict[str, int]]:
    """Notes shapes and examples of a batch; returns the hashes of its examples."""
    named = [(name, value) for name, value in zip(bad_examples.paths(batch), tf.nest.flatten(batch))
             if isinstance(value, tf.Tensor)]
    for name, value in named:
      self.shapes.setdefault(name, set()).add(tuple(value.shape))
    arrays = {name: value.numpy() for name, value in named if value.shape.rank}
    size = sum(array.nbytes for array in arrays.values())
    lengths = {len(array) for array in arrays.values()}
    if self._bytes + size > _MAX_BYTES or len(lengths) != 1:
      return []
    self._bytes += size
    hashes: List[Dict[str, int]] = [{} for _ in range(lengths.pop())]
    for name, array in arrays.items():
      for row, example in zip(array, hashes):
        example[name] = hash(row.tobytes() if hasattr(row, 'tobytes') else row)
    self.examples += hashes
    return hashes


def find(task: Any, params: Any) -> Tuple[List[findings.Finding], List[Any], List[Any]]:
  """Looks at the training and the validation data.

  Args:
    task: a task.
    params: its experiment, with train_steps resolved.

  Returns:
    (findings, some batches of the training data, some of the validation data). No batches where there are no such
    data, or they cannot be read, which the dry run then tells.
  """
  found: List[findings.Finding] = []
  trainer = params.trainer
  needed = trainer.train_steps * getattr(trainer, 'gradient_accumulation_steps', 1)
  with position.starting_at(0) as start:
    training = _dataset(task, getattr(params.task, 'train_data', None))
  train = _read(training, needed, start.honoured)
  if train is not None and not start.honoured:
    found += _check_end(training, train, needed)
  if train is not None:
    found += _check_shapes(train)
  validating = _dataset(task, getattr(params.task, 'validation_data', None))
  validation = _read(validating, trainer.validation_steps if trainer.validation_steps > 0 else _MAX_BATCHES)
  if validation is not None:
    if trainer.validation_steps == -1:
      found += _check_endless(validating, validation, _num_examples(task, params.task.validation_data))
    if train is not None:
      found += _check_same(params.task, train, validation, _num_examples(task, params.task.train_data))
  return found, train.kept if train else [], validation.kept if validation else []


def _dataset(task: Any, data: Any) -> Any:
  """The input of a data configuration; None where there is none, or it cannot be built."""
  if data is None:
    return None
  try:
    with bad_examples.logged_in(bad_examples.ExampleLog()):
      dataset = pipelines.transformed(task.build_inputs, pipelines.without_autotune)(data)
  except Exception:  # pylint: disable=broad-except  # Each task fails in its own way: the dry run tells it.
    return None
  return dataset if isinstance(dataset, tf.data.Dataset) else None


def _read(dataset: Any, needed: int, is_endless: bool = False) -> Optional[_Reading]:
  if dataset is None:
    return None
  if is_endless or int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY or _repeats_forever(dataset):
    needed = min(needed, _NUM_LOOKED_AT)
  try:
    reading = _Reading(dataset, needed)
  except Exception:  # pylint: disable=broad-except  # As above.
    return None
  return reading if reading.num_batches else None


def _num_examples(task: Any, data: Any) -> Optional[int]:
  return task.num_examples(data) if hasattr(task, 'num_examples') else None


def _check_end(dataset: tf.data.Dataset, train: _Reading, needed: int) -> Iterator[findings.Finding]:
  """Training data that are used up before training ends."""
  cardinality = int(dataset.cardinality())
  holds = train.num_batches if train.ended else cardinality
  if 0 <= holds < needed:
    yield findings.Finding(
        'error', 'task.train_data', f'the data end after {holds} batches, and training takes {needed}',
        'let build_inputs call dataset.repeat() where params.is_training, or use step_indexed.build_dataset')


def _check_shapes(train: _Reading) -> Iterator[findings.Finding]:
  """Training batches whose shapes differ."""
  for name, shapes in train.shapes.items():
    if len(shapes) > 1:
      listed = ', '.join(str(list(shape)) for shape in sorted(shapes)[:3])
      yield findings.Finding(
          'warning', 'task.train_data', f'the shape of {name} changes from batch to batch ({listed}, ...): XLA '
          'compiles the step anew for each', "pad to one length (collator 'pad' with seq_length, padded_batch), and "
          'batch(..., drop_remainder=True)')


def _check_endless(dataset: tf.data.Dataset, validation: _Reading, num_examples: Optional[int]
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
      'error', 'task.validation_data', f'{what}, and trainer.validation_steps is -1: an evaluation takes all of them',
      'do not repeat where params.is_training is false, or set trainer.validation_steps')


def _repeats_forever(dataset: Any) -> bool:
  """Whether all that a dataset is made from has no end, and nothing takes a part of it."""
  if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
    return True
  if 'Take' in type(dataset).__name__ or int(dataset.cardinality()) >= 0:
    return False
  inputs = dataset._inputs()  # pylint: disable=protected-access
  return bool(inputs) and all(_repeats_forever(part) for part in inputs)


def _check_same(task: Any, train: _Reading, validation: _Reading, num_train: Optional[int]
                ) -> Iterator[findings.Finding]:
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
        'warning', 'task.validation_data', what,
        'take another split: a metric says nothing on examples that were learnt')
