"""A small experiment whose loss is not finite for some batches, so that the run rolls back."""

import dataclasses

from official.core import exp_factory
from official.core import task_factory
import tensorflow as tf

from official_ext.data import pipelines
from official_ext.training.config import definitions
from tests.soak import experiments

# Four steps without a finite loss, one more than are allowed: at 18 the run goes back to before the first.
BAD_BATCHES = (9, 11, 14, 17)


@dataclasses.dataclass
class BadBatchesConfig(experiments.NoisyTaskConfig):
  """A classifier of points, some of whose batches cannot be learned."""


@task_factory.register_task_cls(BadBatchesConfig)
class BadBatchesTask(experiments.NoisyTask):
  """Knows the number of each batch."""

  def build_inputs(self, params, input_context=None):
    if not params.is_training:
      return super().build_inputs(params, input_context)
    examples, size = experiments.make_examples(True), params.global_batch_size
    num_examples = experiments.NUM_EXAMPLES[True]

    def make_batch(number):
      indices = (number * size + tf.range(size, dtype=tf.int64)) % num_examples
      batch = {name: tf.gather(values, indices) for name, values in examples.items()}
      return {**batch, 'number': tf.fill([size], number)}

    return tf.data.Dataset.counter(pipelines.take_start()).map(make_batch)

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    if 'number' in inputs:
      is_bad = tf.reduce_any(tf.equal(inputs['number'][0], tf.constant(BAD_BATCHES, tf.int64)))
      loss = tf.where(is_bad, float('nan'), loss)
    return loss, logs


@exp_factory.register_config_factory('bad_batches')
def bad_batches() -> definitions.ExperimentConfig:
  """Saves more often than it evaluates, and rolls back once."""
  experiment = experiments.noisy_classifier()
  experiment.task = BadBatchesConfig()
  experiment.trainer.override(
    {
      'train_steps': 30,
      'steps_per_loop': 2,
      'summary_interval': 10,
      'checkpoint_interval': 4,
      'validation_interval': 6,
      'nonfinite': {'max_skips': 3, 'then': 'rollback'},
    }
  )
  return experiment
