"""Finds the commonest mistakes in a task, on a few batches: the first half of `official-ext check`.

Errors cannot be intended: a loss that is not a scalar, a metric that nothing updates, class numbers that are cut off or
out of range, dtypes that do not fit, a compiled step that needs the value of a tensor, training data that end too
early, validation data that never end, a loss of `forward` that includes the model's losses, a step that changes no
weight, is not finite or cannot take the last batch.
Warnings may be intended: a weight without a gradient, Python code that runs only once, when a step is traced (print,
counters, NumPy's random numbers), shapes that change, validation examples that are training examples, inputs that are
not finite or are sorted, dropout or batch normalisation that is off in training or on in evaluation, a loss that is a
sum.
"""

import contextlib
from typing import Any

from official.core import task_factory
from official.core import train_utils
import tensorflow as tf

from official_ext.base import protocols
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.diagnosis import batch_checks
from official_ext.training.diagnosis import data_checks
from official_ext.training.diagnosis import findings
from official_ext.training.diagnosis import label_checks
from official_ext.training.diagnosis import step_checks
from official_ext.training.diagnosis import step_errors
from official_ext.training.loop import building
from official_ext.training.step import keras_version

_NUM_BATCHES = 2


def find(params: definitions.ExperimentConfig, logging_dir: str = '') -> list[findings.Finding]:
  """Looks for mistakes in an experiment's task. It runs in this process, eagerly, on one device.

  The dry run, which follows, reports other errors that stop a step.

  Args:
    params: the experiment.
    logging_dir: for the task.

  Returns:
    The findings, errors first; [] if there are none.
  """
  task = task_factory.get_task(params.task, logging_dir=logging_dir)
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
    except Exception as error:  # pylint: disable=broad-except  # As above.
      numbers = range(len(sample.kept))
      finding = label_checks.explain(error, path, task, model, sample.kept, numbers) or step_errors.explain(error)
      run.found += [finding] if finding is not None else []
      continue
    run.found += batch_checks.find(run, task, path, sample)
  return sorted([*found, *run.finish()], key=lambda finding: finding.level != 'error')


def _parts(
  task: protocols.Task, params: definitions.ExperimentConfig, logging_dir: str, train: data_checks.Sample
) -> tuple[Any, Any, data_checks.Sample]:
  """(model, optimizer, inputs of the training steps: `train`, or its replacement by the task's own trainer).

  The model has the weights that a run begins with, if it can have them: the dry run reports why not.
  """
  if getattr(task, 'trainer_cls', None) is None or not train.kept:
    model = task.build_model()
    keras_version.check_model(task, model)
    with contextlib.suppress(Exception):
      task.initialize(model)
    return model, train_utils.create_optimizer(task, params), train
  trainer = building.build_trainer(tf.distribute.get_strategy(), task, params, logging_dir, train=True, evaluate=False)
  with contextlib.suppress(Exception):
    trainer.initialize()
  iterator = tf.nest.map_structure(iter, trainer.train_dataset)
  batches = [trainer.take_inputs(iterator) for _ in range(_NUM_BATCHES)]
  return trainer.model, trainer.optimizer, data_checks.Sample(batches)
