"""The backward pass of stacked layers computes one layer once more at a time: without XLA, loops run ahead."""

import types

import numpy as np
import tensorflow as tf

from official_ext.training.model_parts import layer_weights
from official_ext.training.model_parts import stacked

_LAYERS = 6


def test_the_loop_of_the_backward_pass_does_not_run_ahead():
  """The input of each layer is known when the loop begins, so that TensorFlow would compute ten layers at a time."""
  weights = tf.Variable(tf.range(1.0, _LAYERS + 1.0), trainable=True)
  part = types.SimpleNamespace(variables=[weights], trainable_variables=[weights])

  def block(x, number, extras):
    del number, extras
    return x * layer_weights.value_of(weights)

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
