"""Weights in 4 bits: NF4, the NormalFloat of QLoRA, bit for bit as bitsandbytes packs them on a CPU.

    quantized = nf4.quantize(weights, double_quantization=True)    # once, in numpy
    weights = nf4.dequantize(quantized)                            # TensorFlow: inside of a step, eager or under XLA

Dettmers et al. 2023, https://arxiv.org/abs/2305.14314. The values, in row-major order, are cut into blocks. A block
keeps its greatest magnitude as a scale, and for each value x the number of the entry of `CODE_BOOK` nearest to
x / scale. Double quantisation keeps the scales in 8 bits: their mean is subtracted, and blocks of 256 of them keep a
separate scale, and numbers of entries of `SCALE_CODE_BOOK` (https://arxiv.org/abs/2110.02861).

Example:

  >>> weights = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
  >>> quantized = ext.nf4.quantize(weights)
  >>> weights.nbytes, quantized.packed.nbytes + quantized.scales.nbytes
  (512, 72)
  >>> bool(tf.reduce_all(tf.abs(ext.nf4.dequantize(quantized) - weights) < 0.16))  # Codes are 0.31 apart at most.
  True
  >>> round(8 * ext.nf4.bytes_of([4096, 4096], double_quantization=True) / 4096**2, 2)  # Bits a weight.
  4.13
"""

from collections.abc import Iterator, Sequence
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_ext.base import errors

CODE_BOOK = (
  -1.0,
  -0.6961928009986877,
  -0.5250730514526367,
  -0.39491748809814453,
  -0.28444138169288635,
  -0.18477343022823334,
  -0.09105003625154495,
  0.0,
  0.07958029955625534,
  0.16093020141124725,
  0.24611230194568634,
  0.33791524171829224,
  0.44070982933044434,
  0.5626170039176941,
  0.7229568362236023,
  1.0,
)
# The two values of each byte: one look-up for both.
_PAIRS = np.stack([np.repeat(CODE_BOOK, 16), np.tile(CODE_BOOK, 16)], axis=-1).astype(np.float32)
_SCALES_PER_BLOCK = 256
_CELLS = 65535  # Steps from -1 to 1 of the grid on which bitsandbytes looks for the nearest of 256 entries.
_PART = 2**20  # Values that are quantized at once, which bounds the memory that this takes.
_TINIEST = np.float32(1e-38)


def _scale_code_book() -> np.ndarray:
  """The 256 values of bitsandbytes' signed dynamic type: decades from 1e-6 to 1, the greater cut the finer."""
  values = [0.0, 1.0]
  for exponent in range(7):
    # As torch.linspace has it, to the last bit: from both ends to the middle, each edge rounded once.
    count, first = 2**exponent, np.float32(0.1)
    up = np.arange(count + 1, dtype=np.float64)
    step = np.float64((np.float32(1) - first) / np.float32(count))
    edges = np.where(up < (count + 1) // 2, first + step * up, 1 - step * up[::-1]).astype(np.float32)
    middles = (edges[:-1] + edges[1:]) / np.float32(2) * np.float32(10.0 ** (exponent - 6))
    values += [*middles, *-middles]
  return np.sort(np.array(values, np.float32))


SCALE_CODE_BOOK = _scale_code_book()


class Quantized(NamedTuple):
  """Weights in 4 bits: an argument of `dequantize` or of a tf.function, with arrays of numpy, tensors or variables.

  Attributes:
    packed: uint8 [ceil(n / 2)]: two of the n values a byte, the first in the upper four bits.
    scales: of each block float32 [blocks]; or uint8, numbers of entries of `SCALE_CODE_BOOK`, if quantized again.
    shape: of the weights.
    block_size: values that share a scale; the last block may have fewer.
    scale_scales: None, or float32 [ceil(blocks / 256)]: the scale of each 256 scales.
    offset: None, or float32 []: the mean of the scales.
  """

  packed: np.ndarray
  scales: object
  shape: tuple[int, ...]
  block_size: int = 64
  scale_scales: object = None
  offset: np.ndarray | np.floating | None = None

  @property
  def arrays(self) -> dict[str, np.ndarray | np.floating]:
    """The arrays that there are, by name: `quantized._replace(**variables)` puts others in their place."""
    names = ('packed', 'scales', 'scale_scales', 'offset')
    return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def bytes_of(shape: Sequence[int], block_size: int = 64, double_quantization: bool = False) -> int:
  """The memory of weights in 4 bits, in bytes: codes and scales. Nothing is allocated.

  Args:
    shape: of the weights.
    block_size: values that share a scale.
    double_quantization: whether the scales are quantized as well.
  """
  size = math.prod(shape)
  blocks = -(-size // block_size)
  scales = blocks + 4 * -(-blocks // _SCALES_PER_BLOCK) + 4 if double_quantization else 4 * blocks
  return -(-size // 2) + scales


def quantize(
  weights: npt.ArrayLike, block_size: int = 64, double_quantization: bool = False, name: str = 'weights'
) -> Quantized:
  """Packs weights.

  Args:
    weights: floating-point of any shape, in numpy or as an eager tensor or variable; bfloat16 and float16 too.
    block_size: values that share a scale: an even number.
    double_quantization: whether the scales are quantized as well: 4.13 bits a weight, not 4.5, with blocks of 64.
    name: of the weights, for errors.

  Returns:
    numpy arrays. A block of zeros comes back as zeros.

  Raises:
    UserError: `weights` is empty, has no values yet, or has some that are not finite; or `block_size` is not even.
  """
  if block_size < 2 or block_size % 2:
    raise errors.UserError(f'block_size: expected an even number from 2 up, got {block_size}')
  flat = as_array(weights, name).reshape(-1)
  packed = np.empty(-(-flat.size // 2), np.uint8)
  scales = np.empty(-(-flat.size // block_size), np.float32)
  for start, values in _parts(flat, block_size):
    numbers, part_scales = _nearest_of_16(values, block_size, name)
    packed[start // 2 : start // 2 + -(-len(values) // 2)] = numbers[::2] << 4 | numbers[1::2]
    scales[start // block_size :][: len(part_scales)] = part_scales
  shape = tuple(np.shape(weights))
  if not double_quantization:
    return Quantized(packed, scales, shape, block_size)
  offset = np.float32(scales.mean(dtype=np.float64))
  numbers, scale_scales = _nearest_of_256(scales - offset)
  return Quantized(packed, numbers, shape, block_size, scale_scales, offset)


def as_array(weights: object, name: str) -> np.ndarray:
  """Weights in numpy, of the type that they have.

  Raises:
    UserError: the values are empty, symbolic, or not floating-point numbers.
  """
  if tf.is_tensor(weights) and not hasattr(weights, 'numpy'):
    raise errors.UserError(f'{name}: weights are quantized by their values, which a tensor of a graph has not yet')
  array = np.asarray(weights)
  if not array.size or not tf.as_dtype(array.dtype).is_floating:
    raise errors.UserError(f'{name}: expected floating-point weights, got {array.dtype} of shape {array.shape}')
  return array


def _parts(flat: np.ndarray, block_size: int) -> Iterator[tuple[int, np.ndarray]]:
  """Parts of whole blocks, and where they begin, as float32."""
  step = block_size * max(1, _PART // block_size)
  for start in range(0, flat.size, step):
    yield start, flat[start : start + step].astype(np.float32)


def _nearest_of_16(values: np.ndarray, block_size: int, name: str) -> tuple[np.ndarray, np.ndarray]:
  """Numbers of entries of `CODE_BOOK`, of an even count, and the scales of the blocks."""
  count = -(-len(values) // block_size)
  blocks = np.pad(values, (0, count * block_size - len(values))).reshape(count, block_size)
  scales = np.abs(blocks).max(axis=1)
  if not np.isfinite(scales).all():
    raise errors.UserError(f'{name}: has values that are not finite, which no scale can hold')
  shares = (np.clip(blocks * (1 / np.maximum(scales, _TINIEST))[:, None], -1, 1)).reshape(-1)
  if len(values) % block_size:  # bitsandbytes divides the values of a last, shorter block, and gives it a scale > 0.
    scales[-1] = max(scales[-1], _TINIEST)
    shares[-block_size:] = np.clip(blocks[-1] / scales[-1], -1, 1)
  code_book = np.array(CODE_BOOK, np.float32)
  numbers = np.zeros(shares.shape, np.uint8)
  for bound in (code_book[1:] + code_book[:-1]) / 2:  # Faster than a binary search by a factor of 9.
    numbers += shares > bound
  return numbers[: 2 * -(-len(values) // 2)], scales


def _nearest_of_256(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Numbers of entries of `SCALE_CODE_BOOK`, and the scale of each 256 values.

  The number found belongs to the nearest point of bitsandbytes' grid, not to the value itself. If all 256 are 0, the
  entries do not matter, and bitsandbytes takes the first.
  """
  count = -(-len(values) // _SCALES_PER_BLOCK)
  blocks = np.pad(values, (0, count * _SCALES_PER_BLOCK - len(values))).reshape(count, _SCALES_PER_BLOCK)
  scales = np.abs(blocks).max(axis=1)
  shares = blocks / np.maximum(scales, _TINIEST)[:, None]
  half = np.float32(_CELLS / 2)
  points = ((shares + np.float32(1)) * half + np.float32(0.5)).astype(np.int32)
  bounds = (SCALE_CODE_BOOK[1:] + SCALE_CODE_BOOK[:-1]) / 2
  numbers = np.searchsorted(bounds, points.astype(np.float32) / half - np.float32(1))
  numbers = np.where(scales[:, None] == 0, 0, numbers).astype(np.uint8)
  return numbers.reshape(-1)[: len(values)], scales


def dequantize(quantized: Quantized, dtype: tf.DType | str | None = tf.float32) -> tf.Tensor:
  """The weights again, nearly, as TensorFlow computes them: in a step on one replica or many, under XLA or not.

  Args:
    quantized: the weights.
    dtype: of the result; the product of entry and scale is computed in float32.

  Returns:
    `dtype` of shape `quantized.shape`. No gradient flows through it.
  """
  values = tf.reshape(tf.gather(tf.constant(_PAIRS), tf.cast(quantized.packed, tf.int32)), [-1])
  size, block_size = math.prod(quantized.shape), quantized.block_size
  count = -(-size // block_size)
  missing = count * block_size - 2 * -(-size // 2)
  if missing:
    values = tf.pad(values, [[0, missing]])
  values = tf.reshape(values, [count, block_size]) * tf.reshape(_scales(quantized, count), [count, 1])
  values = tf.cast(values, dtype)
  return tf.reshape(values if size == count * block_size else tf.reshape(values, [-1])[:size], quantized.shape)


def _scales(quantized: Quantized, count: int) -> tf.Tensor:
  """The scales of the blocks: float32 [count]."""
  if quantized.scale_scales is None:
    return tf.convert_to_tensor(quantized.scales)
  numbers = tf.cast(quantized.scales, tf.int32)
  missing = -count % _SCALES_PER_BLOCK
  if missing:
    numbers = tf.pad(numbers, [[0, missing]])
  entries = tf.gather(tf.constant(SCALE_CODE_BOOK), tf.reshape(numbers, [-1, _SCALES_PER_BLOCK]))
  # The bound changes nothing, but stands between product and sum: else XLA fuses them, and rounds once, not twice.
  scales = tf.maximum(entries * tf.reshape(quantized.scale_scales, [-1, 1]), np.float32(-1e30)) + quantized.offset
  return tf.reshape(scales, [-1])[:count] if missing else tf.reshape(scales, [-1])
