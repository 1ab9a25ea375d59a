"""A user's task in separate files, for tests that change them."""

import pathlib

TASK = """
import dataclasses
import os

import numpy as np
import official_ext as ext
from own_package import losses
import tf_keras


@dataclasses.dataclass
class OwnTaskConfig(ext.TaskConfig):
  train_data: ext.DataConfig = dataclasses.field(
    default_factory=lambda: ext.DataConfig(is_training=True, global_batch_size=4, seed=0))
  validation_data: ext.DataConfig = dataclasses.field(
    default_factory=lambda: ext.DataConfig(is_training=False, global_batch_size=4))


@ext.register_task(OwnTaskConfig)
class OwnTask(ext.Task):
  def build_model(self):
    return tf_keras.Sequential([tf_keras.layers.Input([1]), tf_keras.layers.Dense(1)])

  def build_inputs(self, params, input_context=None):
    x = np.load(os.environ['OWN_DATA'])
    return ext.build_dataset(ext.ArraySource({'x': x}), params, input_context)

  def forward(self, inputs, model, training):
    return losses.squared(model(inputs['x'])), {}


@ext.register_experiment('own')
def own():
  return ext.ExperimentConfig(
    task=OwnTaskConfig(),
    runtime=ext.RuntimeConfig(enable_xla=False),
    trainer=ext.TrainerConfig(
      train_steps=4, steps_per_loop=2, checkpoint_interval=2, validation_interval=4,
      optimizer_config=ext.OptimizationConfig({
        'optimizer': {'type': 'sgd'},
        'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.1}}})))
"""
LOSSES = """
import tensorflow as tf


def squared(values):
  return tf.reduce_mean(tf.square(values))
"""
FLAGS = ['--experiment=own', '--registry=own_package.task']


def write(folder: pathlib.Path) -> pathlib.Path:
  """Writes the package `own_package` into a folder, with a module that the task does not import; returns the folder."""
  package = folder / 'own_package'
  package.mkdir(parents=True)
  for name, text in (('__init__', ''), ('task', TASK), ('losses', LOSSES), ('unused', '')):
    (package / f'{name}.py').write_text(text)
  return folder
