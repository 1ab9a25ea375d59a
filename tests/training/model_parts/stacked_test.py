"""The backward pass of stacked layers: computed once more, one layer at a time, or from kept activations."""

import collections
import contextlib
import types

import numpy as np
import tensorflow as tf

from official_ext.training.model_parts import clusters
from official_ext.training.model_parts import remat
from official_ext.training.model_parts import stacked

_LAYERS = 6


def test_the_loop_of_the_backward_pass_does_not_run_ahead():
  """The input of each layer is known when the loop begins, so that TensorFlow would compute ten layers at a time."""
  weights = tf.Variable(tf.range(1.0, _LAYERS + 1.0), trainable=True)
  part = types.SimpleNamespace(variables=[weights], trainable_variables=[weights])

  def block(x, number, extras):
    del number, extras
    return x * remat.value_of(weights)

  @tf.function(autograph=False)
  def step(x):
    with tf.GradientTape() as tape:
      y = stacked.scan(block, x, part, _LAYERS, {})
    return tape.gradient(y, weights)

  x = tf.ones([3])
  np.testing.assert_allclose(step(x), 3 * 720 / np.arange(1.0, _LAYERS + 1), rtol=1e-6)
  graph = step.get_concrete_function(x).graph.as_graph_def()
  nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
  loops = [node.attr['parallel_iterations'].i for node in nodes if node.op in ('While', 'StatelessWhile')]
  assert len(loops) == 2 and min(loops) == 1


def test_what_a_loop_keeps_has_the_gradients_of_what_is_computed_once_more():
  """Trained, frozen and integer rows, a value that all layers share, and a report of each layer."""
  value_of = remat.value_of
  kernels, scales = tf.Variable(tf.random.normal([_LAYERS, 3, 3], seed=1)), tf.Variable(tf.range(1.0, _LAYERS + 1.0))
  frozen = tf.Variable(tf.random.normal([_LAYERS, 3, 3], seed=2))
  numbers = tf.Variable(tf.range(_LAYERS), trainable=False)
  part = types.SimpleNamespace(variables=[kernels, scales, frozen, numbers], trainable_variables=[kernels, scales])

  def block(x, number, extras):
    inner = tf.tanh(x @ value_of(kernels)) * value_of(scales)
    remat.report(tf.reduce_sum(inner))
    return 0.1 * inner @ value_of(frozen) + extras['shift'] * tf.cast(value_of(numbers) + number, tf.float32)

  def graph(keeps_activations, compiles_clusters):
    def step(x, shift):
      around = clusters.compiled() if compiles_clusters else contextlib.nullcontext()
      with around, remat.collected(True) as reports, tf.GradientTape() as tape:
        tape.watch([x, shift])
        spec = tf.TensorSpec([], tf.float32)
        y = stacked.scan(block, x, part, _LAYERS, {'shift': shift}, [spec], keeps_activations)
        loss = tf.reduce_sum(y) + tf.reduce_sum(reports[0] ** 2)
      return y, reports[0], *tape.gradient(loss, [kernels, scales, x, shift])

    return tf.function(step, autograph=False).get_concrete_function(x, shift)

  x, shift = tf.random.normal([2, 3], seed=3), tf.constant([0.1, 0.2, 0.3])
  kept, recomputed = graph(True, True), graph(False, True)
  for found, expected in zip(kept(x, shift), recomputed(x, shift), strict=True):
    assert np.max(np.abs(expected)) > 0
    np.testing.assert_allclose(found, expected, rtol=1e-6)
  assert _counts(graph(True, False)) == _counts(recomputed)
  # A loop that keeps them has the hyperbolic tangent in its forward pass alone.
  assert _counts(kept)['Tanh'] < _counts(recomputed)['Tanh']
  # Each gradient of a row is written once; so is a report, and forgotten once backwards.
  assert _counts(kept)['TensorListSetItem'] == 2 + 2


def _counts(graph):
  """Type of operation -> how many there are in a graph and in the loops that it calls."""
  definition = graph.graph.as_graph_def()
  functions = {function.signature.name: function for function in definition.library.function}
  loops = [node.attr[name].func.name for node in definition.node for name in ('body', 'cond') if name in node.attr]
  nodes = [*definition.node, *(node for name in loops for node in functions[name].node_def)]
  return collections.Counter(node.op for node in nodes)
