"""Replicas that meet inside a model: the trace does not search the graph, and gradients are unchanged."""

import contextlib
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.training.step import gradient_tap
from tests import tiers

NUM_LAYERS = 4


@contextlib.contextmanager
def counted_walks():
  """Counts calls of TensorFlow's search, in the threads of all replicas."""
  calls = []

  def note(frame, event, _):
    if event == 'call' and frame.f_code.co_name == 'get_backward_walk_ops':
      calls.append(frame)

  threading.setprofile(note)
  sys.setprofile(note)
  try:
    yield calls
  finally:
    sys.setprofile(None)
    threading.setprofile(None)


def normalising():
  """Layers of synchronised batch normalisation, whose replicas meet in each."""
  layers = [tf_keras.layers.BatchNormalization(synchronized=True) for _ in range(NUM_LAYERS)]
  for layer in layers:
    layer.build([None, 3])

  def model(x):
    for layer in layers:
      x = layer(tf.sin(x), training=True)
    return x

  return model


def gathering():
  """Products with the values of all replicas."""

  def model(x):
    for _ in range(NUM_LAYERS):
      everywhere = tf.distribute.get_replica_context().all_gather(tf.cos(x), axis=0)
      x = tf.sin(x) @ tf.transpose(everywhere) @ tf.ones([4, 3])
    return x

  return model


@pytest.mark.slow
@tiers.parametrize('make_model', [normalising, gathering], fast=1)
def test_gradients_are_those_of_tensorflow_without_its_searches(make_model):
  devices = tf.config.list_logical_devices('CPU')[:2]
  strategy = tf_internals.make_strategy(tf.distribute.MirroredStrategy, devices=devices)
  values = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)

  def gradients(context):
    def of_replica():
      x = tf.gather(tf.constant(values), tf.distribute.get_replica_context().replica_id_in_sync_group)
      with context(), tf.GradientTape() as tape:
        tape.watch(x)
        result = tf.reduce_sum(model(x) ** 3)
      with context():
        return tape.gradient(result, x)

    with strategy.scope():
      model = make_model()
    with counted_walks() as walks:
      found = tf.function(lambda: strategy.run(of_replica))()
    return np.stack(strategy.experimental_local_results(found)), len(walks)

  expected, num_before = gradients(contextlib.nullcontext)
  found, num_walks = gradients(gradient_tap.without_searches)
  assert num_before >= 2 * 2 * NUM_LAYERS  # Two replicas, a layer and its gradient.
  assert num_walks == 0
  assert np.abs(expected).max() > 0.01
  np.testing.assert_array_equal(found, expected)


def test_other_custom_gradients_find_their_variables():
  weights = tf.Variable(3.0)
  square = tf.recompute_grad(lambda x: x * weights**2)

  @tf.function
  def gradient():
    with gradient_tap.without_searches(), tf.GradientTape() as tape:
      result = square(tf.constant(5.0))
    return tape.gradient(result, weights)

  assert gradient().numpy() == 2 * 3.0 * 5.0
