"""Linear layers of a decoder whose kernels are kept in 4 or 8 bits, and unpacked whenever they are used."""

from collections.abc import Mapping
import dataclasses
import functools
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from official_ext.base import base_config
from official_ext.base import errors
from official_ext.language.modeling import int8
from official_ext.language.modeling import layers
from official_ext.language.modeling import mlp
from official_ext.language.modeling import model_weights
from official_ext.language.modeling import nf4
from official_ext.training.model_parts import clusters
from official_ext.training.model_parts import remat

_FORMATS: dict[str, ModuleType] = {'nf4': nf4, 'int8': int8}
METHODS = ('none', *_FORMATS)


@dataclasses.dataclass
class QuantizationConfig(base_config.Config):
  """How the kernels of linear layers are kept: constants, the base of adapters.

  Attributes:
    method: none, nf4 (4 bits: QLoRA) or int8.
    block_size: Of nf4: weights that share a scale.
    double_quantization: Of nf4: whether the scales are quantized as well.
    skip_modules: The last names of layers that are unchanged.

  Example:

    >>> ext.QuantizationConfig(method='nf4').block_size
    64
  """

  RANGES: ClassVar[Mapping[str, str]] = {'block_size': '[2, inf)'}
  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'method': METHODS}

  method: str = 'none'
  block_size: int = 64
  double_quantization: bool = True
  skip_modules: tuple[str, ...] = ('lm_head',)


def _pack(kernel, name, config):
  """A kernel [in, out] in few bits; it lies [out, in]."""
  options: dict[str, object] = {}
  if config.method == 'nf4':
    options = {'block_size': config.block_size, 'double_quantization': config.double_quantization}
  return _FORMATS[config.method].quantize(kernel.T, name=f'{name}/kernel', **options)


class PackedKernel(layers.MetaVariable):
  """A kernel that is packed as it arrives, row by row if layers are stacked.

  Attributes:
    form: the packed form of a row, without its arrays.
    arrays: name in `form` -> the array, of all rows.
  """

  def __init__(self, linear: layers.Linear, config: QuantizationConfig):
    super().__init__(linear.kernel.shape, linear.kernel.dtype)
    self.form: Any = None
    self.arrays: dict[str, layers.MetaVariable] = {}
    self._num_rows = linear.num_rows
    self._pack = lambda value: _pack(value, linear.name, config)

  def assign(self, value: np.ndarray, row: tf.Tensor) -> None:
    """Packs the value, or one row."""
    packed = self._pack(value.astype(self.dtype.as_numpy_dtype, copy=False))
    if self.form is None:
      self.form = packed._replace(**dict.fromkeys(packed.arrays))
    for name, array in packed.arrays.items():
      shape = np.shape(array) if row is None else (self._num_rows, *np.shape(array))
      self.arrays.setdefault(name, layers.MetaVariable(shape, array.dtype)).assign(array, row)


class QuantizedLinear(layers.Part):
  """x kernel + bias, the kernel packed. It lies [out, in], as PyTorch's does, so that its blocks are bitsandbytes'.

  Attributes:
    input_size: of `x`.
    output_size: of the result.
    bias: [out], or None.
    config: how it is packed.
  """

  is_packed = True

  def __init__(self, linear: layers.Linear, config: QuantizationConfig):
    """Packs a layer's kernel.

    Args:
      linear: the layer, whose place this one takes.
      config: how; its `method` is not 'none'.
    """
    super().__init__(name=linear.name, num_rows=linear.num_rows, dtype=linear._dtype_policy)
    self.input_size, self.output_size = linear.input_size, linear.output_size
    self.config = config.replace()
    self._format = _FORMATS[config.method]
    packed = linear.kernel
    if not isinstance(packed, PackedKernel):
      packed = PackedKernel(linear, config)
      for row in range(linear.num_rows) if linear.num_rows else [None]:
        packed.assign((linear.kernel if row is None else linear.kernel[row]).numpy(), row)
    self._form, self._names = packed.form, tuple(packed.arrays)
    for name, array in packed.arrays.items():
      self._add_constant(name, array.tensor())
    self.bias = None
    if linear.bias is not None:
      self._add_constant('bias', tf.convert_to_tensor(linear.bias))
    self.is_frozen = True

  def _add_constant(self, name, values):
    self.put_weight(name, values, values.dtype, trainable=False)

  def is_as(self, config: QuantizationConfig) -> bool:
    """Whether a configuration would have packed it in the same way."""
    names = ('method', 'block_size', 'double_quantization') if config.method == 'nf4' else ('method',)
    is_same = all(getattr(config, name) == getattr(self.config, name) for name in names)
    return is_same and self.name.rpartition('/')[2] not in config.skip_modules

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """[..., in] -> [..., out], in the compute dtype."""
    y = self.product(x)
    return y if self.bias is None else y + self.value(self.bias)

  def product(self, x: tf.Tensor) -> tf.Tensor:
    """X kernel, in the compute dtype."""
    arrays = [remat.value_of(getattr(self, name)) for name in self._names]
    unpack_after = _unpacking(self._format, self._form, self._names, self.compute_dtype)
    return layers.product_of_packed(x, [arrays], unpack_after, transpose_b=True)

  def matrix(self) -> tf.Tensor:
    """The kernel, float32 [in, out]; [rows, in, out] of stacked layers, outside of their loop."""
    arrays = [remat.value_of(getattr(self, name)) for name in self._names]
    rank = 2 if self._format is int8 else 1  # Of the first array of a single layer.
    if self.num_rows and arrays[0].shape.rank > rank:
      return tf.stack([self._matrix([array[row] for array in arrays]) for row in range(self.num_rows)])
    return self._matrix(arrays)

  def _matrix(self, arrays):
    return tf.transpose(self._unpacked(arrays, tf.float32))

  def _unpacked(self, arrays, dtype):
    """[out, in]."""
    return self._format.dequantize(self._form._replace(**dict(zip(self._names, arrays))), dtype)

  def num_weights(self) -> int:
    """How many numbers the layer represents, packed or not."""
    return max(1, self.num_rows) * self.output_size * (self.input_size + (self.bias is not None))


@functools.cache
def _unpacking(packing, form, names, dtype):
  """A function of (a tensor that it waits for, the arrays of these names): the kernel, [out, in]. See clusters.py."""

  def unpacked(*arrays):
    return packing.dequantize(form._replace(**dict(zip(names, arrays))), dtype)

  return clusters.constant_cluster(unpacked)


def expect(module: tf.Module, config: QuantizationConfig) -> None:
  """Lets kernels that are still to come be packed as they arrive; `quantize` with the same config is to follow.

  Args:
    module: a `LanguageModel` or `Decoder` with unmade weights.
    config: how.
  """
  for _, _, linear in _to_quantize(module, config):
    linear.kernel = PackedKernel(linear, config)


def quantize(module: tf.Module, config: QuantizationConfig) -> None:
  """Packs the kernels of a decoder's linear layers, one after the other.

  Args:
    module: a `LanguageModel` or `Decoder`.
    config: how; nothing happens if its `method` is 'none'.

  Raises:
    UserError: a kernel has numbers that are not finite, or is packed in another way; with its name. Or the decoder has
      experts.
  """
  for part in model_weights.layer_parts(module):
    if isinstance(part, QuantizedLinear) and config.method != 'none' and not part.is_as(config):
      raise errors.UserError(f'quantization: {part.name} is packed otherwise already, as {part.config.method}')
  for parent, attribute, linear in _to_quantize(module, config):
    setattr(parent, attribute, QuantizedLinear(linear, config))


def _to_quantize(module, config):
  """(parent, attribute, layer) of each linear layer whose kernel is to be packed."""
  if config.method == 'none':
    return
  for part in model_weights.layer_parts(module):
    if isinstance(part, mlp.Experts):
      raise errors.UserError(
        f'quantization.method: {config.method}: {part.name}: experts are not packed, and they are most of the weights'
      )
  for parent in (module, *model_weights.layer_parts(module)):
    for attribute, child in list(vars(parent).items()):
      if isinstance(child, layers.Linear) and child.name.rpartition('/')[2] not in config.skip_modules:
        yield parent, attribute, child


def restore(linear: QuantizedLinear) -> layers.Linear:
  """A linear layer with the kernel of a quantized one, unpacked, and trainable."""
  plain = layers.Linear(
    linear.input_size,
    linear.output_size,
    linear.bias is not None,
    'zeros',
    name=linear.name,
    num_rows=linear.num_rows,
    dtype=linear._dtype_policy,
  )
  plain.kernel.assign(tf.cast(linear.matrix(), plain.kernel.dtype))
  if plain.bias is not None:
    plain.bias.assign(tf.cast(linear.bias, plain.bias.dtype))
  plain.is_merged = True
  return plain
