"""Adam and AdamW with one function for all variables of a shape, beside tf_keras' own update."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.training.optimization import optimizers
from tests import tiers

SHAPES = [[3, 4], [4], [3, 4], [4], [5, 2], [3, 4]]
SPARSE = 4  # The variable whose gradient is of two rows.


def trained(optimizer, shared, dtype=tf.float32, num_steps=4, **options):
  """The variables and the optimizer's own after some updates, and the number of operations in the graph of one."""
  rng = np.random.default_rng(0)
  variables = [tf.Variable(rng.normal(size=shape), dtype=dtype, name=f'v{i}') for i, shape in enumerate(SHAPES)]
  if shared:
    optimizers.share_updates(optimizer)
  optimizer.build(variables)

  @tf.function(autograph=False, **options)
  def step(gradients):
    gradients = list(gradients)
    gradients[SPARSE] = tf.IndexedSlices(gradients[SPARSE][:2], tf.constant([3, 1]), SHAPES[SPARSE])
    optimizer.apply_gradients(zip(gradients, variables))

  for _ in range(num_steps):
    step([tf.constant(rng.normal(size=shape), dtype) for shape in SHAPES])
  graph = step.get_concrete_function([tf.zeros(shape, dtype) for shape in SHAPES]).graph
  return [value.numpy() for value in (*variables, *optimizer.variables)], len(graph.get_operations())


@tiers.parametrize('dtype', [tf.float32, tf.bfloat16, tf.float64], fast=1)
@tiers.parametrize(
  'make',
  [
    lambda: tf_keras.optimizers.Adam(tf_keras.optimizers.schedules.PolynomialDecay(0.1, 9), jit_compile=False),
    lambda: tf_keras.optimizers.AdamW(0.01, weight_decay=0.1, beta_2=0.99, jit_compile=False, global_clipnorm=1.0),
  ],
  fast=1,
)
def test_values_are_those_of_tf_keras_to_the_bit(make, dtype):
  ours, num_ours = trained(make(), True, dtype)
  kerass, num_kerass = trained(make(), False, dtype)
  for found, wanted in zip(ours, kerass, strict=True):
    np.testing.assert_array_equal(found, wanted)
  assert num_ours < num_kerass - 25 * (len(SHAPES) - 1), 'all but the sparse one save operations'


def test_values_under_xla_are_those_of_tf_keras():
  make = lambda: tf_keras.optimizers.AdamW(0.01, jit_compile=False)
  for found, wanted in zip(*(trained(make(), shared, jit_compile=True)[0] for shared in (True, False)), strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_a_shape_is_traced_once():
  optimizer = tf_keras.optimizers.Adam(jit_compile=False)
  traced = []
  squares = tf.square
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tf, 'square', lambda x: traced.append(tuple(x.shape)) or squares(x))
    trained(optimizer, True, num_steps=2)
  dense = [tuple(shape) for i, shape in enumerate(SHAPES) if i != SPARSE]
  assert sorted(shape for shape in traced if shape in dense) == sorted(set(dense))


def test_the_learning_rate_may_change_between_steps():
  optimizer = tf_keras.optimizers.Adam(0.1, jit_compile=False)
  optimizers.share_updates(optimizer)
  variable = tf.Variable([1.0, 2.0])
  optimizer.build([variable])
  step = tf.function(lambda: optimizer.apply_gradients([(tf.constant([1.0, -1.0]), variable)]), autograph=False)
  step()
  np.testing.assert_allclose(variable.numpy(), [0.9, 2.1], rtol=1e-5)  # The first step of Adam is the learning rate.
  optimizer.learning_rate = 0.0
  step()
  np.testing.assert_allclose(variable.numpy(), [0.9, 2.1], rtol=1e-5)


def on_two_replicas(shared):
  """The components of two variables after two updates with other gradients on each replica."""
  strategy = tf_internals.make_strategy(tf.distribute.MirroredStrategy, devices=['CPU:0', 'CPU:1'])
  with strategy.scope():
    variables = [tf.Variable(tf.ones([2, 3])) for _ in range(2)]
    optimizer = tf_keras.optimizers.AdamW(0.1, jit_compile=False)
    if shared:
      optimizers.share_updates(optimizer)
    optimizer.build(variables)

  def of_replica():
    rank = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
    optimizer.apply_gradients([(tf.fill([2, 3], rank + i), variable) for i, variable in enumerate(variables)])

  step = tf.function(lambda: strategy.run(of_replica), autograph=False)
  step()
  step()
  return [value.numpy() for each in variables for value in strategy.experimental_local_results(each)]


def test_replicas_are_updated_as_before():
  assert len(tf.config.list_logical_devices('CPU')) >= 2
  np.testing.assert_array_equal(on_two_replicas(True), on_two_replicas(False))


@pytest.mark.parametrize(
  'optimizer',
  [
    tf_keras.optimizers.Adam(amsgrad=True),
    tf_keras.optimizers.SGD(),
    tf_keras.optimizers.legacy.Adam(),
    type('MyAdam', (tf_keras.optimizers.Adam,), {})(),
  ],
)
def test_others_stay_as_they_are(optimizer):
  before = dict(vars(optimizer))
  optimizers.share_updates(optimizer)
  assert vars(optimizer).keys() == before.keys()


def test_a_method_that_was_replaced_stays():
  optimizer = tf_keras.optimizers.Adam()
  optimizer.update_step = replaced = lambda gradient, variable: None
  optimizers.share_updates(optimizer)
  assert optimizer.update_step is replaced
