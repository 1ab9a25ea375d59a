"""Lengths and intervals in epochs of the training data, turned into steps once, when the data are known."""

import math

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.data import config_fields
from official_ext.training.config import definitions

# Field in epochs -> field in steps.
INTERVALS = {
  'validation_interval_epochs': 'validation_interval',
  'checkpoint_interval_epochs': 'checkpoint_interval',
  'summary_interval_epochs': 'summary_interval',
}
FIELDS = {'train_epochs': 'train_steps', **INTERVALS}


def effective_batch_size(config: definitions.TrainerConfig, task_config: object) -> int:
  """The examples in one update: `global_batch_size` times `gradient_accumulation_steps`; 0 if a task has neither."""
  data = config_fields.of_task(task_config).train_data
  return (config_fields.of_data(data).global_batch_size or 0) * config.gradient_accumulation_steps


def in_steps(config: definitions.TrainerConfig, task_config: object, task: protocols.Task) -> dict[str, object]:
  """Computes the steps for fields in epochs, rounded up to whole steps, and prints them.

  Args:
    config: of the trainer.
    task_config: of the task: its `train_data`, if it has any.
    task: knows the number of its training examples, by `num_examples`.

  Returns:
    The trainer's fields that change. Fields in epochs become 0; {} if they already are.

  Raises:
    UserError: the number of examples is not known.
  """
  given = {name: getattr(config, name) for name in FIELDS if getattr(config, name)}
  if not given:
    return {}
  data = config_fields.of_task(task_config).train_data
  batch_size = effective_batch_size(config, task_config)
  num_examples = task.num_examples(data)
  if not (num_examples and batch_size):
    name = next(iter(given))
    raise errors.UserError(
      f'trainer.{name}: {type(task).__name__} does not know the number of its training examples; set '
      f'trainer.{FIELDS[name]} instead'
    )
  changes: dict[str, object] = {}
  for name, epochs in given.items():
    steps = max(1, math.ceil(round(epochs * num_examples / batch_size, 6)))  # 0.1 * 30 is more than 3.
    changes.update({FIELDS[name]: steps, name: 0.0})
    print(f'trainer.{FIELDS[name]}: {steps}, {epochs:g} epochs of {num_examples} examples', flush=True)
  return changes
