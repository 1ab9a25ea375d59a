"""NF4: the same bytes and scales as bitsandbytes', the same weights again, eager and under XLA."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.language.modeling import nf4

pytest.importorskip('bitsandbytes', reason="needs the test extra: pip install 'official-ext[test]'")
import bitsandbytes.functional as bitsandbytes
import torch

SHAPES = [((96, 257), 64), ((64,), 64), ((3, 5), 64), ((1,), 64), ((33, 66), 128), ((4, 16, 24), 32)]


@pytest.fixture(autouse=True, scope='module')
def _bitsandbytes_without_a_compiler():
  """Its kernels for odd shapes would have torch.compile call a C++ compiler."""
  with torch.compiler.set_stance('force_eager'):
    yield


def _weights(shape, seed=0):
  weights = 0.02 * np.random.default_rng(seed).standard_normal(shape)
  return weights.astype(np.float32)


def _theirs(weights, block_size=64, double=False):
  """Their packed bytes, their state, and the weights again."""
  packed, state = bitsandbytes.quantize_4bit(
    torch.tensor(weights), blocksize=block_size, compress_statistics=double, quant_type='nf4'
  )
  return packed.numpy().reshape(-1), state, bitsandbytes.dequantize_4bit(packed, state).numpy().reshape(weights.shape)


def _both_ways(quantized):
  return nf4.dequantize(quantized).numpy(), tf.function(nf4.dequantize, jit_compile=True)(quantized).numpy()


def test_code_book_is_bitsandbytes():
  theirs = bitsandbytes.get_4bit_type('nf4', device='cpu').numpy()
  np.testing.assert_array_equal(np.float32(nf4.CODE_BOOK), theirs)
  np.testing.assert_array_equal(nf4.SCALE_CODE_BOOK, bitsandbytes.create_dynamic_map().numpy())


@pytest.mark.parametrize('shape, block_size', SHAPES)
def test_bytes_and_scales_are_bitsandbytes(shape, block_size):
  weights = _weights(shape)
  packed, state, again = _theirs(weights, block_size)
  ours = nf4.quantize(weights, block_size)
  np.testing.assert_array_equal(ours.packed, packed)
  np.testing.assert_array_equal(ours.scales, state.absmax.numpy())
  for weights_again in _both_ways(ours):
    np.testing.assert_allclose(weights_again, again, rtol=0, atol=1e-7)


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('shape', [(300, 257), (512, 256), (3, 5)])
def test_double_quantization_is_bitsandbytes(shape, seed):
  weights = _weights(shape, seed)
  weights[0] *= 50  # A few scales that are far from the others.
  packed, state, again = _theirs(weights, double=True)
  ours = nf4.quantize(weights, double_quantization=True)
  np.testing.assert_array_equal(ours.packed, packed)
  np.testing.assert_array_equal(ours.scales, state.absmax.numpy())
  np.testing.assert_allclose(ours.scale_scales, state.state2.absmax.numpy(), rtol=1e-6)
  np.testing.assert_allclose(ours.offset, state.offset.numpy(), rtol=1e-6)
  for weights_again in _both_ways(ours):
    np.testing.assert_allclose(weights_again, again, rtol=0, atol=1e-7)


def test_parts_are_as_one_array(monkeypatch):
  weights = _weights((1000, 33))
  whole = nf4.quantize(weights)
  monkeypatch.setattr(nf4, '_PART', 640)
  parts = nf4.quantize(weights)
  np.testing.assert_array_equal(parts.packed, whole.packed)
  np.testing.assert_array_equal(parts.scales, whole.scales)


@pytest.mark.parametrize('double', [False, True])
@pytest.mark.parametrize('value', [0.0, -0.5])
@pytest.mark.parametrize('size', [64 * 300, 130])
def test_constant_weights_come_back(size, value, double):
  weights = np.full(size, value, np.float32)
  ours = nf4.quantize(weights, double_quantization=double)
  packed, _, again = _theirs(weights, double=double)
  np.testing.assert_array_equal(ours.packed, packed)
  for weights_again in _both_ways(ours):
    np.testing.assert_allclose(weights_again, weights, rtol=0, atol=1e-7 if value == 0 or size % 64 == 0 else 1e-3)
    np.testing.assert_allclose(weights_again, again, rtol=0, atol=1e-7)


def test_half_precision_is_taken_and_given():
  weights = _weights((64, 64)).astype(ml_dtypes.bfloat16)
  packed, state = bitsandbytes.quantize_4bit(torch.tensor(weights.astype(np.float32)).bfloat16(), quant_type='nf4')
  for given in (weights, tf.constant(weights), tf.Variable(weights)):
    ours = nf4.quantize(given)
    np.testing.assert_array_equal(ours.packed, packed.numpy().reshape(-1))
  again = nf4.dequantize(ours, tf.bfloat16)
  assert again.dtype == tf.bfloat16
  theirs = bitsandbytes.dequantize_4bit(packed, state).float().numpy()
  np.testing.assert_array_equal(tf.cast(again, tf.float32), theirs)


def test_variables_take_the_place_of_arrays():
  weights = _weights((40, 48))
  quantized = nf4.quantize(weights, double_quantization=True)
  variables = {name: tf.Variable(array, trainable=False) for name, array in quantized.arrays.items()}
  assert {name: variable.dtype.name for name, variable in variables.items()} == {
    'packed': 'uint8',
    'scales': 'uint8',
    'scale_scales': 'float32',
    'offset': 'float32',
  }
  of_variables = quantized._replace(**variables)
  np.testing.assert_array_equal(nf4.dequantize(of_variables), nf4.dequantize(quantized))
  taken = sum(np.asarray(array).nbytes for array in quantized.arrays.values())
  assert taken == nf4.bytes_of((40, 48), double_quantization=True) == 40 * 48 // 2 + 30 + 4 + 4


def test_error_is_at_most_half_the_widest_gap():
  weights = _weights((256, 256))
  again = nf4.dequantize(nf4.quantize(weights)).numpy()
  bounds = np.abs(weights.reshape(-1, 64)).max(axis=1) * (nf4.CODE_BOOK[1] - nf4.CODE_BOOK[0]) / 2
  assert (np.abs(again - weights).reshape(-1, 64).max(axis=1) <= bounds * (1 + 1e-6)).all()


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_name(bad):
  weights = _weights((8, 100))
  weights[7, 99] = bad
  with pytest.raises(errors.UserError, match='layers.0.q_proj: has values that are not finite'):
    nf4.quantize(weights, name='layers.0.q_proj')


def test_what_cannot_be_quantized_is_refused():
  with pytest.raises(errors.UserError, match='block_size: expected an even number'):
    nf4.quantize(_weights(8), block_size=7)
  with pytest.raises(errors.UserError, match='w: expected floating-point weights, got int64'):
    nf4.quantize(np.arange(8), name='w')
  with pytest.raises(errors.UserError, match='w: expected floating-point weights'):
    nf4.quantize(np.zeros([0, 8], np.float32), name='w')
  with pytest.raises(errors.UserError, match='w: weights are quantized by their values'):
    tf.function(lambda weights: nf4.quantize(weights, name='w').packed, autograph=False)(tf.zeros(8))
