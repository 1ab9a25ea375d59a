"""The perceptron by Model Garden's driver alone: this library is not imported."""

import dataclasses
import sys

from benchmarks.peers.starts import marks


def main(model_dir: str) -> None:
  """Takes one step, as Model Garden's `train.py` does."""
  from official.common import distribute_utils
  from official.core import base_task
  from official.core import config_definitions as cfg
  from official.core import train_lib
  from official.modeling import optimization
  import orbit
  import tensorflow as tf
  import tf_keras

  from benchmarks.peers.runners import keras_models
  from benchmarks.peers.work import digits

  marks.mark('imported')
  work = digits.perceptron()

  class Task(base_task.Task):
    """The perceptron."""

    def build_model(self):
      return keras_models.build(tf_keras, work)

    def build_inputs(self, params, input_context=None):
      dataset = tf.data.Dataset.from_tensor_slices((work.inputs, work.labels)).shuffle(len(work.inputs)).repeat()
      return dataset.batch(work.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def build_losses(self, labels, model_outputs, aux_losses=None):
      return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model_outputs))

    def build_metrics(self, training=True):
      return [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')]

  class FirstStep(orbit.Action):
    """Says when it is done."""

    def __call__(self, output):
      float(output['training_loss'])
      marks.mark('first_step')

  adamw = {'weight_decay': work.weight_decay, 'epsilon': work.epsilon, 'global_clipnorm': work.clip_norm}
  rate = {'type': 'constant', 'constant': {'learning_rate': work.learning_rate}}
  optimizer = {'optimizer': {'type': 'adamw_experimental', 'adamw_experimental': adamw}, 'learning_rate': rate}
  params = cfg.ExperimentConfig(
    task=cfg.TaskConfig(train_data=cfg.DataConfig(is_training=True, global_batch_size=work.batch_size)),
    trainer=cfg.TrainerConfig(
      optimizer_config=optimization.OptimizationConfig(optimizer), train_steps=1, steps_per_loop=1
    ),
  )
  strategy = distribute_utils.get_distribution_strategy('one_device', num_gpus=0)
  with strategy.scope():
    task = Task(dataclasses.replace(params.task))
  train_lib.run_experiment(strategy, task, 'train', params, model_dir, train_actions=[FirstStep()])


if __name__ == '__main__':
  main(sys.argv[1])
