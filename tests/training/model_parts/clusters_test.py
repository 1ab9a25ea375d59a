"""Parts that XLA compiles by themselves compute the same as the operations one by one, gradients included."""

import math

import numpy as np
import pytest
import tensorflow as tf

from official_ext.language.modeling import attention
from official_ext.language.modeling import layers
from official_ext.language.modeling import losses
from official_ext.language.modeling import position_encodings
from official_ext.training.model_parts import clusters

BFLOAT16_EPSILON = 2.0**-8  # The largest relative error of one rounding.


def drawn(*shape, dtype='float32', seed=0):
  return tf.cast(np.random.default_rng(seed).normal(size=shape), dtype)


def cases(dtype):
  """Name -> (function, the arguments that have gradients)."""
  layer_norm = layers.Norm(16, 1e-5, norm_type='layer_norm', name='layer_norm', dtype=dtype)
  rms_norm = layers.Norm(16, 1e-6, offset=1.0, name='rms_norm', dtype=dtype)
  norm_of = lambda norm: layers._norm(norm._epsilon, norm._offset, norm._is_centered)
  mask = tf.linalg.band_part(tf.ones([5, 5], tf.bool), -1, 0)
  bias = drawn(2, 1, 5, seed=5)
  angles = drawn(3, 5, 1, 2, seed=7)
  labels = tf.constant([[1, 2, losses.IGNORED_LABEL], [0, 15, 3]])
  x = drawn(3, 5, 16, dtype=dtype)
  weights = drawn(16, seed=1), drawn(16, seed=2)
  return {
    'gelu': (layers.activation('gelu'), [x]),
    'gated silu': (layers.activation('silu', is_gated=True), [x, drawn(3, 5, 16, dtype=dtype, seed=3)]),
    'layer norm': (norm_of(layer_norm), [x, *weights]),
    'rms norm': (norm_of(rms_norm), [x, weights[0]]),
    'shares': (lambda s: attention._shares(tf.as_dtype(dtype), 1)(s, mask), [drawn(2, 5, 5, dtype=dtype)]),
    'biased shares': (
      lambda s: attention._shares(tf.as_dtype(dtype), 2)(s, mask, bias),
      [drawn(2, 5, 5, dtype=dtype)],
    ),
    'rotated': (
      lambda x: position_encodings.rotated(x, tf.cos(angles), tf.sin(angles)),
      [drawn(3, 5, 2, 4, dtype=dtype)],
    ),
    'log_probs': (lambda x: losses.log_probs(x, labels), [drawn(2, 3, 16, dtype=dtype)]),
  }


def outcome(function, inputs, is_compiled):
  """The value and gradients of a graph, as float64, and whether XLA compiles a part of it."""

  @tf.function(autograph=False)
  def run(inputs):
    with tf.GradientTape() as tape:
      tape.watch(inputs)
      if is_compiled:
        with clusters.compiled():
          y = function(*inputs)
      else:
        y = function(*inputs)
    return [y, *tape.gradient(y, inputs, tf.cast(drawn(*y.shape, seed=9), y.dtype))]

  graph = run.get_concrete_function(inputs).graph.as_graph_def()
  has_programs = any(f.attr['_XlaMustCompile'].b for f in graph.library.function)
  return [tf.cast(value, tf.float64).numpy() for value in run(inputs)], has_programs


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('name', cases('float32'))
def test_what_is_compiled_is_what_is_not_gradients_included(name, dtype):
  """In bfloat16, both round their results: they differ from the same in float32 by a few roundings, each of which
  is relative to the largest number that enters a sum."""
  function, inputs = cases(dtype)[name]
  (found, has_programs), (expected, has_none) = outcome(function, inputs, True), outcome(function, inputs, False)
  assert has_programs and not has_none
  epsilon = BFLOAT16_EPSILON if dtype == 'bfloat16' else 2.0**-24
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(
      one, other, rtol=0, atol=(4 if dtype == 'bfloat16' else 32) * epsilon * np.abs(other).max()
    )


def test_nothing_is_compiled_behind_compiled():
  function = layers.activation('gelu')
  with clusters.compiled():
    pass
  assert not outcome(function, [drawn(4)], False)[1]


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_exact_gelu_is_x_times_the_normal_distribution(dtype):
  """In float32 1 + erf is off by a rounding of 1 on either side, times x / 2; erf itself by a few roundings."""
  x = tf.cast(np.linspace(-8, 8, 2001), dtype)
  wanted = np.array([0.5 * v * math.erfc(-v * math.sqrt(0.5)) for v in tf.cast(x, tf.float64).numpy()])
  found = tf.cast(layers.exact_gelu(x), tf.float64).numpy()
  allowed = 4 * 2.0**-24 * np.abs(tf.cast(x, tf.float64).numpy())
  if dtype == 'bfloat16':
    allowed = allowed + BFLOAT16_EPSILON * np.abs(wanted)
  assert np.all(np.abs(found - wanted) <= allowed)
