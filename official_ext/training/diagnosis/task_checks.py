"""Finds the commonest mistakes in a task, on a few batches: the first half of `official-ext check`.

Errors cannot be intended: a loss that is not a scalar, a metric that nothing updates, class numbers that are cut off or
out of range, dtypes that do not fit, a compiled step that needs the value of a tensor, training data that end too
early, validation data that never end, a loss of `forward` that includes the model's losses, a step that changes no
weight, is not finite or cannot take the last batch.
Warnings may be intended: a weight without a gradient, Python code that runs only once, when a step is traced (print,
counters, NumPy's random numbers), shapes that change, validation examples that are training examples, inputs that are
not finite or are sorted, dropout or batch normalisation that is off in training or on in evaluation, a loss that is a
sum or no mean over examples, labels and predictions that broadcast.

data_checks.py, step_checks.py and batch_checks.py find most of them. This module adds unusual batches: the last,
smaller one, and batches with extreme labels.
"""

import contextlib
from typing import Any

from official.core import train_utils
import tensorflow as tf

from official_ext.base import protocols
from official_ext.base import tracebacks
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.diagnosis import data_checks
from official_ext.training.diagnosis import findings
from official_ext.training.diagnosis import step_checks
from official_ext.training.loop import train_lib
from official_ext.training.step import keras_version
from official_ext.training.tasks import base_task
from official_ext.training.tasks import model_garden

_TOLERANCE = 1e-4


def find_in_batches(
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
      with tf.device('CPU:0'):  # Its kernels refuse labels that a GPU's turn into NaN.
        run.try_batch(batch, trains)
    except Exception as error:  # pylint: disable=broad-except  # Only errors that labels cause are reported here.
      finding = findings.explain_label(error, path, task, run.model, [batch], [number])
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
    finding = findings.explain_label(error, path, task, run.model, [sample.partial], [])
    finding = finding or findings.explain_step(error)
    if finding is not None:
      return [finding]
    place = tracebacks.place_of(error)
    left = next(
      len(part) for part in tf.nest.flatten(sample.partial) if isinstance(part, tf.Tensor) and part.shape.rank
    )
    return [
      findings.Finding(
        'error',
        tracebacks.at_line(*place) if place else path,
        f'the last batch of {path} has {left} examples in place of {sample.size}, and the step fails on it: '
        f'{tracebacks.message_of(error)}',
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
      tracebacks.of_function(task.forward),
      'the loss is the sum over the examples of a batch: it, and the '
      'size of an update, depend on the size of the batch',
      'return the mean over the examples, tf.reduce_mean',
    )
  ]


_NUM_BATCHES = 2


def find_in_task(params: definitions.ExperimentConfig, logging_dir: str = '') -> list[findings.Finding]:
  """Looks for mistakes in an experiment's task. It runs in this process, eagerly, on one device.

  The dry run, which follows, reports other errors that stop a step.

  Args:
    params: the experiment.
    logging_dir: for the task.

  Returns:
    The findings, errors first; [] for none.

  Example:

    >>> from experiments import digits_mlp
    >>> @dataclasses.dataclass
    ... class SummedConfig(digits_mlp.configs.DigitsMlpTaskConfig):
    ...   pass
    >>> @ext.register_task(SummedConfig)
    ... class Summed(digits_mlp.DigitsMlpTask):
    ...   def forward(self, inputs, model, training):
    ...     mean, logs = super().forward(inputs, model, training)
    ...     return mean * tf.cast(tf.size(inputs['label']), mean.dtype), logs
    >>> params = digits_mlp.digits_mlp()
    >>> params.task = SummedConfig()
    >>> for finding in ext.find_mistakes(params):
    ...   print(finding.level, '-', finding.what)
    ...   print(finding.remedy)
    warning - the loss is the sum over the examples of a batch: ...
    return the mean over the examples, tf.reduce_mean
  """
  task = model_garden.make_task(params.task, logging_dir=logging_dir)
  params = params.replace(trainer=epochs.in_steps(params.trainer, params.task, task))
  found, train, validation = data_checks.find(task, params)
  try:
    model, optimizer, train = _parts(task, params, logging_dir, train)
  except Exception:  # pylint: disable=broad-except  # Any task's: the dry run reports it.
    return found
  run = step_checks.StepRun(task, params, model, optimizer)
  for path, sample in (('task.train_data', train), ('task.validation_data', validation)):
    if not sample.kept:
      continue
    try:
      if path == 'task.train_data':
        run.train(sample.kept)
      else:
        run.validate(sample.kept[0])
        run.find_broadcasts(sample.kept[0])
    except Exception as error:  # pylint: disable=broad-except  # As above.
      numbers = range(len(sample.kept))
      finding = findings.explain_label(error, path, task, model, sample.kept, numbers) or findings.explain_step(error)
      run.found += [finding] if finding is not None else []
      continue
    run.found += find_in_batches(run, task, path, sample)
  for sample in (validation, train) if not run.found_broadcasts else ():
    with contextlib.suppress(Exception):  # A step that fails is reported above.
      if sample.kept and run.find_mixing(sample.kept[0], sample.size, validates=sample is validation):
        break
  return sorted([*found, *run.finish()], key=lambda finding: finding.level != 'error')


def _parts(
  task: protocols.Task, params: definitions.ExperimentConfig, logging_dir: str, train: data_checks.Sample
) -> tuple[Any, Any, data_checks.Sample]:
  """(model, optimizer, inputs of the training steps: `train`, or its replacement by the task's own trainer).

  The model has the weights that a run begins with, if it can have them: the dry run reports why not.
  """
  if task.trainer_cls is None or not train.kept:
    model = task.build_model()
    keras_version.check_model(task, model)
    with contextlib.suppress(Exception):
      task.initialize(model)
    return model, train_utils.create_optimizer(task, params), train
  trainer = train_lib.build_trainer(tf.distribute.get_strategy(), task, params, logging_dir, train=True, evaluate=False)
  with contextlib.suppress(Exception):
    trainer.initialize()
  iterator = tf.nest.map_structure(iter, trainer.train_dataset)
  batches = [trainer.take_inputs(iterator) for _ in range(_NUM_BATCHES)]
  return trainer.model, trainer.optimizer, data_checks.Sample(batches)
