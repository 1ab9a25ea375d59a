"""Random numbers on a mesh are those of one device: TensorFlow's own, by a seed of the task or none."""

import numpy as np
import pytest
import tensorflow as tf

import registry_imports  # noqa: F401
from tests import tiers
from tests.experiments import shrunk_run
from tests.training.loop import harness

BATCH_SIZE = 8
DRAWS = {
  'uniform': lambda shape, seed: tf.random.stateless_uniform(shape, seed),
  'uniform, philox': lambda shape, seed: tf.random.stateless_uniform(shape, seed, alg='philox'),
  'integers': lambda shape, seed: tf.random.stateless_uniform(shape, seed, 0, 1000, tf.int32),
  'all integers': lambda shape, seed: tf.random.stateless_uniform(shape, seed, None, None, tf.int32) // 2**20,
  'normal': lambda shape, seed: tf.random.stateless_normal(shape, seed),
  'truncated normal': lambda shape, seed: tf.random.stateless_truncated_normal(shape, seed),
  'keyed by the step': lambda shape, seed: tf.random.uniform(shape),
}


def _drawn(draw, mesh):
  """Draws of three steps, each as a weighted sum, which no other order of them has."""
  params = shrunk_run.make_params('digits_mlp', {'task': {'train_data': {'global_batch_size': BATCH_SIZE}}}, mesh)
  trainer = shrunk_run.make_trainer(params)
  forward = trainer.task.forward

  def drawing(inputs, model, training):
    loss, logs = forward(inputs, model, training)
    numbers = tf.cast(draw([tf.shape(inputs['pixels'])[0], 4], trainer.task.make_seed('draw')), tf.float32)
    weights = tf.reshape(tf.range(1.0, 4 * BATCH_SIZE + 1), [BATCH_SIZE, 4])
    # With the batch, over which it is split as the batch is.
    return loss, {**logs, 'drawn': tf.reduce_sum(numbers * weights + 0 * inputs['pixels'][:, :4])}

  trainer.task.forward = drawing
  return [harness.train(trainer, 1)['drawn'].item() for _ in range(3)]


@pytest.mark.slow
@tiers.parametrize('name', DRAWS, fast=['keyed by the step'])
def test_draws_are_those_of_one_device(name):
  expected, found = (_drawn(DRAWS[name], mesh) for mesh in ({}, {'runtime': {'mesh': {'data': 2}}}))
  assert len(set(expected)) == 3
  np.testing.assert_allclose(found, expected, rtol=1e-5)
