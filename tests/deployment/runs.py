"""Runs with a checkpoint, without a training: models whose weights were drawn."""

import pathlib

from official.common import registry_imports  # noqa: F401  Model Garden's experiments.
from official.core import exp_factory
from official.core import task_factory
import tensorflow as tf

from official_ext.training.checkpoints import manager
from official_ext.training.config import definitions
from official_ext.training.config import registries
from official_ext.training.record import run_record

STEP = 7


def make(folder: pathlib.Path, experiment: str, overrides: dict | None = None, noise: float = 0.1) -> str:
  """Writes params.yaml, run.json and a checkpoint.

  Args:
    folder: of the run.
    experiment: its name.
    overrides: of the experiment.
    noise: the deviation of the values that are added to variables that are nearly constant, such as biases and the
      last kernels of Model Garden's models: their outputs would be the same for all inputs.

  Returns:
    The folder.
  """
  registries.import_own()
  params = definitions.upgrade(exp_factory.get_exp_config(experiment))
  params.override({'trainer': {'best_checkpoint_eval_metric': '', 'best_checkpoint_export_subdir': ''}})
  params.override(overrides or {})
  run_record.save_params(params.masked_yaml(), str(folder))
  run_record.RunRecord(str(folder), 'train', STEP, 0, 'CPU').update(experiment=experiment, registry=[])
  model = task_factory.get_task(params.task).build_model()
  for number, variable in enumerate(model.variables):
    if variable.dtype.is_floating and float(tf.math.reduce_std(variable)) < 0.01:
      drawn = tf.random.stateless_normal(variable.shape, [number, 0], stddev=noise)
      variable.assign_add(tf.cast(tf.abs(drawn) if 'variance' in variable.name else drawn, variable.dtype))
  items = getattr(model, 'checkpoint_items', {})
  checkpoint = tf.train.Checkpoint(model=model, global_step=tf.Variable(STEP, dtype=tf.int64), **items)
  manager.CheckpointManager(checkpoint, str(folder)).save(STEP, check_interval=False)
  return str(folder)
