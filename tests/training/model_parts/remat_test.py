"""Weights that are cast once, outside of loops."""

import numpy as np
import tensorflow as tf

from official_ext.training.model_parts import remat


def casts(function):
  """The number of casts in a graph, and in its loops."""
  concrete = tf.function(function, autograph=False).get_concrete_function()
  bodies = concrete.graph.as_graph_def().library.function
  outside = sum(node.op == 'Cast' for node in concrete.graph.as_graph_def().node)
  return outside, sum(node.op == 'Cast' for body in bodies for node in body.node_def)


def total(weight, num_rounds, first=True):
  """The sum of a weight in float32 rounds, each of which reads it in bfloat16."""
  read = lambda: tf.cast(tf.reduce_sum(remat.cast_of(weight, tf.bfloat16)), tf.float32)
  start = read() if first else tf.zeros([])
  return tf.while_loop(lambda i, _: i < num_rounds, lambda i, x: (i + 1, x + read()), (0, start))[1]


def test_a_weight_is_cast_once_and_read_in_a_loop():
  weight = tf.Variable([0.1, 0.2, 1.3])

  def once():
    with remat.cast_once():
      return total(weight, 3)

  assert casts(once) == (2, 1)  # The weight, and the first sum; in the loop its sum alone.
  assert casts(lambda: total(weight, 3)) == (2, 2)
  np.testing.assert_array_equal(tf.function(once)(), total(weight, 3))
  assert not remat.is_cast_once(weight)


def test_a_weight_that_is_first_read_in_the_loop_is_cast_before_it():
  weight = tf.Variable([0.1, 0.2, 1.3])

  def inside():
    with remat.cast_once():
      return total(weight, 3, first=False), tf.reduce_sum(remat.cast_of(weight, tf.bfloat16))

  assert casts(inside) == (1, 1)  # The weight; in the loop the sum.
  found = tf.function(inside)()
  np.testing.assert_array_equal(found[0], total(weight, 3, first=False))


def test_a_value_that_is_handed_in_is_not_replaced_by_an_earlier_one():
  weight = tf.Variable([1.0])
  with remat.cast_once():
    assert remat.cast_of(weight, tf.float16).numpy() == [1.0] and remat.is_cast_once(weight)
    with remat.handed_in([weight], [tf.constant([2.0])]):
      assert remat.cast_of(weight, tf.float16).numpy() == [2.0] and not remat.is_cast_once(weight)
