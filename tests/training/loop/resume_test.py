"""A trainer that is built again and restored continues bit for bit, in every configuration of a step."""

import numpy as np
from official.modeling.optimization import ema_optimizer
import pytest
import tensorflow as tf
import tf_keras

from official_ext.training.loop import base_trainer
from tests import tiers
from tests.training.loop import harness

BEFORE, AFTER, STEPS_PER_EXECUTION = 4, 4, 2


class StochasticDepth(tf_keras.layers.Layer):
  """Leaves out examples by an unseeded TensorFlow op."""

  def call(self, inputs, training=False):
    if not training:
      return inputs
    return inputs * tf.round(tf.random.uniform([tf.shape(inputs)[0], 1], 0.3, 1.0, inputs.dtype))


def noisy_model():
  """Everything whose state or draws a resumed run could lose."""
  layers = tf_keras.layers
  seeded = lambda seed: tf_keras.initializers.GlorotUniform(seed)
  inputs = tf_keras.Input((harness.NUM_FEATURES,))
  x = layers.Dense(16, 'relu', kernel_initializer=seeded(1))(layers.GaussianNoise(0.1)(inputs))
  x = layers.BatchNormalization()(x)
  x = x + StochasticDepth()(layers.Dense(16, kernel_initializer=seeded(2))(layers.Dropout(0.25)(x)))
  return tf_keras.Model(inputs, layers.Dense(harness.NUM_CLASSES, dtype='float32', kernel_initializer=seeded(3))(x))


class NoisyTask(harness.LinearTask):
  model_fn = staticmethod(noisy_model)

  def forward(self, inputs, model, training):
    x, y = inputs
    if training:  # The task's own stateless draw.
      x += 0.1 * tf.random.stateless_normal(tf.shape(x), self.make_seed())
    return super().forward((x, y), model, training)


class PipedTask(NoisyTask):
  """A tf.data pipeline with a shuffle buffer, and stateful draws in one thread."""

  def build_inputs(self, params, input_context=None):
    num_replicas = input_context.num_replicas_in_sync if input_context else 1
    dataset = tf.data.Dataset.from_tensor_slices(self.data if params.is_training else self.validation_data)
    dataset = (
      dataset.repeat()
      .shuffle(32, seed=3)
      .map(
        lambda x, y: (
          tf.image.random_flip_left_right(tf.reshape(x, [1, -1, 1]), seed=4)[0, :, 0]
          + tf.random.normal([harness.NUM_FEATURES], stddev=0.1, seed=5),
          y,
        )
      )
    )
    return dataset.batch(params.global_batch_size // num_replicas, drop_remainder=True)


class FrozenTask(NoisyTask):
  """Fine-tuning: the first layer and the statistics of batch normalisation are unchanged."""

  def build_model(self):
    model = super().build_model()
    for layer in model.layers:
      layer.trainable = not isinstance(layer, tf_keras.layers.BatchNormalization) and layer is not model.layers[2]
    assert len(model.trainable_variables) == len(model.variables) - 6  # A kernel, a bias; four of the statistics.
    return model


def adam():
  return tf_keras.optimizers.legacy.Adam(0.01, global_clipnorm=1.0)


def new_adam():
  return tf_keras.optimizers.Adam(tf_keras.optimizers.schedules.CosineDecay(0.01, 20), global_clipnorm=1.0)


def averaged():
  return ema_optimizer.ExponentialMovingAverage(adam(), average_decay=0.9)


def scaled(inner):
  # Doubles every third step: some steps of this test overflow, and the scale itself must survive.
  return lambda: tf_keras.mixed_precision.LossScaleOptimizer(inner(), initial_scale=2.0**14, dynamic_growth_steps=3)


CONFIGURATIONS = {
  'fused': dict(steps_per_execution=STEPS_PER_EXECUTION),
  'fused, new optimizer': dict(steps_per_execution=STEPS_PER_EXECUTION, optimizer=new_adam),
  'fused, accumulation': dict(steps_per_execution=STEPS_PER_EXECUTION, accumulation=2),
  'fused, accumulation, average': dict(steps_per_execution=STEPS_PER_EXECUTION, accumulation=2, optimizer=averaged),
  'fused, float16': dict(steps_per_execution=STEPS_PER_EXECUTION, optimizer=scaled(adam), policy='mixed_float16'),
  'split': dict(replicas='two'),
  'split, accumulation, average': dict(replicas='two', accumulation=2, optimizer=averaged),
  'split, float16': dict(replicas='two', optimizer=scaled(adam), policy='mixed_float16'),
  'plain': dict(enable_xla=False),
  'plain, accumulation': dict(enable_xla=False, accumulation=3),
  'plain, float16, average': dict(enable_xla=False, optimizer=scaled(averaged), policy='mixed_float16'),
  'plain, 2 replicas': dict(enable_xla=False, replicas='two'),
  'plain, 2 replicas, new optimizer': dict(enable_xla=False, replicas='two', optimizer=new_adam),
  'default strategy': dict(enable_xla=False, replicas='default'),
  'eager': dict(enable_xla=False, trainer_config=dict(train_tf_function=False, train_tf_while_loop=False)),
  'plain, frozen layers, float16': dict(
    enable_xla=False, task_cls=FrozenTask, optimizer=scaled(new_adam), policy='mixed_float16'
  ),
  'split, frozen layers, average': dict(replicas='two', task_cls=FrozenTask, optimizer=averaged),
  'tf.data': dict(enable_xla=False, task_cls=PipedTask),
  'tf.data, fused, accumulation': dict(steps_per_execution=STEPS_PER_EXECUTION, accumulation=2, task_cls=PipedTask),
  'tf.data, 2 replicas': dict(enable_xla=False, replicas='two', task_cls=PipedTask),
}


@pytest.fixture(autouse=True)
def _seeds_and_policy():
  yield
  tf_keras.mixed_precision.set_global_policy('float32')
  tf.random.set_seed(None)


def build(task_cls=NoisyTask, optimizer=adam, policy='float32', **settings) -> base_trainer.Trainer:
  """A trainer, as a new process makes it."""
  tf.random.set_seed(7)
  tf_keras.mixed_precision.set_global_policy(policy)
  return harness.make_trainer(task_cls, optimizer=optimizer, **settings)


def state(trainer, folder):
  """All that a checkpoint holds, by name."""
  path = trainer.checkpoint.write(str(folder / f'state-{int(trainer.global_step.numpy())}'))
  reader = tf.train.load_checkpoint(path)
  # The graph of objects contains the names of layers, which Keras numbers through the process.
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if not name.startswith('_')}


def assert_same_bits(found, expected):
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes(), name


# Together these hold all that the others do, one by one.
FAST = (
  'fused, accumulation, average',
  'split, float16',
  'plain, float16, average',
  'plain, 2 replicas, new optimizer',
  'plain, frozen layers, float16',
  'eager',
  'tf.data',
)


@tiers.parametrize(
  'name',
  harness.cases(FAST, soak=[name for name in CONFIGURATIONS if name not in FAST]),
  fast=['plain, float16, average'],
)
def test_a_restored_trainer_resumes_bit_for_bit(name, tmp_path):
  settings = CONFIGURATIONS[name]
  straight = build(**settings)
  harness.train(straight, BEFORE)
  path = straight.checkpoint.write(str(tmp_path / 'ckpt'))
  expected_logs = harness.train(straight, AFTER)
  expected = state(straight, tmp_path)
  assert expected['global_step/.ATTRIBUTES/VARIABLE_VALUE'] == BEFORE + AFTER

  resumed = build(**settings)
  with resumed.strategy.scope():
    resumed.checkpoint.read(path).expect_partial()
  resumed.checkpoint_restored()
  logs = harness.train(resumed, AFTER)
  assert_same_bits(state(resumed, tmp_path), expected)
  assert_same_bits(logs, expected_logs)
