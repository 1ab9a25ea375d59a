"""Findings of a check: the error, its place, and the fix."""

from collections.abc import Sequence
import contextlib
import dataclasses
import re

import tensorflow as tf
import tf_keras

from official_ext.base import protocols
from official_ext.base import tracebacks
from official_ext.data import bad_examples
from official_ext.data import config_fields
from official_ext.data import input_faults
from official_ext.training.loop import training_input


@dataclasses.dataclass(frozen=True)
class Finding:
  """One mistake.

  Attributes:
    level: 'error': training cannot be right; 'warning': it may be intended.
    where: a dotted path of the configuration, or file, line and function.
    what: the error.
    remedy: the fix.
  """

  level: str
  where: str
  what: str
  remedy: str

  def __str__(self) -> str:
    return f'{self.where}: {self.what}; {self.remedy}'


_REMEDY = (
  'count from 0, give the model as many classes (or rows) as there are, and mask labels that the loss must ignore'
)


def explain_label(
  error: BaseException,
  path: str,
  task: protocols.Task,
  model: tf_keras.Model,
  batches: Sequence[object],
  numbers: Sequence[int],
) -> Finding | None:
  """The finding about an error of a step; None if it says something else.

  Args:
    error: the exception.
    path: 'task.train_data' or 'task.validation_data'.
    task: the task.
    model: its model.
    batches: the ones that the error may be about.
    numbers: their numbers, from 0.
  """
  found = input_faults.out_of_range(error)
  if found is None:
    return None
  data = config_fields.data_of(task.task_config, path.partition('.')[2])
  report = training_input.InputReport(path, data, task)
  with contextlib.suppress(Exception), report.building():  # Another error is being reported.
    task.build_inputs(data)
  what = re.sub(r' \(near step \d+\)$', '', str(report.explain(error, 0, model, numbers)).removeprefix(f'{path}: '))
  names = {
    name
    for batch in batches
    for name, tensor in zip(bad_examples.paths(batch), tf.nest.flatten(batch))
    if isinstance(tensor, tf.Tensor) and tensor.dtype.is_integer and (tensor.numpy() == found.value).any()
  }
  if len(names) == 1:
    what = what.replace('a label or an index of ', f'{names.pop()}: ')
  place = tracebacks.place_of(error)
  return Finding('error', path, what + (f' ({place})' if place else ''), _REMEDY)


_DTYPES = re.compile(
  r'that does not match type|not in the list of allowed values|was expected to be an? \S+ tensor but is|'
  r'has DataType \S+ not in|Invalid dtype|must be of the same type|[Ee]xpected \S+, but got \S+ of type',
  re.DOTALL,
)
_HOST = re.compile(
  r"has no attribute 'numpy'|numpy\(\) is only available|NumPy call|to a numpy array|symbolic tf.Tensor"
)


def explain_step(error: BaseException) -> Finding | None:
  """The finding about the task's code that an error of a step means; None if the mistake is not known here."""
  message = ' '.join(str(error).split())
  if isinstance(error, (AttributeError, NotImplementedError, TypeError)) and _HOST.search(message):
    return Finding(
      'error',
      _place_of(error),
      f'the value of a tensor is needed, which a compiled step has not ({type(error).__name__})',
      "use TensorFlow's functions instead of NumPy's and of .numpy()",
    )
  if isinstance(error, (TypeError, ValueError, tf.errors.InvalidArgumentError)) and _DTYPES.search(message):
    short = re.split(r'; NodeDef|\[Op:|\{\{', re.split(r'\w+Error: ', message)[-1])[0].strip(' .;')[:200]
    return Finding(
      'error',
      _place_of(error),
      f'dtypes do not fit: {short}',
      'cast the labels in build_inputs (class numbers: int32, others: float32), or with tf.cast in the step',
    )
  return None


def _place_of(error: BaseException) -> str:
  """The last line of the user's code that an error comes from."""
  place = tracebacks.place_of(error)
  return tracebacks.at_line(*place) if place else 'task'
