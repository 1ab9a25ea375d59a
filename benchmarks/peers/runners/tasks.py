"""The work as a task and an experiment, for this library's trainer and for Model Garden's."""

from collections.abc import Callable, Mapping
from typing import Any

import official_ext as ext  # Before tensorflow.

# isort: split
from official.core import train_utils
import tensorflow as tf
import tf_keras

from benchmarks.peers import protocol
from benchmarks.peers.runners import keras_models
from benchmarks.peers.work import decoder as decoder_work
from benchmarks.peers.work import training
from official_ext.language.modeling import model_weights
from official_ext.training.devices import distribute


def task_class(work: training.Work, pipeline: bool, **model_options: Any) -> type[ext.Task]:
  """A task that does the work.

  Args:
    work: its computation.
    pipeline: whether its input is a tf.data pipeline of the kind that Model Garden's tasks have, not this library's.
    **model_options: fields of `ext.DecoderConfig`, such as `scan_layers`.
  """

  class WorkTask(ext.Task):
    """See `task_class`."""

    def build_model(self):
      return build_model(work, **model_options)

    def build_inputs(self, params, input_context=None):
      arrays = {'x': work.inputs, 'label': work.labels}
      if not pipeline:
        return ext.build_dataset(ext.ArraySource(arrays), params, input_context)
      dataset = tf.data.Dataset.from_tensor_slices(arrays)
      if params.is_training:
        dataset = dataset.shuffle(len(work.inputs), seed=params.seed).repeat()
      size = input_context.get_per_replica_batch_size(params.global_batch_size) if input_context else work.batch_size
      return dataset.batch(size, drop_remainder=params.is_training).prefetch(tf.data.AUTOTUNE)

    def build_metrics(self, training=True):
      return [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')] if work.counts_accuracy else []

    def forward(self, inputs, model, training):
      logits = model(inputs['x'], training=training)
      return ext.losses.label(logits, inputs['label']), {'accuracy': (inputs['label'], logits)} if (
        work.counts_accuracy
      ) else {}

  return WorkTask


def build_model(work: training.Work, **model_options: Any) -> tf_keras.Model:
  """The network at the work's first weights: of a decoder, this library's own."""
  if work.architecture != 'decoder':
    return keras_models.build(tf_keras, work)
  sizes = work.sizes
  config = ext.DecoderConfig(
    vocab_size=sizes['vocabulary'],
    hidden_size=sizes['width'],
    intermediate_size=4 * sizes['width'],
    num_hidden_layers=sizes['layers'],
    num_attention_heads=sizes['heads'],
    num_key_value_heads=sizes['heads'],
    max_position_embeddings=sizes['length'],
    position_embedding_type='learned',
    norm_type='layer_norm',
    norm_eps=decoder_work.EPSILON,
    hidden_act='gelu',
    gated_mlp=False,
    mlp_bias=True,
    **model_options,
  )
  model = ext.LanguageModel(config)
  slots = model_weights.find_slots(model)
  assert slots.keys() == work.weights.keys(), slots.keys() ^ work.weights.keys()
  for name, value in work.weights.items():
    slots[name].assign(value)
  return model


def experiment(
  work: training.Work,
  *,
  steps_per_loop: int,
  enable_xla: bool | str = 'auto',
  num_replicas: int = 1,
  mixed_precision_dtype: str = 'float32',
  **trainer_fields: Any,
) -> ext.ExperimentConfig:
  """The configuration.

  Args:
    work: of the training.
    steps_per_loop: of the trainer.
    enable_xla: of the runtime.
    num_replicas: virtual CPUs.
    mixed_precision_dtype: of the runtime.
    **trainer_fields: of `ext.TrainerConfig`.
  """
  adamw = {
    'weight_decay': work.weight_decay,
    'beta_1': work.beta_1,
    'beta_2': work.beta_2,
    'epsilon': work.epsilon,
    'global_clipnorm': work.clip_norm,
  }
  data = lambda is_training: ext.InMemoryDataConfig(global_batch_size=work.batch_size, is_training=is_training)
  params = ext.ExperimentConfig(
    task=ext.TaskConfig(train_data=data(True), validation_data=data(False)),
    trainer=ext.TrainerConfig(
      train_steps=10**9,
      steps_per_loop=steps_per_loop,
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {'type': 'adamw_experimental', 'adamw_experimental': adamw},
          'learning_rate': {'type': 'constant', 'constant': {'learning_rate': work.learning_rate}},
        }
      ),
      **trainer_fields,
    ),
  )
  params.runtime.enable_xla = enable_xla
  params.runtime.mixed_precision_dtype = mixed_precision_dtype
  if num_replicas > 1:
    params.runtime.num_virtual_cpus = num_replicas
  return params


def make_trainer(work: training.Work, params: Any, task_cls: type, trainer_cls: type) -> tuple[Any, Any]:
  """(strategy, trainer), as train.py makes them."""
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  with strategy.scope():
    task = task_cls(params.task)
    return strategy, train_utils.create_trainer(params, task, train=True, evaluate=True, trainer_cls=trainer_cls)


def measured(
  work: training.Work,
  strategy: Any,
  trainer: Any,
  steps_per_loop: int,
  phase: str,
  note: Callable[[], str],
  is_reduced: bool = False,
) -> protocol.Measurement:
  """Steps of a trainer, in whole loops, or examples of its evaluations.

  Args:
    work: its computation.
    strategy: in whose scope the trainer was made.
    trainer: has `train` and `evaluate`.
    steps_per_loop: steps of a loop.
    phase: 'train' or 'evaluate'.
    note: how it runs.
    is_reduced: whether it computes in bfloat16.
  """
  inputs, labels = work.check_batch
  loss = lambda: float(ext.losses.label(trainer.model(tf.constant(inputs), training=False), tf.constant(labels)))
  parameters = sum(variable.shape.num_elements() for variable in trainer.model.trainable_variables)

  def run(num_steps: int) -> Mapping[str, float]:
    with strategy.scope():
      for _ in range(num_steps // steps_per_loop):
        logs = trainer.train(tf.constant(steps_per_loop))
    return {'loss': float(logs['training_loss'])}

  def evaluate(num_examples: int) -> Mapping[str, float]:
    with strategy.scope():
      for _ in range(num_examples // len(work.inputs)):
        logs = trainer.evaluate(tf.constant(-1))
    return {'loss': float(logs['validation_loss'])}

  function, multiple = (run, steps_per_loop) if phase == 'train' else (evaluate, len(work.inputs))
  return protocol.Measurement(function, multiple, parameters, loss, note, is_reduced)
