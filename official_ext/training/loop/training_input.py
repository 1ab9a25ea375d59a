"""Computes which batches a training step takes, and makes the training input begin at any of them."""

from collections.abc import Callable
from typing import Any

from absl import logging
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.data import input_faults
from official_ext.data import pipelines
from official_ext.data import position
from official_ext.training.config import checks
from official_ext.training.config import definitions

_FIELDS_OF_SOURCES = ('input_path:', 'tfds_name:', 'tfds_split:', 'tfds_data_dir:')


class TrainingInput:
  """The training input of one trainer.

  Attributes:
    data_offset: how many updates further than its number a step finds its batches, because rollbacks skipped some.
    is_custom: whether the dataset was handed to the trainer, which cannot build it again.
  """

  def __init__(self, task: protocols.Task, data: object, batches_per_step: int, is_custom: bool):
    """Initializes an input that begins at its first batch.

    Args:
      task: builds the input.
      data: `task.train_data`; None if a task has none.
      batches_per_step: how many global batches an update takes.
      is_custom: whether the dataset was handed to the trainer, which cannot build it again.
    """
    self.data_offset = 0
    self._task = task
    self._data = data
    self._batches_per_step = batches_per_step
    self.is_custom = is_custom
    self._first_batch = 0  # The first batch of the dataset that was built last.

  def batches_of(self, step: int) -> list[int]:
    """The numbers of the global batches that a step (the first: 1) takes."""
    first = (step - 1 + self.data_offset) * self._batches_per_step
    return list(range(first, first + self._batches_per_step))

  def after(self, step: int, distribute_dataset: Callable[..., object]) -> Any | None:
    """The dataset that begins after the batches that `step` steps have used; None if the present one does.

    Args:
      step: the number of steps done.
      distribute_dataset: the trainer's: makes a dataset from a function like `task.build_inputs`, and its argument.
    """
    num_batches = (step + self.data_offset) * self._batches_per_step
    if num_batches == self._first_batch:
      return None
    if self.is_custom:
      logging.warning('The training dataset was handed to the trainer: it starts from its beginning.')
      return None
    with position.starting_at(num_batches) as start:
      dataset = distribute_dataset(self._task.build_inputs, self._data)
      if not start.honoured and num_batches and _is_from_a_service(self._data):
        logging.warning(
          'The input of %s comes from a tf.data service, which deals out examples in no order that could be repeated: '
          'from batch %d on, the run continues with other batches than an undisturbed run would have.',
          type(self._task).__name__,
          num_batches,
        )
      elif not start.honoured and num_batches:
        dataset = distribute_dataset(self._skipping_inputs(num_batches), self._data)
    self._first_batch = num_batches
    return dataset

  def _skipping_inputs(self, num_batches: int) -> Callable[..., tf.data.Dataset]:
    """A `build_inputs` whose pipelines skip the examples of `num_batches` global batches."""
    logging.warning(
      'The input of %s is a tf.data pipeline: it is read again up to batch %d, which costs as long as '
      'reading these batches did.%s',
      type(self._task).__name__,
      num_batches,
      ''
      if getattr(self._data, 'deterministic', None) is not False
      else ' With task.train_data.deterministic=false the order of the examples differs.',
    )

    def skip(dataset, input_context):
      local_replicas = 1
      if input_context is not None:
        local_replicas = input_context.num_replicas_in_sync // input_context.num_input_pipelines
      return dataset.skip(num_batches * local_replicas)

    return pipelines.transformed(self._task.build_inputs, skip)


def _is_from_a_service(data: object) -> bool:
  """Whether Model Garden's InputReader takes the batches of a data configuration from a tf.data service."""
  return bool(getattr(data, 'enable_tf_data_service', False) and getattr(data, 'tf_data_service_address', None))


def ended(step: int) -> errors.UserError:
  """The error for examples that end inside a training loop, after `step` steps."""
  return errors.UserError(
    f'task.train_data: the examples ended at step {step}, inside a training loop; let the dataset repeat, or set '
    'trainer.train_steps to its number of steps'
  )


def mistake_in_data(config: Any, data: Any, error: Exception) -> errors.UserError | None:
  """The mistake in a data configuration that explains an error of Model Garden's; None if none is known."""
  path = next(
    (
      f'task.{name}'
      for name in ('train_data', 'validation_data')
      if data is not None and getattr(config.task, name, None) is data
    ),
    None,
  )
  if path is None:
    return None
  num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
  if 'is not divisible by `num_replicas_in_sync`' in str(error):
    return checks.batch_that_cannot_be_shared(path, data.global_batch_size, num_replicas)
  if isinstance(error, errors.UserError):  # A source knows its field, but not for which data it reads.
    return errors.UserError(f'{path}.{error}') if str(error).startswith(_FIELDS_OF_SOURCES) else None
  pattern = input_faults.unmatched(data)
  if pattern is not None:
    return errors.UserError(f'{path}.input_path: no file matches {pattern!r}')
  # A task may provide the examples of our DataConfig itself: then its own error says more.
  if isinstance(data, definitions.DataConfig) or (
    getattr(data, 'input_path', None) or getattr(data, 'tfds_name', None)
  ):
    return None
  return errors.UserError(
    f'{path}: names no data; set {path}.input_path to files, or {path}.tfds_name and {path}.tfds_split '
    f'({type(error).__name__}: {" ".join(str(error).split())[:150]})'
  )
