"""The experiment `digits_mlp` whose step also logs a plain scalar, `confidence`: the largest probability."""

import dataclasses

import tensorflow as tf

from experiments.digits_mlp import configs
from experiments.digits_mlp import task
from official.core import exp_factory, task_factory
from official_ext.core import config_definitions as cfg


@dataclasses.dataclass
class DigitsMlpWithScalarConfig(configs.DigitsMlpTaskConfig):
  """As its base."""


@task_factory.register_task_cls(DigitsMlpWithScalarConfig)
class DigitsMlpWithScalarTask(task.DigitsMlpTask):

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    confidence = tf.reduce_max(tf.nn.softmax(logs['accuracy'][1]), axis=-1)
    return loss, {**logs, 'confidence': tf.reduce_mean(confidence)}


@exp_factory.register_config_factory('digits_mlp_with_scalar')
def digits_mlp_with_scalar() -> cfg.ExperimentConfig:
  return cfg.ExperimentConfig(task=DigitsMlpWithScalarConfig(), trainer=configs.digits_mlp().trainer)
