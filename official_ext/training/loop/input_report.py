"""Reports the errors of a trainer's input, and how many examples were skipped."""

from collections.abc import Iterator, Sequence
import contextlib
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.data import bad_examples
from official_ext.data import data_identity
from official_ext.data import input_faults
from official_ext.data import position
from official_ext.data.service import served_inputs
from official_ext.training.loop import base_task
from official_ext.training.step import step_random

SKIPS = 'examples_skipped'
_MAX_NAMED = 3


class InputReport:
  """The report of one data configuration.

  Attributes:
    path: the dotted path of the configuration.
    log: the reports of the library's own inputs about their examples, since the last was built.
  """

  def __init__(self, path: str, data: Any, task: Any):
    """Initializes the report.

    Args:
      path: the dotted path of the configuration.
      data: the configuration; anything if a task has none.
      task: builds the input.
    """
    self.path = path
    self.log = bad_examples.ExampleLog()
    self._data = data
    self._task = task
    self._is_built = False
    self._found: list[json_types.JsonObject] | None = None  # Looking at many files takes time.

  @contextlib.contextmanager
  def building(self) -> Iterator[None]:
    """A context in which the input is built.

    Raises:
      UserError: its files are all empty.
    """
    input_faults.check_not_empty(self.path, self._data)
    self.log = bad_examples.ExampleLog()  # Examples that an abandoned input reads ahead must not be counted.
    self._is_built = True
    self._found = None
    with bad_examples.logged_in(self.log), served_inputs.belonging_to(getattr(self._task, 'task_config', None)):
      yield

  def identity(self) -> list[json_types.JsonObject]:
    """The identity of the data: those of the library's sources, or of the files that the configuration names.

    For another input, it is the number of examples, if the task knows it. [] if nothing is known, or the input was not
    built.
    """
    if self.log.identities or not self._is_built:
      return self.log.identities
    if self._found is None:
      self._found = self._identify()
    return self._found

  def _identify(self) -> list[json_types.JsonObject]:
    found = data_identity.of_config(self._data)
    num_examples = self._task.num_examples(self._data) if hasattr(self._task, 'num_examples') else None
    found = {**found, 'num_examples': num_examples} if num_examples is not None else found
    return [found] if found else []

  def summary(self) -> str:
    """How many examples there are, and how many of their records were dropped, in words; '' if nothing was built."""
    if not self._is_built:
      return ''
    if self.log.summaries:
      text = '; '.join(self.log.summaries)
    else:
      known = next(iter(self.identity()), {})
      counts = [f'{known[f"num_{name}"]} {name}' for name in ('examples', 'files') if f'num_{name}' in known]
      text = ' in '.join(counts) + ('' if 'num_examples' in known else ', number of examples unknown')
      text = text.removeprefix(', ')
    if getattr(self._data, 'drop_remainder', False) and not getattr(self._data, 'is_training', True):
      text += f'; those behind the last whole batch are dropped: {self.path}.drop_remainder'
    return text

  def explain(
    self, error: BaseException, step: int, model: Any, batch_numbers: Sequence[int] = ()
  ) -> errors.UserError | None:
    """Turns the exception of a step into an error that names the data that it is about.

    Args:
      error: the exception.
      step: the number of steps done.
      model: the task's.
      batch_numbers: the numbers of the batches that it may be about.

    Returns:
      The error; None if it is not about data.
    """
    evaluates = self.path.endswith('validation_data')
    # The counter of steps waits neither for the loss nor for the input of all replicas.
    when = f'in the evaluation at step {step}' if evaluates else f'near step {step}'
    found = input_faults.out_of_range(error)
    if found is None:
      return input_faults.explain(error, self.path, self._data, self._task.build_inputs, f' ({when})')
    place = self.examine(batch_numbers, model, labels_only=True)
    if place:
      return errors.UserError(f'{self.path}: {place}' + (f' ({when})' if evaluates else ''))
    message = f'{self.path}: a label or an index of {found.value} is outside of {found.valid}'
    fault = None if self.log.describe else input_faults.find_label(self._data, found.value)
    if fault is not None:
      message = f'{self.path}: {fault}, which is outside of {found.valid}'
    return errors.UserError(f'{message} ({when})')

  def no_examples(self, needed: int = 0) -> errors.UserError:
    """The error for an input that has ended before its first batch; a step needs `needed` examples."""
    return input_faults.no_examples(self.path, self._data, needed)

  def skips_up_to(self, end: int | None) -> dict[str, int]:
    """The number of examples that were skipped since the last call, as a log. Empty if the task skips none.

    Args:
      end: the position up to which examples have been used; None: all.
    """
    if getattr(self._data, 'on_bad_example', 'error') != 'skip' or self.log.describe is None:
      return {}
    return {SKIPS: self.log.take_skips(end)}

  def examine(self, batch_numbers: Sequence[int], model: object, labels_only: bool = False) -> str:
    """Finds the inputs or labels that have made the loss of some batches not finite.

    Only the library's own inputs can read a batch again. The loss itself tests the labels, on the CPU, whose kernels
    refuse labels that those of GPU and XLA turn into NaN.

    Args:
      batch_numbers: which batches.
      model: the task's.
      labels_only: whether to pass over the inputs.

    Returns:
      The errors of examples; '' if nothing is found.
    """
    for number in batch_numbers:
      batch = self._read_again(number)
      if batch is None:
        continue
      places = [] if labels_only else _rows(batch, lambda array: ~np.isfinite(array))
      if places:
        name, rows = places[0]
        return f'{name} is not finite in {self._name(number, rows)}'
      found = input_faults.out_of_range(_error_of(self._task, model, batch))
      if found is not None:
        places = _rows(batch, functools.partial(_equals, value=found.value))
        name, rows = places[0] if places else ('a label or an index', [0])
        return f'{name}: {found.value} is outside of {found.valid}, in {self._name(number, rows)}'
    return ''

  def _name(self, batch_number, rows) -> str:
    size = self._data.global_batch_size
    describe = self.log.describe
    assert describe is not None  # There is one, as the batch was read again.
    named = [describe(batch_number * size + row) for row in rows[:_MAX_NAMED]]
    more = f' and {len(rows) - _MAX_NAMED} more of the batch' if len(rows) > _MAX_NAMED else ''
    return f'{"; ".join(named)}{more}'

  def _read_again(self, number: int) -> Any | None:
    """Reads a whole global batch again, if the input can start anywhere; None if it cannot."""
    if self.log.describe is None:
      return None
    try:
      with position.starting_at(number) as start, bad_examples.logged_in(bad_examples.ExampleLog()):
        dataset = self._task.build_inputs(self._data)
        if not start.honoured:  # An evaluation, in the order of the source.
          dataset = dataset.skip(number)
      return next(iter(dataset), None)
    except Exception:  # pylint: disable=broad-except  # Another error is being reported.
      return None


def _rows(batch: object, test: Any) -> list[Any]:
  """(name, rows) of the tensors with rows that pass a test of arrays [b, n]; those of the lowest rank first."""
  found = []
  # The keys of its dictionaries, the numbers of its tuples.
  named = zip(bad_examples.paths(batch), tf.nest.flatten(batch))
  flat = [(name, tensor) for name, tensor in named if tf.is_tensor(tensor) and isinstance(tensor, tf.Tensor)]
  for name, tensor in sorted(flat, key=lambda item: item[1].shape.rank):
    array = tensor.numpy()
    if array.ndim and array.dtype.kind in 'iuf':
      rows = np.flatnonzero(test(array.reshape(len(array), -1)).any(axis=1)).tolist() if len(array) else []
      if rows:
        found.append((name, rows))
  return found


def _equals(array: np.ndarray, value: int) -> np.ndarray:
  return (array == value) if array.dtype.kind in 'iu' else np.zeros(array.shape, bool)


def _error_of(task: Any, model: Any, batch: Any) -> Exception | None:
  """The exception of the task's loss on a batch, on the CPU."""
  try:
    key = step_random.StepKey(seed=0, step=tf.constant(0, tf.int64), purpose='evaluation')
    with tf.device('CPU:0'), step_random.step_key(key):
      if isinstance(task, base_task.Task):
        task.forward(batch, model, training=False)
      else:
        task.validation_step(batch, model)
  except Exception as error:  # pylint: disable=broad-except
    return error
  return None
