"""The training by this library's trainer, on one GPU or on the CPU."""

from collections.abc import Callable, Mapping
from typing import Any

import official_ext as ext

# isort: split
import numpy as np
from official.core import train_utils
import tensorflow as tf

from benchmarks.gpt2 import sizes as sizes_lib
from benchmarks.peers import protocol
from official_ext.training.devices import distribute
from official_ext.training.loop import base_trainer


def device() -> tuple[str, int]:
  """(name, bytes of memory) of the GPU; ('', 0) without one."""
  found = tf.config.list_physical_devices('GPU')
  if not found:
    return '', 0
  return tf.config.experimental.get_device_details(found[0]).get('device_name', ''), 0


def measurement(sizes: sizes_lib.Sizes, batch_size: int, **model_options: Any) -> protocol.Measurement:
  """Tokens, in whole loops. Arguments: see `make_trainer`."""
  strategy, trainer = make_trainer(sizes, batch_size, **model_options)
  multiple = sizes.steps_per_loop * batch_size * sizes.length

  def run(num_tokens: int) -> Mapping[str, float]:
    with strategy.scope():
      for _ in range(num_tokens // multiple):
        logs = trainer.train(tf.constant(sizes.steps_per_loop))
    return {'loss': float(logs['training_loss'])}

  parameters = sum(variable.shape.num_elements() for variable in trainer.model.trainable_variables)
  return protocol.Measurement(run, multiple, parameters, note=lambda: str(trainer.plan), is_reduced=True)


def make_trainer(
  sizes: sizes_lib.Sizes, batch_size: int, **model_options: Any
) -> tuple[tf.distribute.Strategy, base_trainer.Trainer]:
  """The trainer of GPT-2 on random rows, in bfloat16 with AdamW, and its strategy.

  Args:
    sizes: the network.
    batch_size: rows of a batch.
    **model_options: fields of `ext.DecoderConfig`, such as `remat`.
  """
  config = ext.DecoderConfig(
    model_type='gpt2',
    vocab_size=sizes.vocabulary,
    hidden_size=sizes.width,
    intermediate_size=4 * sizes.width,
    num_hidden_layers=sizes.layers,
    num_attention_heads=sizes.heads,
    num_key_value_heads=sizes.heads,
    max_position_embeddings=sizes.length,
    position_embedding_type='learned',
    norm_type='layer_norm',
    norm_eps=1e-5,
    hidden_act='gelu_new',
    gated_mlp=False,
    mlp_bias=True,
    attention_bias=True,
    attention_out_bias=True,
    tie_word_embeddings=True,
    **model_options,
  )
  return language_trainer(config, batch_size, sizes.length, sizes.steps_per_loop)


def language_trainer(
  config: ext.DecoderConfig,
  batch_size: int,
  length: int,
  steps_per_loop: int,
  prepare: Callable[[Any], object] = lambda model: None,
) -> tuple[tf.distribute.Strategy, base_trainer.Trainer]:
  """The trainer of a decoder on random rows, in bfloat16 with AdamW, and its strategy.

  Args:
    config: of the decoder.
    batch_size: rows of a batch.
    length: tokens of a row.
    steps_per_loop: of the trainer.
    prepare: changes the new model, such as by adapters.
  """
  rows = np.random.default_rng(0).integers(0, config.vocab_size, [4 * batch_size, length + 1]).astype(np.int32)

  class Task(ext.Task):
    """Next tokens of random rows."""

    def build_model(self):
      model = ext.LanguageModel(config)
      prepare(model)
      return model

    def build_inputs(self, params, input_context=None):
      return ext.build_dataset(ext.ArraySource({'ids': rows}), params, input_context)

    def build_metrics(self, training=True):
      return []

    def forward(self, inputs, model, training):
      logits = model(inputs['ids'][:, :-1], training=training)
      return ext.losses.label(logits, inputs['ids'][:, 1:]), {}

  adamw = {
    'weight_decay': sizes_lib.WEIGHT_DECAY,
    'beta_1': sizes_lib.BETA_1,
    'beta_2': sizes_lib.BETA_2,
    'epsilon': sizes_lib.EPSILON,
    'global_clipnorm': sizes_lib.CLIP_NORM,
  }
  params = ext.ExperimentConfig(
    task=ext.TaskConfig(train_data=ext.InMemoryDataConfig(global_batch_size=batch_size, is_training=True)),
    trainer=ext.TrainerConfig(
      train_steps=10**9,
      steps_per_loop=steps_per_loop,
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {'type': 'adamw_experimental', 'adamw_experimental': adamw},
          'learning_rate': {'type': 'constant', 'constant': {'learning_rate': sizes_lib.LEARNING_RATE}},
        }
      ),
    ),
  )
  params.runtime.mixed_precision_dtype = 'bfloat16'
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  with strategy.scope():
    task = Task(params.task)
    return strategy, train_utils.create_trainer(
      params, task, train=True, evaluate=False, trainer_cls=base_trainer.Trainer
    )
