"""Experiments `custom_language_model`: decoders that a Hugging Face folder does not represent, by `task.kind`."""

import dataclasses

import numpy as np
from official.core import exp_factory
from official.core import task_factory
import tensorflow as tf
import tf_keras

import official_ext as ext


class Louder(ext.DecoderBlock):
  """A block that multiplies its input."""

  def call(self, x, context):
    return super().call(1.5 * x, context)


@dataclasses.dataclass
class CustomLanguageModelConfig(ext.TaskConfig):
  """A decoder.

  Attributes:
    kind: plain, block, head, or activation, which replaces a function in a layer.
    train_data: 8 sequences of 12 numbers.
  """

  kind: str = 'plain'
  train_data: ext.InMemoryDataConfig = dataclasses.field(
    default_factory=lambda: ext.InMemoryDataConfig(global_batch_size=8, is_training=True)
  )


@task_factory.register_task_cls(CustomLanguageModelConfig)
class CustomLanguageModelTask(ext.Task):
  def build_model(self):
    config = ext.DecoderConfig(vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    model = ext.LanguageModel(config, Louder if self.config.kind == 'block' else ext.DecoderBlock)
    if self.config.kind == 'head':
      model.value_head = tf_keras.layers.Dense(1, name='value_head')
      model.value_head.build((None, 32))
    if self.config.kind == 'activation':
      model.decoder.blocks[0].mlp._activation = lambda gate, x: tf.nn.relu(gate) * x
    return model

  def build_inputs(self, params, input_context=None):
    ids = (np.arange(8)[:, np.newaxis] + np.arange(12)).astype(np.int32)
    return ext.build_dataset(ext.ArraySource({'ids': ids}), params, input_context)


@exp_factory.register_config_factory('custom_language_model')
def custom_language_model() -> ext.ExperimentConfig:
  return ext.ExperimentConfig(task=CustomLanguageModelConfig(), trainer=ext.TrainerConfig(train_steps=3))
