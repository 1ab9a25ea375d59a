"""Weights in 8 bits, one scale a row, as bitsandbytes' `int8_vectorwise_quant` has them.

Dettmers et al. 2022, https://arxiv.org/abs/2208.07339, without its way with outliers: with the greatest magnitude of
a row as its scale, x is kept as round(127 * x / scale).

Example:

  >>> weights = np.array([[0.5, -1.0], [20.0, 10.0]], np.float32)
  >>> quantized = ext.int8.quantize(weights)
  >>> quantized.values.tolist(), quantized.scales.tolist()
  ([[64, -127], [127, 64]], [1.0, 20.0])
  >>> [[round(float(x), 2) for x in row] for row in ext.int8.dequantize(quantized)]
  [[0.5, -1.0], [20.0, 10.08]]
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.language.modeling import nf4

_STEP = np.float32(7.874015718698502e-3)  # 1 / 127, as bitsandbytes has it.


class Quantized(NamedTuple):
  """Weights in 8 bits: an argument of `dequantize` or of a tf.function, with arrays of numpy, tensors or variables.

  Attributes:
    values: int8 of the shape of the weights, from -127 to 127.
    scales: float32, of that shape without `axis`.
    axis: the axis whose values share a scale, counted from the end: negative.
  """

  values: np.ndarray
  scales: np.ndarray
  axis: int = -1

  @property
  def arrays(self) -> dict[str, np.ndarray]:
    """The arrays by name: `quantized._replace(**variables)` puts others in their place."""
    return {'values': self.values, 'scales': self.scales}


def bytes_of(shape: Sequence[int], axis: int = -1) -> int:
  """The memory of weights in 8 bits, in bytes: values and float32 scales. Nothing is allocated.

  Args:
    shape: of the weights.
    axis: the axis whose values share a scale.
  """
  size = math.prod(shape)
  return size + 4 * (size // shape[axis])


def quantize(weights: object, axis: int = -1, name: str = 'weights') -> Quantized:
  """Rounds weights to 8 bits.

  Args:
    weights: floating-point with at least one axis, in numpy or as an eager tensor or variable; bfloat16 too.
    axis: the axis whose values share a scale: of a matrix [out, in], -1 gives every output its own.
    name: of the weights, for errors.

  Returns:
    numpy arrays. A row of zeros comes back as zeros.

  Raises:
    UserError: `weights` is empty, has no values yet, or has some that are not finite; or there is no such axis.
  """
  weights = nf4.as_array(weights, name)
  if not -weights.ndim <= axis < weights.ndim:
    raise errors.UserError(f'{name}: has shape {weights.shape}, and no axis {axis}')
  axis = axis - weights.ndim if axis >= 0 else axis
  weights = weights.astype(np.float32)
  scales = np.abs(weights).max(axis=axis, keepdims=True)
  if not np.isfinite(scales).all():
    raise errors.UserError(f'{name}: has values that are not finite, which no scale can hold')
  factors = np.float32(127) / np.where(scales > 0, scales, np.float32(1))
  return Quantized(np.rint(weights * factors).astype(np.int8), scales.squeeze(axis), axis)


def dequantize(quantized: Quantized, dtype: tf.DType | str | None = tf.float32) -> tf.Tensor:
  """The weights again, nearly, as TensorFlow computes them, under XLA or not.

  Args:
    quantized: the weights.
    dtype: of the result; the product with the scale is computed in float32.

  Returns:
    `dtype` of the weights' shape. No gradient flows through it.
  """
  scales = tf.expand_dims(tf.convert_to_tensor(quantized.scales), quantized.axis)
  return tf.cast(tf.cast(quantized.values, tf.float32) * scales * _STEP, dtype)
