"""Small experiments in which everything is random that a training can draw: order, augmentation, dropout, depth."""

import dataclasses

import numpy as np
from official.core import exp_factory
from official.core import task_factory
import tensorflow as tf
import tf_keras

from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.config import definitions
from official_ext.training.tasks import base_task

NUM_FEATURES, NUM_CLASSES = 16, 4
NUM_EXAMPLES = {True: 200, False: 50}


def make_examples(is_training: bool) -> dict[str, np.ndarray]:
  """Points around the centres of their classes."""
  centres = np.random.default_rng(0).normal(size=[NUM_CLASSES, NUM_FEATURES])
  rng = np.random.default_rng(1 if is_training else 2)
  labels = rng.integers(NUM_CLASSES, size=NUM_EXAMPLES[is_training])
  points = centres[labels] + rng.normal(size=[len(labels), NUM_FEATURES])
  return {'x': points.astype(np.float32), 'y': labels.astype(np.int64)}


class StochasticDepth(tf_keras.layers.Layer):
  """Leaves an example's features out at random, by an unseeded TensorFlow op as Model Garden's layer does."""

  def call(self, inputs, training=False):
    if not training:
      return inputs
    return inputs * tf.floor(0.8 + tf.random.uniform([tf.shape(inputs)[0], 1], dtype=inputs.dtype)) / 0.8


@dataclasses.dataclass
class NoisyTaskConfig(definitions.TaskConfig):
  """A classifier of points."""

  train_data: definitions.InMemoryDataConfig = dataclasses.field(
    default_factory=lambda: definitions.InMemoryDataConfig(global_batch_size=16, is_training=True)
  )
  validation_data: definitions.InMemoryDataConfig = dataclasses.field(
    default_factory=lambda: definitions.InMemoryDataConfig(global_batch_size=16, is_training=False)
  )


@task_factory.register_task_cls(NoisyTaskConfig)
class NoisyTask(base_task.Task):
  """Batch normalisation, dropout, stochastic depth; augmentation and input noise from stateless ops."""

  def build_model(self):
    inputs = tf_keras.Input((NUM_FEATURES,))
    features = tf_keras.layers.BatchNormalization()(tf_keras.layers.Dense(32, activation='relu')(inputs))
    branch = tf_keras.layers.Dropout(0.25)(tf_keras.layers.Dense(32, activation='relu')(features))
    features = features + StochasticDepth()(branch)
    return tf_keras.Model(inputs, tf_keras.layers.Dense(NUM_CLASSES, dtype='float32')(features))

  def build_inputs(self, params, input_context=None):
    def augment(batch, seeds):
      noise = tf.map_fn(
        lambda seed: tf.random.stateless_normal([NUM_FEATURES], seed, stddev=0.2), seeds, fn_output_signature=tf.float32
      )
      return {**batch, 'x': batch['x'] + noise}

    source = sources.ArraySource(make_examples(bool(params.is_training)))
    return step_indexed.build_dataset(source, params, input_context, transform=augment if params.is_training else None)

  def build_metrics(self, training=True):
    return [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')]

  def num_examples(self, params):
    return NUM_EXAMPLES[bool(params.is_training)]

  def forward(self, inputs, model, training):
    x = inputs['x']
    if training:
      x += 0.1 * tf.random.stateless_normal(tf.shape(x), self.make_seed('input noise'))
    logits = model(x, training=training)
    loss = tf.reduce_mean(tf_keras.losses.sparse_categorical_crossentropy(inputs['y'], logits, from_logits=True))
    return loss, {'accuracy': (inputs['y'], logits), 'logit_mean': tf.reduce_mean(logits)}


@dataclasses.dataclass
class PipedTaskConfig(NoisyTaskConfig):
  """The same over an ordinary tf.data pipeline, which draws by TensorFlow's stateful random ops.

  Attributes:
    parallel_map: Whether its augmentation runs in several threads.
  """

  parallel_map: bool = False


@task_factory.register_task_cls(PipedTaskConfig)
class PipedTask(NoisyTask):
  """Shuffles through a buffer, and augments by `tf.random` without a word about seeds."""

  def build_inputs(self, params, input_context=None):
    num_replicas = input_context.num_replicas_in_sync if input_context else 1
    dataset = tf.data.Dataset.from_tensor_slices(make_examples(bool(params.is_training)))
    if input_context and input_context.num_input_pipelines > 1:
      dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if params.is_training:
      dataset = dataset.repeat().shuffle(64, seed=params.seed)
      dataset = dataset.map(
        lambda example: {**example, 'x': example['x'] + tf.random.normal([NUM_FEATURES], stddev=0.2)},
        num_parallel_calls=8 if self.config.parallel_map else None,
        deterministic=params.deterministic,
      )
    return dataset.batch(params.global_batch_size // num_replicas, drop_remainder=bool(params.is_training)).prefetch(4)


def _experiment(task_config) -> definitions.ExperimentConfig:
  return definitions.ExperimentConfig(
    task=task_config,
    trainer=definitions.TrainerConfig(
      train_steps=60,
      steps_per_loop=6,
      summary_interval=30,
      checkpoint_interval=10,
      validation_interval=15,
      max_to_keep=3,
      best_checkpoint_export_subdir='best',
      best_checkpoint_eval_metric='validation_loss',
      best_checkpoint_metric_comp='lower',
      best_checkpoints_to_keep=2,
      optimizer_config=definitions.OptimizationConfig(
        {
          'optimizer': {'type': 'adam', 'adam': {'global_clipnorm': 1.0}},
          'learning_rate': {'type': 'cosine', 'cosine': {'initial_learning_rate': 3e-3, 'decay_steps': 60}},
          'warmup': {'type': 'linear', 'linear': {'warmup_steps': 10}},
        }
      ),
    ),
  )


@exp_factory.register_config_factory('noisy_classifier')
def noisy_classifier() -> definitions.ExperimentConfig:
  return _experiment(NoisyTaskConfig())


@exp_factory.register_config_factory('piped_classifier')
def piped_classifier() -> definitions.ExperimentConfig:
  return _experiment(PipedTaskConfig())
