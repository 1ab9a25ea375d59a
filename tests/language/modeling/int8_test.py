"""Weights in 8 bits: the same as bitsandbytes' rows, eager and under XLA."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.language.modeling import int8

pytest.importorskip('bitsandbytes', reason="needs the test extra: pip install 'official-ext[test]'")
import bitsandbytes.functional as bitsandbytes
import torch


@pytest.mark.parametrize('shape', [(48, 64), (7, 33), (1, 1)])
@pytest.mark.parametrize('dtype', [np.float32, np.float16])
def test_values_and_scales_are_bitsandbytes(shape, dtype):
  weights = np.random.default_rng(1).standard_normal(shape).astype(dtype)
  values, scales, _ = bitsandbytes.int8_vectorwise_quant(torch.tensor(weights))
  ours = int8.quantize(weights)
  np.testing.assert_array_equal(ours.values, values.numpy())
  np.testing.assert_array_equal(ours.scales, scales.numpy())
  theirs = bitsandbytes.int8_vectorwise_dequant(values, scales).numpy()
  for dequantize in (int8.dequantize, tf.function(int8.dequantize, jit_compile=True)):
    np.testing.assert_allclose(dequantize(ours), theirs, rtol=1e-7, atol=1e-7)


def test_axis_decides_which_values_share_a_scale():
  weights = np.random.default_rng(2).standard_normal((3, 8, 5)).astype(np.float32)
  of_columns = int8.quantize(weights, axis=1)
  assert of_columns.scales.shape == (3, 5)
  of_rows = int8.quantize(weights.transpose(0, 2, 1))
  np.testing.assert_array_equal(of_columns.values, of_rows.values.transpose(0, 2, 1))
  again = int8.dequantize(of_columns).numpy()
  np.testing.assert_array_equal(again, int8.dequantize(of_rows).numpy().transpose(0, 2, 1))
  assert (np.abs(again - weights) <= np.abs(weights).max(axis=1, keepdims=True) * (0.5 / 127) * (1 + 1e-5)).all()
  assert int8.bytes_of(weights.shape, axis=1) == weights.size + 4 * 15


def test_rows_of_zeros_come_back_and_half_precision_is_given():
  again = int8.dequantize(int8.quantize(np.zeros((2, 4), np.float32)), tf.bfloat16)
  assert again.dtype == tf.bfloat16
  np.testing.assert_array_equal(tf.cast(again, tf.float32), np.zeros((2, 4)))


def test_what_cannot_be_quantized_is_refused():
  with pytest.raises(errors.UserError, match='layers.0.q_proj: has values that are not finite'):
    int8.quantize(np.array([[1.0, np.inf]], np.float32), name='layers.0.q_proj')
  with pytest.raises(errors.UserError, match=r'w: has shape \(4,\), and no axis -2'):
    int8.quantize(np.ones(4, np.float32), axis=-2, name='w')
