"""Operations in the form that they have on a mesh compute what they compute in their own."""

import itertools

import numpy as np
import tensorflow as tf

from official_ext.step import mesh_ops


def test_slices_of_every_kind():
  x = tf.reshape(tf.range(2 * 3 * 4), [2, 3, 4])
  items = [0, -1, slice(None), slice(1, 3), slice(None, None, -1), tf.newaxis, Ellipsis]
  with mesh_ops.in_use(lambda tensor: tensor):
    for index in itertools.chain.from_iterable(itertools.product(items, repeat=count) for count in (1, 2, 3)):
      if index.count(Ellipsis) <= 1:
        expected = x.numpy()[index]
        found = x[index].numpy()
        assert found.shape == expected.shape, index
        np.testing.assert_array_equal(found, expected, err_msg=str(index))


def test_the_largest_and_their_gradient():
  x = tf.constant([[3.0, -np.inf, 1.0, 2.0], [1.0, 1.0, 0.0, -1.0]])
  results = []
  for context in (mesh_ops.in_use(lambda tensor: tensor), tf.name_scope('alone')):
    with context, tf.GradientTape() as tape:
      tape.watch(x)
      values, indices = tf.math.top_k(x, 2)
      loss = tf.reduce_sum(values * [1.0, 10.0])
    results.append((values, indices, tape.gradient(loss, x)))
  for found, expected in zip(*results):
    np.testing.assert_array_equal(found, expected)
