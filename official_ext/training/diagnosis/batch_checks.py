"""Runs a task's steps on unusual batches: the last, smaller one, and those with extreme labels."""

import tensorflow as tf

from official_ext.base import protocols
from official_ext.training.devices import failures
from official_ext.training.diagnosis import data_checks
from official_ext.training.diagnosis import findings
from official_ext.training.diagnosis import label_checks
from official_ext.training.diagnosis import step_checks
from official_ext.training.diagnosis import step_errors
from official_ext.training.loop import base_task

_TOLERANCE = 1e-4


def find(
  run: step_checks.StepRun, task: protocols.Task, path: str, sample: data_checks.Sample
) -> list[findings.Finding]:
  """Looks for mistakes that the first batches, on which the step has passed, do not show.

  Args:
    run: runs the steps.
    task: the task.
    path: 'task.train_data' or 'task.validation_data'.
    sample: batches of it.
  """
  found: list[findings.Finding] = []
  trains = path.endswith('train_data')
  for number, batch in sample.extreme:
    try:
      with tf.device('CPU:0'):  # Its kernels refuse labels that those of a GPU turn into NaN.
        run.try_batch(batch, trains)
    except Exception as error:  # pylint: disable=broad-except  # Only errors that labels cause are reported here.
      finding = label_checks.explain(error, path, task, run.model, [batch], [number])
      if finding is not None:
        found.append(finding)
        break
  if sample.partial is not None:
    found += _find_in_partial(run, task, path, sample, trains)
  if not trains and isinstance(task, base_task.Task) and sample.size:
    found += _find_sum(run, task, sample)
  return found


def _find_in_partial(run, task, path, sample, trains):
  try:
    run.try_batch(sample.partial, trains)
    return []
  except Exception as error:  # pylint: disable=broad-except  # Any exception: full batches do not raise it.
    finding = label_checks.explain(error, path, task, run.model, [sample.partial], [])
    finding = finding or step_errors.explain(error)
    if finding is not None:
      return [finding]
    place, left = failures.place_of(error), int(base_task.num_examples_in(sample.partial))
    return [
      findings.Finding(
        'error',
        failures.at_line(*place) if place else path,
        f'the last batch of {path} has {left} examples in place of {sample.size}, and the step fails on it: '
        f'{failures.message_of(error)}',
        'take the size of a batch from tf.shape, or leave out the last one (drop_remainder=true)',
      )
    ]


def _find_sum(run, task, sample):
  """Finds a loss that is the sum over the examples, by cutting the batch in two."""
  half = sample.size // 2
  parts = [data_checks.cut(sample.kept[0], start, start + half, sample.size) for start in (0, half)]
  if half < 2 or 2 * half != sample.size or None in parts:
    return []
  try:
    whole, first, second = (run.loss_of(batch) for batch in (sample.kept[0], *parts))
  except Exception:  # pylint: disable=broad-except  # The task needs whole batches.
    return []
  scale = abs(whole)
  is_sum = abs(whole - first - second) <= _TOLERANCE * scale and min(abs(first), abs(second)) > 0.01 * scale
  if not is_sum or first * second < 0:
    return []
  return [
    findings.Finding(
      'warning',
      failures.of_function(task.forward),
      'the loss is the sum over the examples of a batch: it, and the '
      'size of an update, depend on the size of the batch',
      'return the mean over the examples, tf.reduce_mean',
    )
  ]
