"""The edge to Model Garden's Trainer: configuration, datasets and `init_checkpoint`, with one-line errors."""

from collections.abc import Iterator
import contextlib
import functools
import inspect
import random
import re
import traceback
from typing import Any

import numpy as np
from official.core import base_trainer
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import model_garden_internals
from official_ext.base import tf_internals
from official_ext.base.files import storage
from official_ext.data import config_fields
from official_ext.data import pipelines
from official_ext.training.checkpoints import warm_start
from official_ext.training.devices import device_types
from official_ext.training.loop import training_input
from official_ext.training.step import observers

_VARIABLE = re.compile(r"<tf\.Variable '([^']+)' shape=(\([^)]*\))")  # With the values behind it.
_MOST_VARIABLES = 4  # In a line.
_APART = 1_000_003  # Between the seeds of two input pipelines.


class ModelGardenTrainer(base_trainer.Trainer):
  """Model Garden's Trainer for any task, with reports of its input. `config` must be upgraded: see definitions.py."""

  # Set when a dataset for evaluation is made: whether it never ends, and the type specs of one replica's batch.
  _evaluation_repeats = False
  _evaluation_spec: Any = None
  # The type specs of one replica's batch of training; None if the input is not one dataset of tf.data.
  _training_spec: Any = None

  @functools.cached_property
  def inputs(self) -> dict[str, training_input.InputReport]:
    """The reports of both inputs, by 'train_data' and 'validation_data'. The base class's constructor uses them."""
    return {
      name: training_input.InputReport(f'task.{name}', config_fields.data_of(self.config.task, name), self.task)
      for name in ('train_data', 'validation_data')
    }

  def distribute_dataset(self, dataset_or_fn, *args, **kwargs):
    """See base class. If the configuration names no data, the error names the field that must."""
    is_validation = bool(args) and args[0] is config_fields.of_task(self.config.task).validation_data
    if callable(dataset_or_fn):
      if is_validation:
        dataset_or_fn = pipelines.transformed(dataset_or_fn, self._prepared_for_evaluation)
      dataset_or_fn = self._noting_spec(dataset_or_fn, is_validation)
    try:
      with self.inputs['validation_data' if is_validation else 'train_data'].building():
        return self._distribute_dataset(dataset_or_fn, *args, **kwargs)
    except Exception as error:  # Each task fails in its own way.
      mistake = training_input.mistake_in_data(self.config, args[0] if args else None, error)
      if mistake is None:
        raise
      raise mistake from error

  def _noting_spec(self, build, is_validation):
    """A function like `build` that notes the type specs of a batch: a distributed dataset has hidden static shapes."""
    takes_context = 'input_context' in inspect.signature(build).parameters

    def noting(params, input_context=None):
      with _same_at_each_build(self.config.runtime.seed), _drawing_apart(input_context):
        datasets = build(params, input_context) if takes_context else build(params)
      for dataset in tf.nest.flatten(datasets):
        if isinstance(dataset, tf.data.Dataset) and tf.executing_eagerly():
          pipelines.own_caches(dataset)
      spec = tf.nest.map_structure(_spec_of, datasets)
      if is_validation:
        self._evaluation_spec = spec
      elif isinstance(datasets, tf.data.Dataset):
        self._training_spec = spec
      return datasets

    return noting

  def _prepared_for_evaluation(
    self, dataset: tf.data.Dataset, input_context: tf.distribute.InputContext | None = None
  ) -> Any:
    """The dataset without tf.data's tuning. Notes whether it never ends."""
    if isinstance(dataset, tf.data.Dataset) and tf.executing_eagerly():  # A parameter server makes it in a graph.
      self._evaluation_repeats |= pipelines.never_ends(dataset)
    return pipelines.without_autotune(dataset, input_context)

  def _distribute_dataset(self, dataset_or_fn, *args, **kwargs):
    if callable(dataset_or_fn) and _is_one_cpu(self.strategy):
      # There is nothing to distribute, and a DistributedDataset takes four times as long for a small batch.
      return dataset_or_fn(*args, **kwargs)
    return super().distribute_dataset(dataset_or_fn, *args, **kwargs)

  def initialize(self):
    """Lets the task start from `task.init_checkpoint`: see base class.

    Raises:
      UserError: it cannot; Model Garden's tasks continue without it if the folder is empty, or fail in their own ways.
    """
    path = config_fields.of_task(self.config.task).init_checkpoint
    # The checkpoint found, as Model Garden's tasks would go by the file named `checkpoint`, even into another folder.
    found = {'init_checkpoint': warm_start.find(path)} if path else {}
    try:
      with model_garden_internals.task_configured(self.task, **found):
        super().initialize()
        if path:
          report_missing_parts(self.model, found['init_checkpoint'])
    except errors.UserError:
      raise
    except (AssertionError, ValueError, tf.errors.OpError) as error:
      if not path:
        raise
      warm_start.hide_unrestored()
      raise errors.UserError(self._why_not_initialized(path, error)) from error

  def _why_not_initialized(self, path: str, error: Exception) -> str:
    """The line about a task that could not initialize its model: an invalid field, or another checkpoint."""
    message = _unmatched(str(error)) or ' '.join(str(error).split())[:300]
    modules = config_fields.of_task(self.config.task).init_checkpoint_modules
    if modules is not None and isinstance(error, ValueError) and not _comes_from_tensorflow(error):
      return f'task.init_checkpoint_modules: {modules}: {message}'
    hint = ''
    if modules == 'all' and hasattr(self.model, 'backbone'):
      hint = '; task.init_checkpoint_modules=backbone loads the backbone alone'
    return f'task.init_checkpoint: {path}: does not fit the model{hint}: {message}'


def report_missing_parts(model: Any, path: str) -> None:
  """Prints which parts of a model of Model Garden a checkpoint lacks: its tasks keep their initial values."""
  keys = list(storage.open_checkpoint(path).get_variable_to_shape_map())
  parts = getattr(model, 'checkpoint_items', {})
  missing = [name for name in parts if not any(key.startswith(f'{name}/') for key in keys)]
  if missing and tf.distribute.get_strategy().extended.should_checkpoint:
    print(f'task.init_checkpoint: {path} has no {", ".join(missing)}: initial values are kept', flush=True)


def _unmatched(message: str) -> str:
  """The variables in TensorFlow's message about those without a value in a checkpoint; '' for another message."""
  variables = sorted(f'{name.partition(":")[0]} {shape}' for name, shape in _VARIABLE.findall(message))
  more = len(variables) - _MOST_VARIABLES
  shown = ', '.join(variables[:_MOST_VARIABLES]) + (f' and {more} others' if more > 0 else '')
  return f'it has no values for {shown}' if variables else ''


def _comes_from_tensorflow(error: BaseException) -> bool:
  *_, (frame, _) = traceback.walk_tb(error.__traceback__)
  return frame.f_globals.get('__name__', '').partition('.')[0] == 'tensorflow'


@contextlib.contextmanager
def _same_at_each_build(seed: int) -> Iterator[None]:
  """A context in which an input gets the same seeds each time that it is built, and on each worker.

  A resumed run builds it again, and workers divide files after they have shuffled them. TensorFlow's ops without a
  seed, NumPy and Python draw from the run's seed. The context changes no later draws.

  Args:
    seed: `runtime.seed`, which counts if a driver has set none.
  """
  here = tf_internals.global_seed()
  seed = seed if here is None else here
  of_python, of_numpy = random.getstate(), np.random.get_state()
  random.seed(seed)
  np.random.seed(seed % 2**32)
  try:
    with tf_internals.same_op_seeds(seed):
      yield
  finally:
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def _drawing_apart(
  input_context: tf.distribute.InputContext | None,
) -> contextlib.AbstractContextManager[object]:
  """A context in which `tf.random` of a `map` draws other numbers in each input pipeline: all have one seed.

  Orders of examples and of files are not changed: pipelines divide them among each other.
  """
  number = 0 if input_context is None else input_context.input_pipeline_id
  if not number:
    return contextlib.nullcontext()

  def of_pipeline(get_seed):
    @functools.wraps(get_seed)
    def wrapped(op_seed):
      first, second = get_seed(op_seed)
      if first is None or not tf_internals.is_in_map():
        return first, second
      return (first + number * _APART) % 2**31, second

    return wrapped

  return observers.MethodPatch(tf_internals.op_seeds, 'get_seed', of_pipeline)


def _spec_of(dataset: Any) -> Any:
  return dataset.element_spec if isinstance(dataset, tf.data.Dataset) else None


def _is_one_cpu(strategy: tf.distribute.Strategy) -> bool:
  return isinstance(strategy, tf.distribute.OneDeviceStrategy) and device_types.device_type(strategy) == 'CPU'
