"""Lengths and intervals in epochs of the training data, turned into steps once, when the data are known."""

import math

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.training.config import definitions

# Field in epochs -> field in steps.
INTERVALS = {
  'validation_interval_epochs': 'validation_interval',
  'checkpoint_interval_epochs': 'checkpoint_interval',
  'summary_interval_epochs': 'summary_interval',
}
FIELDS = {'train_epochs': 'train_steps', **INTERVALS}


def effective_batch_size(params: definitions.ExperimentConfig) -> int:
  """The examples in one update: `global_batch_size` times `gradient_accumulation_steps`; 0 if a task has neither."""
  data = getattr(params.task, 'train_data', None)
  return (getattr(data, 'global_batch_size', 0) or 0) * params.trainer.gradient_accumulation_steps


def resolve(params: definitions.ExperimentConfig, task: protocols.Task) -> definitions.ExperimentConfig:
  """Replaces epochs by steps, rounded up to whole steps, and prints the result.

  Args:
    params: the experiment.
    task: knows the number of its training examples, by `num_examples`.

  Returns:
    A copy whose fields in epochs are 0; `params` itself if they already are.

  Raises:
    UserError: the number of examples is not known.
  """
  given = {name: getattr(params.trainer, name) for name in FIELDS if getattr(params.trainer, name)}
  if not given:
    return params
  data, batch_size = getattr(params.task, 'train_data', None), effective_batch_size(params)
  num_examples = task.num_examples(data) if hasattr(task, 'num_examples') else None
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
  return params.replace(trainer=changes)
