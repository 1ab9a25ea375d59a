"""Loads the model of a run, with its weights, by its folder: `official_ext.load`.

No strategy is needed, and any machine will do.
"""

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import functools
import os
import shlex
import types
from typing import Any

from official.modeling import performance
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import protocols
from official_ext.base import tf_internals
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.base.run_folder import run_status
from official_ext.data import config_fields
from official_ext.training.checkpoints import best
from official_ext.training.checkpoints import contents as contents_lib
from official_ext.training.checkpoints import exported_weights
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import training_lines
from official_ext.training.config import definitions
from official_ext.training.config import parser as parser_lib
from official_ext.training.config import registries
from official_ext.training.devices import distribute
from official_ext.training.step import keras_version
from official_ext.training.tasks import model_garden
from official_ext.training.tasks import supervised_task
from official_ext.training.trained import prediction

BEST, LATEST = 'best', 'latest'
_GLOBAL_STEP = 'global_step/.ATTRIBUTES/VARIABLE_VALUE'  # In a checkpoint of a trainer.
# The other objects in a training's checkpoint.
_OF_TRAINING = ('optimizer', 'step_state', 'global_step')


@dataclasses.dataclass(frozen=True)
class TrainedModel:
  """A trained model.

  Attributes:
    model: the task's model, with its weights.
    task: the task.
    params: the experiment.
    checkpoint: the path of the checkpoint of the weights.
    weights: 'averaged' if they are moving averages, or else 'raw'.
  """

  model: Any
  task: Any
  params: definitions.ExperimentConfig
  checkpoint: str
  weights: str

  def __post_init__(self):
    model_garden.adapt_task(self.task)

  @property
  def evaluated_data(self) -> Any:
    """The configuration of the data of an evaluation; of training if the experiment has no validation data."""
    return self.params.task.validation_data or self.params.task.train_data

  @property
  def step(self) -> int:
    """The number of updates of the weights. The name of Model Garden's best checkpoint holds another number."""
    reader = storage.open_checkpoint(self.checkpoint)
    if not manifests.has_manifest(self.checkpoint) and reader.has_tensor(_GLOBAL_STEP):
      return int(reader.get_tensor(_GLOBAL_STEP))
    return manifests.step_of(self.checkpoint)


def load_model(
  params: definitions.ExperimentConfig,
  model_dir: str,
  which: str | int | None = None,
  ema: bool = True,
  dtype: str | None = None,
) -> TrainedModel:
  """Builds a run's model, and restores all of its weights.

  Args:
    params: the run's experiment.
    model_dir: the run's folder.
    which: see `find_checkpoint`.
    ema: whether to use the moving averages of the weights, if the run has kept any.
    dtype: the model's arithmetic, such as 'float32'; None: the run's.

  Raises:
    UserError: there is no such checkpoint, it is damaged, or it is not one of this model.
  """
  path = find_checkpoint(model_dir, params, which)
  with _mixed_precision(dtype or distribute.policy_dtype(params.runtime)):
    task = model_garden.make_task(params.task)
    task.weights_folder = manifests.folder_of(path)
    with keras_version.building(task):
      model = task.build_model()
    keras_version.check_model(task, model)
    weights = _restore(model, task, path, ema)
  return TrainedModel(model, task, params, path, weights)


def find_checkpoint(model_dir: str, params: definitions.ExperimentConfig, which: str | int | None = None) -> str:
  """The path of one of a run's checkpoints.

  Args:
    model_dir: the run's folder.
    params: its experiment.
    which: 'best': of the best evaluation; 'latest': the newest that is not damaged; the step of one, or the path
      of any or of a folder (see `training_lines.checkpoint_named`). None: the best, if the experiment names the metric
      for it, or else the latest.

  Raises:
    UserError: there is no such checkpoint, or it is damaged.
  """
  exporter = best.maybe_create(params.trainer, model_dir, 'eval')
  if which is None:
    which = BEST if exporter is not None else LATEST
  if which == BEST:
    if exporter is None:
      raise errors.UserError(
        f'{model_dir}: the run keeps no best checkpoint (trainer.best_checkpoint_eval_metric names no metric); which='
        f'{LATEST} is its newest'
      )
    path = exporter.best_ckpt_path
    if path is None:  # Model Garden's exporter keeps one, without a manifest.
      path = manifests.newest_in_state_file(os.path.join(model_dir, params.trainer.best_checkpoint_export_subdir))
    if path is None:
      raise errors.UserError(f'{model_dir}: no best checkpoint yet; which={LATEST} is its newest')
  elif which == LATEST:
    path = _latest(model_dir)
  elif str(which).isdigit():
    path = os.path.join(model_dir, f'ckpt-{which}')
    with _as_user_error():
      steps = [manifests.step_of(each) for each in listing.checkpoint_paths(model_dir)]
    is_rolled_back = int(which) not in steps and paths.exists(path + manifests.SUFFIX)
    if is_rolled_back or not paths.exists(f'{path}.index'):
      there = f'there are those of steps {", ".join(map(str, steps))}' if steps else 'there is none at all'
      raise errors.UserError(f'{model_dir}: no checkpoint of step {which}; {there}')
  else:
    if not paths.exists(f'{which}.index') and not paths.is_folder(str(which)):
      raise errors.UserError(f'{which}: no such checkpoint; {BEST}, {LATEST}, a step, or a path such as DIR/ckpt-100')
    path = training_lines.checkpoint_named(str(which), str(which))
  if paths.exists(path + manifests.SUFFIX):
    damage = manifests.find_damage(path)
    if damage is not None:
      raise errors.UserError(f'{path}: it is damaged: {damage}')
  elif not paths.exists(f'{path}.index'):
    raise errors.UserError(f'{path}: it is not there any more')
  return path


def _latest(model_dir: str) -> str:
  with _as_user_error():
    path = listing.newest(model_dir)
  if path is None:
    undamaged = 'undamaged ' if manifests.complete_paths(model_dir) else ''
    raise errors.UserError(f'{model_dir}: no {undamaged}checkpoint in this folder')
  return path


@contextlib.contextmanager
def _as_user_error() -> Iterator[None]:
  """Turns an error that would end a run into a UserError, for a user who loads its model."""
  try:
    yield
  except errors.CheckpointError as error:
    raise errors.UserError(str(error)) from error


@contextlib.contextmanager
def _mixed_precision(dtype: str) -> Iterator[None]:
  """Sets the mixed precision policy while a model is built."""
  before = tf_keras.mixed_precision.global_policy()
  performance.set_mixed_precision_policy(tf.as_dtype(dtype))
  try:
    yield
  finally:
    tf_keras.mixed_precision.set_global_policy(before)


def _restore(model: tf_keras.Model, task: protocols.Task, path: str, ema: bool) -> str:
  """Restores all variables of a model; returns which weights they are."""
  contents = contents_lib.Contents(path)
  items = tf_internals.checkpoint_items_of(model)
  root = tf.train.Checkpoint(model=model, **items)
  match = contents.match(root, _OF_TRAINING)
  if match.may_fit_later:
    create_variables(task, model)
    match = contents.match(root, _OF_TRAINING)
  match.check(path)
  root.read(storage.readable_checkpoint(path)).expect_partial()
  held, averages = exported_weights.held_weights(path, contents), contents.slots(exported_weights.SLOT)
  wanted = exported_weights.AVERAGED if ema and averages else exported_weights.RAW
  if wanted != held:
    for place in match.places.values():
      # Averages of counters that an older version kept are 0.
      if place.key in averages and (wanted == exported_weights.RAW or place.variable.dtype.is_floating):
        place.variable.assign(contents.value(averages[place.key]))
  return wanted


def create_variables(task: Any, model: tf_keras.Model) -> None:
  """Lets a model that makes variables at its first call make them: traces the task's evaluation step, runs nothing.

  The step takes the task's data, validation data first. Without data, as on another machine, nothing happens.
  """
  for name in ('validation_data', 'train_data'):
    data = config_fields.data_of(task.task_config, name)
    if data is None:
      continue
    try:
      step = functools.partial(task.validation_step, model=model, metrics=task.build_metrics(training=False))
      tf.function(step, autograph=False).get_concrete_function(task.build_inputs(data).element_spec)
      return
    except Exception:  # pylint: disable=broad-except  # The caller names the variables that were not made.
      continue


_RECORDS = ('train', 'continuous_eval', 'eval')


def load(
  model_dir: str,
  which: str | int | None = None,
  ema: bool = True,
  experiment: str | None = None,
  registry: Sequence[str] = (),
) -> tf_keras.Model:
  """Loads the model that a run has trained, with all its weights: without a strategy, on any machine.

  Args:
    model_dir: the run's folder, with params.yaml, run.json and a checkpoint.
    which: 'best', 'latest', the step of a checkpoint, or the path of one. None: the best, if the experiment names
      the metric for it, or else the latest.
    ema: whether to use the moving averages of the weights, if the run has kept any; or else the raw weights.
    experiment: the name of the experiment, if run.json does not have it.
    registry: further modules to import, which register experiments.

  Returns:
    The result of the task's `build_model`. For an `ext.SupervisedTask`, `model.predict` takes an `ext.Source` and the
    batches of `build_inputs` too, besides arrays, dictionaries of them and other data sets with or without labels.

  Raises:
    UserError: something is missing, damaged, or does not fit, as its one line says.

  Example:

    >>> import tempfile, types
    >>> from experiments import digits_mlp
    >>> settings = ['train_steps=1', 'steps_per_loop=1', 'runtime.enable_xla=false']
    >>> params = ext.parse_configuration(types.SimpleNamespace(experiment='digits_mlp', set=settings))
    >>> tf_keras.utils.set_random_seed(params.runtime.seed)
    >>> task, model_dir = digits_mlp.DigitsMlpTask(params.task), tempfile.mkdtemp()
    >>> trained, _ = ext.run_experiment(tf.distribute.get_strategy(), task, 'train', params, model_dir)
    Training data (task.train_data): 1437 examples
    ...
    >>> model = ext.load(model_dir, experiment='digits_mlp')
    >>> all(np.array_equal(*pair) for pair in zip(model.weights, trained.weights, strict=True))
    True
  """
  trained = load_run(model_dir, which, ema, experiment, registry)
  if isinstance(trained.task, supervised_task.SupervisedTask) and isinstance(trained.model, tf_keras.Model):
    prediction.extend(trained.model)
  return trained.model


def load_run(
  model_dir: str,
  which: str | int | None = None,
  ema: bool = True,
  experiment: str | None = None,
  registry: Sequence[str] = (),
) -> TrainedModel:
  """Does the same as `load`, but returns the task, the experiment, and the origin of the weights too."""
  model_dir = paths.expanded(os.fspath(model_dir))
  return load_model(read_params(model_dir, experiment, registry), model_dir, which, ema)


def read_params(
  model_dir: str, experiment: str | None = None, registry: Sequence[str] = ()
) -> definitions.ExperimentConfig:
  """Reads the configuration of the run in a folder, after importing the modules that register its experiment.

  Raises:
    UserError: the folder is not a run's, or the experiment is not available.
  """
  path = os.path.join(model_dir, 'params.yaml')
  if not paths.exists(path):
    raise errors.UserError(f'{model_dir}: not the folder of a run: it has no params.yaml')
  noted = _origin(model_dir)
  experiment = experiment or noted.get('experiment')
  if not experiment:
    raise errors.UserError(f'{model_dir}: run.json does not name the experiment; name it: experiment=NAME')
  _register(experiment, [*noted.get('registry', ()), *registry])
  parser = parser_lib.ExperimentParser(types.SimpleNamespace(experiment=experiment, config_file=[path]))
  params = parser.parse()
  definitions.lock(params)
  return params


def _origin(model_dir: str) -> json_values.JsonObject:
  """The origin of a run's experiment, from its record: {experiment, registry}."""
  records = [record for record in (run_status.read(model_dir, mode) for mode in _RECORDS) if record]
  for record in records:
    if isinstance(record.get('experiment'), str):
      registry = record.get('registry') or []
      return {'experiment': record['experiment'], 'registry': [name for name in registry if isinstance(name, str)]}
  for record in records:  # Older records have it only in the command.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument('--experiment', '-experiment')
    parser.add_argument('--registry', '-registry', action='append', default=[])
    try:
      known, _ = parser.parse_known_args(shlex.split(str(record.get('command', ''))))
    except (argparse.ArgumentError, ValueError):
      continue
    if known.experiment:
      return vars(known)
  return {}


def _register(experiment: str, registry: Sequence[str]) -> None:
  """Imports the modules that register experiments: installed packages, the named ones, registry_imports if needed."""
  registries.import_registries()
  for name in dict.fromkeys(registry):
    registries.import_registry(name, 'the run was started with --registry')
  for more in (registries.import_own, registries.import_shipped, registries.import_last):
    if experiment not in parser_lib.experiment_names():
      more()
  registries.check_registered(experiment, registry)
