"""Packed kernels in a graph: one program of XLA for all kernels of a shape, with the values of the graph."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.language.modeling import layers
from official_ext.language.modeling import quantized_linear
from official_ext.training.model_parts import clusters

IN, OUT = 96, 64
X = tf.constant(np.random.default_rng(0).standard_normal((2, 3, IN)), tf.float32)


def packed(number, **config):
  """A layer [IN, OUT] with weights that differ by their number."""
  linear = layers.Linear(IN, OUT, False, 'zeros', name=f'blocks/{number}/q_proj')
  linear.kernel.assign(np.random.default_rng(number + 1).standard_normal((IN, OUT)).astype(np.float32))
  return quantized_linear.QuantizedLinear(linear, quantized_linear.QuantizationConfig(**config))


def traced(chain, is_compiled):
  """The function x -> (the output of layers, the gradient of its sum of squares)."""

  @tf.function(autograph=False)
  def run(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      loss = tf.reduce_sum(tf.square(tf.add_n([layer(x) for layer in chain])))
    return loss, tape.gradient(loss, x)

  if not is_compiled:
    return run.get_concrete_function(X)
  with clusters.compiled():
    return run.get_concrete_function(X)


@pytest.mark.parametrize(
  'config, error',
  [
    pytest.param(dict(method='nf4', double_quantization=True), 0, id='nf4'),
    pytest.param(dict(method='nf4', double_quantization=False, block_size=40), 0, id='nf4, a short last block'),
    pytest.param(dict(method='int8'), 1e-6, id='int8'),
  ],
)
def test_compiled_clusters_give_the_values_of_a_graph_and_one_program_unpacks_all_kernels_of_a_shape(config, error):
  chain = [packed(number, **config) for number in range(3)]
  graph, compiled = (traced(chain, is_compiled) for is_compiled in (False, True))
  for value, expected in zip(compiled(X), graph(X)):
    # Of 8 bits, XLA multiplies a scale by a constant first.
    np.testing.assert_allclose(value, expected, rtol=0, atol=error * np.abs(expected).max())
  called = [
    node.attr['f'].func.name
    for node in compiled.graph.as_graph_def().node
    if node.op in ('PartitionedCall', 'StatefulPartitionedCall')
  ]
  assert len(called) == 2 * len(chain) and len(set(called)) == 1  # Forward and backward.
