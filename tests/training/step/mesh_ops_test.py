"""Operations in the form that they have on a mesh compute the same as in their own."""

import contextlib
import itertools

import numpy as np
import pytest
import tensorflow as tf

from official_ext.training.step import mesh_execution


def test_slices_of_every_kind():
  x = tf.reshape(tf.range(2 * 3 * 4), [2, 3, 4])
  items = [0, -1, slice(None), slice(1, 3), slice(None, None, -1), tf.newaxis, Ellipsis]
  with mesh_execution.in_use(lambda tensor: tensor):
    for index in itertools.chain.from_iterable(itertools.product(items, repeat=count) for count in (1, 2, 3)):
      if index.count(Ellipsis) <= 1:
        expected = x.numpy()[index]
        found = x[index].numpy()
        assert found.shape == expected.shape, index
        np.testing.assert_array_equal(found, expected, err_msg=str(index))


def test_the_largest_and_their_gradient():
  x = tf.constant([[3.0, -np.inf, 1.0, 2.0], [1.0, 1.0, 0.0, -1.0]])
  results = []
  for context in (mesh_execution.in_use(lambda tensor: tensor), tf.name_scope('alone')):
    with context, tf.GradientTape() as tape:
      tape.watch(x)
      values, indices = tf.math.top_k(x, 2)
      loss = tf.reduce_sum(values * [1.0, 10.0])
    results.append((values, indices, tape.gradient(loss, x)))
  for found, expected in zip(*results):
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('is_training', [True, False])
@pytest.mark.parametrize('data_format', ['NHWC', 'NCHW'])
@pytest.mark.parametrize('factor', [1.0, 0.1])
def test_normalisation_and_its_gradients(data_format, is_training, factor):
  """NCHW has a kernel on GPUs alone: there the expected values are those of NHWC, transposed."""
  rng = np.random.default_rng(0)
  x = tf.constant(rng.normal(2.0, 3.0, [3, 2, 5, 4]), tf.float32)
  vectors = [tf.constant(rng.uniform(0.5, 2.0, 4), tf.float32) for _ in range(4)]
  weights = tf.constant(rng.normal(size=x.shape), tf.float32)
  results = []
  for context, layout in (
    (mesh_execution.in_use(lambda tensor: tensor), data_format),
    (contextlib.nullcontext(), 'NHWC'),
  ):
    there, back = ([0, 3, 1, 2], [0, 2, 3, 1]) if layout == 'NCHW' else ([0, 1, 2, 3], [0, 1, 2, 3])
    with context, tf.GradientTape() as tape:
      tape.watch([x, *vectors[:2]])
      y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
        tf.transpose(x, there), *vectors, 0.01, layout, is_training, exponential_avg_factor=factor
      )
      y = tf.transpose(y, back)
      loss = tf.reduce_sum(y * weights)
    results.append((y, mean, variance, *tape.gradient(loss, [x, *vectors[:2]])))
  for found, expected in zip(*results):
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
