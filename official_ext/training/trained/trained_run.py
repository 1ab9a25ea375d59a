"""Loads the model of a run by its folder: `official_ext.load`."""

import argparse
from collections.abc import Sequence
import os
import shlex
import types

import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.run_folder import run_status
from official_ext.training.config import definitions
from official_ext.training.config import parser as parser_lib
from official_ext.training.config import registries
from official_ext.training.trained import trained_model

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
    The result of the task's `build_model`.

  Raises:
    UserError: something is missing, damaged, or does not fit, as its one line says.
  """
  return load_run(model_dir, which, ema, experiment, registry).model


def load_run(
  model_dir: str,
  which: str | int | None = None,
  ema: bool = True,
  experiment: str | None = None,
  registry: Sequence[str] = (),
) -> trained_model.TrainedModel:
  """Does the same as `load`, but returns the task, the experiment, and the origin of the weights too."""
  model_dir = os.path.expanduser(os.fspath(model_dir))
  return trained_model.load(read_params(model_dir, experiment, registry), model_dir, which, ema)


def read_params(
  model_dir: str, experiment: str | None = None, registry: Sequence[str] = ()
) -> definitions.ExperimentConfig:
  """Reads the configuration of the run in a folder, after importing the modules that register its experiment.

  Raises:
    UserError: the folder is not that of a run, or the experiment is not available.
  """
  path = os.path.join(model_dir, 'params.yaml')
  if not tf.io.gfile.exists(path):
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


def _origin(model_dir: str) -> json_types.JsonObject:
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
  """Imports the modules that register experiments: installed packages, those named, registry_imports if needed."""
  registries.import_registries()
  for name in dict.fromkeys(registry):
    registries.import_registry(name, 'the run was started with --registry')
  for more in (registries.import_own, registries.import_shipped, registries.import_last):
    if experiment not in parser_lib.experiment_names():
      more()
  registries.check_registered(experiment, registry)
