"""Explains an error of a loss or an embedding about a label or an index that is out of range."""

from collections.abc import Sequence
import contextlib
import re

import tensorflow as tf
import tf_keras

from official_ext.base import protocols
from official_ext.data import bad_examples
from official_ext.data import input_faults
from official_ext.training.devices import failures
from official_ext.training.diagnosis import findings
from official_ext.training.loop import input_report

_REMEDY = (
  'count from 0, give the model as many classes (or rows) as there are, and mask labels that the loss must ignore'
)


def explain(
  error: BaseException,
  path: str,
  task: protocols.Task,
  model: tf_keras.Model,
  batches: Sequence[object],
  numbers: Sequence[int],
) -> findings.Finding | None:
  """The finding about an error of a step; None if it says something else.

  Args:
    error: the exception.
    path: 'task.train_data' or 'task.validation_data'.
    task: the task.
    model: its model.
    batches: those that the error may be about.
    numbers: their numbers, from 0.
  """
  found = input_faults.out_of_range(error)
  if found is None:
    return None
  data = getattr(task.task_config, path.partition('.')[2], None)
  report = input_report.InputReport(path, data, task)
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
  place = failures.place_of(error)
  return findings.Finding('error', path, what + (f' ({place})' if place else ''), _REMEDY)
