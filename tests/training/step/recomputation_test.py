"""A function under tf.recompute_grad draws the same random numbers when it is run again for its gradient."""

import functools

import numpy as np
from official.projects.bigbird import recompute_grad as bigbird_recompute_grad
import pytest
import tensorflow as tf
import tf_keras

from official_ext.training.step import step_random
from tests import tiers
from tests.training.loop import harness

SIZE, NUM_STEPS = 200, 3
MODES = {'eager': lambda f: f, 'graph': tf.function, 'xla': functools.partial(tf.function, jit_compile=True)}


def value_and_gradient(function, mode='graph'):
  """The sum of `function(x, weights)` and its gradient, in a step; x is all ones, the weights all twos, float64."""
  weights = tf.Variable(tf.fill([SIZE], tf.constant(2.0, tf.float64)))

  def step(number):
    with step_random.step_key(step_random.StepKey(seed=0, step=number)), tf.GradientTape() as tape:
      value = tf.reduce_sum(function(tf.ones([SIZE], tf.float64), weights))
      return value, tf.convert_to_tensor(tape.gradient(value, weights))

  value, gradient = MODES[mode](step)(tf.constant(3, tf.int64))
  return value.numpy(), gradient.numpy()


def dropout_of_tensorflow(x, weights):
  return tf.nn.dropout(x * weights, 0.5)


def dropout_of_keras():
  layer = tf_keras.layers.Dropout(0.5, dtype='float64')
  step_random.key_random_layers(layer)
  return lambda x, weights: layer(x * weights, training=True)


def own_draw(x, weights):
  seed = step_random.make_seed('mask')
  return x * weights * tf.cast(step_random.uniform([SIZE], seed) < 0.5, tf.float64)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize(
  'make',
  [lambda: dropout_of_tensorflow, dropout_of_keras, lambda: own_draw],
  ids=['tf.nn.dropout', 'Keras', 'make_seed'],
)
def test_one_recomputed_function(make, mode):
  function = make()
  value, gradient = value_and_gradient(tf.recompute_grad(function), mode)
  np.testing.assert_allclose(gradient.sum() * 2, value)  # The value is linear in the weights, which are all 2.
  expected = value_and_gradient(make(), mode)  # Without recomputation.
  np.testing.assert_array_equal([value], [expected[0]])
  np.testing.assert_array_equal(gradient, expected[1])
  assert 0 < np.sum(gradient == 0) < SIZE


@tiers.parametrize('mode', ['graph', 'xla'], fast=['xla'])
def test_two_and_nested_recomputed_functions(mode):
  f = lambda x, weights: tf.nn.dropout(x * weights, 0.3)
  for recomputed, plain, degree in [
    (lambda x, w: tf.recompute_grad(f)(tf.recompute_grad(f)(x, w), w), lambda x, w: f(f(x, w), w), 2),
    (tf.recompute_grad(lambda x, w: f(tf.recompute_grad(f)(f(x, w), w), w)), lambda x, w: f(f(f(x, w), w), w), 3),
  ]:
    value, gradient = value_and_gradient(recomputed, mode)
    np.testing.assert_allclose(gradient.sum() * 2, degree * value)  # Euler's theorem on homogeneous functions.
    expected = value_and_gradient(plain, mode)
    np.testing.assert_allclose(value, expected[0])
    np.testing.assert_allclose(gradient, expected[1])


@pytest.mark.parametrize('where', ['loop inside', 'loop around', 'branch inside', 'function around'])
def test_recomputation_in_and_around_control_flow(where):
  f = dropout_of_tensorflow
  times3 = lambda g: (
    lambda x, w: tf.while_loop(  # The weights are an argument: TensorFlow captures no variables here.
      lambda i, _: i < 3, lambda i, y: (i + 1, g(y, w)), (0, x), maximum_iterations=3
    )[1]
  )
  at_value = lambda g: lambda x, w: g(x, tf.convert_to_tensor(w))
  recomputed, degree = {
    'loop inside': (tf.recompute_grad(times3(f)), 3),
    'loop around': (times3(tf.recompute_grad(f)), 3),
    'branch inside': (tf.recompute_grad(lambda x, w: tf.cond(x[0] > 0, lambda: f(x, w), lambda: x)), 1),
    'function around': (tf.function(tf.recompute_grad(f)), 1),
  }[where]
  value, gradient = value_and_gradient(at_value(recomputed))
  np.testing.assert_allclose(gradient.sum() * 2, degree * value)
  assert 0 < np.sum(gradient == 0) < SIZE


def test_model_gardens_own_recompute_grad():
  value, gradient = value_and_gradient(
    bigbird_recompute_grad.recompute_grad(dropout_of_tensorflow, seed=tf.constant(1))
  )
  np.testing.assert_allclose(gradient.sum() * 2, value)


@tf.autograph.experimental.do_not_convert
def bound_too_late(x, weights):
  for layer in LAYERS:
    x = tf.recompute_grad(lambda y: layer(y * weights, training=True))(x)  # noqa: B023
  return x


LAYERS = [tf_keras.layers.Dropout(0.5, dtype='float64') for _ in range(2)]


def test_another_function_the_second_time_is_an_error():
  step_random.key_random_layers(tf_keras.Sequential(LAYERS))
  with pytest.raises(ValueError, match='tf.recompute_grad: the function draws layer 1 call when .* drew layer 0 call'):
    value_and_gradient(bound_too_late)


def test_a_function_inside_that_draws_otherwise_is_reported(monkeypatch):
  warnings = []
  monkeypatch.setattr('absl.logging.log_first_n', lambda level, message, n: warnings.append(message))
  value_and_gradient(tf.recompute_grad(tf.function(dropout_of_tensorflow)))
  assert warnings and 'tf.function inside' in warnings[0]


# In training.


class DroppingTask(harness.LinearTask):
  """Two recomputed blocks with dropout, one around the other's kind of draw, and a linear layer."""

  recomputes = True

  def forward(self, inputs, model, training):
    x, y = inputs
    dropout, dense = model.get_layer('dropout'), model.get_layer('dense')
    wrapped = tf.recompute_grad if self.recomputes else lambda f: f
    first = wrapped(lambda x: tf.nn.dropout(dropout(tf.tanh(x), training=training), 0.3))
    second = wrapped(lambda x: tf.nn.dropout(dense(wrapped(lambda x: tf.nn.dropout(x, 0.2))(x)), 0.2))
    logits = second(first(x))
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)), {'accuracy': (y, logits)}

  @staticmethod
  def model_fn():
    inputs = tf_keras.Input((harness.NUM_FEATURES,))
    layer = tf_keras.layers.Dense(harness.NUM_CLASSES, name='dense')
    model = tf_keras.Model(inputs, layer(tf_keras.layers.Dropout(0.4, name='dropout')(inputs)))
    layer.set_weights(harness.initial_weights())
    return model


class PlainDroppingTask(DroppingTask):
  recomputes = False


SHAPES = {
  'fused': dict(steps_per_execution=3, accumulation=2),
  'split': dict(replicas='two', accumulation=2),
  'plain': dict(enable_xla=False),
  'plain on two replicas': dict(replicas='two', enable_xla=False),
}


@pytest.mark.slow
@tiers.parametrize('shape', harness.cases(['fused', 'split'], soak=['plain', 'plain on two replicas']), fast=1)
def test_training_with_recomputation_is_training_without(shape):
  recomputed, plain = (harness.make_trainer(task, **SHAPES[shape]) for task in (DroppingTask, PlainDroppingTask))
  for trainer in (recomputed, plain):
    harness.train(trainer, NUM_STEPS)
  harness.assert_close(harness.weights_of(recomputed), harness.weights_of(plain))
