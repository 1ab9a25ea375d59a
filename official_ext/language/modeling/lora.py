"""LoRA: small trained matrices next to frozen kernels.

    lora.attach(model, lora.LoraConfig(r=8), quantized_linear.QuantizationConfig(method='nf4'))
    ...                                             # trains model.trainable_variables: the adapters alone
    peft_folders.save(model, 'adapter')             # for peft; or:
    lora.merge(model)                               # and pretrained.save(model, 'model')

Hu et al. 2021, https://arxiv.org/abs/2106.09685: a kernel W [in, out] becomes W + s A B, with A [in, r], B [r, out] and
s = lora_alpha / r. B starts at 0, so that the model starts unchanged.

Example:

  >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
  >>> model, ids = ext.LanguageModel(config), tf.constant([[1, 2, 3]])
  >>> logits = model(ids)
  >>> ext.lora.attach(model, ext.LoraConfig(r=2, target_modules=('q_proj', 'v_proj')))
  >>> [tuple(variable.shape) for variable in model.trainable_variables]  # A and B of two layers.
  [(16, 2), (2, 16), (16, 2), (2, 16)]
  >>> bool(tf.reduce_all(model(ids) == logits))  # B starts at 0.
  True
  >>> ext.lora.merge(model)
  >>> ext.lora.adapters(model)
  []
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import math
import re
import threading
from typing import Any, ClassVar
import zlib

import tensorflow as tf
import tf_keras

from official_ext.base import base_config
from official_ext.base import errors
from official_ext.language.modeling import decoder as decoder_lib
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import layers
from official_ext.language.modeling import mlp
from official_ext.language.modeling import model_weights
from official_ext.language.modeling import quantized_linear
from official_ext.training.model_parts import remat

ALL_LINEAR = 'all-linear'
_LINEAR = (layers.Linear, quantized_linear.QuantizedLinear)


class _Local(threading.local):
  """Of one thread, as replicas are traced in separate threads: the ids of the adapters that are switched off."""

  def __init__(self):
    self.switched_off: frozenset[int] = frozenset()


_LOCAL = _Local()


@dataclasses.dataclass
class LoraConfig(base_config.Config):
  """Adapters, in the words of peft's LoraConfig.

  Attributes:
    r: The rank: the inner size of the two matrices.
    lora_alpha: By which, over r, their product is multiplied.
    lora_dropout: The rate of dropout on the input of the adapters, in training.
    target_modules: Which linear layers get one. Each is a name such as q_proj, the end of a name such as
      self_attn.q_proj, or a regular expression of a whole name, ours (decoder.blocks.0.self_attn.q_proj) or Hugging
      Face's (model.layers.0.self_attn.q_proj); all-linear for the linear layers of all blocks.
    use_rslora: Whether the product is multiplied by lora_alpha / sqrt(r): Kalajdzievski 2023,
      https://arxiv.org/abs/2312.03732.
    use_dora: Whether the length of each column is trained by itself: Liu et al. 2024, https://arxiv.org/abs/2402.09353.
    modules_to_save: Modules that are trained whole, and saved with the adapters: Hugging Face's names or their ends,
      such as lm_head, embed_tokens, norm.

  Example:

    >>> ext.LoraConfig(r=16, lora_alpha=32.0, target_modules=('q_proj', 'v_proj')).r
    16
  """

  RANGES: ClassVar[Mapping[str, str]] = {'r': '[1, inf)', 'lora_alpha': '(0, inf)', 'lora_dropout': '[0, 1)'}

  r: int = 8
  lora_alpha: float = 16.0
  lora_dropout: float = 0.0
  target_modules: tuple[str, ...] = (ALL_LINEAR,)
  use_rslora: bool = False
  use_dora: bool = False
  modules_to_save: tuple[str, ...] = ()


def scaling_of(config: LoraConfig) -> float:
  """The factor on the product A B: lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora`."""
  return config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)


class LoraLinear(layers.Part):
  """A linear layer with an adapter: x W + s x A B + bias.

  With DoRA: m / |W + s A B| * (x W + s x A B) + bias, |.| the length of each column, which no gradient goes through.

  Attributes:
    base: the layer, a `Linear` or a `QuantizedLinear`, frozen.
    lora_a: A, [in, r].
    lora_b: B, [r, out].
    lora_magnitude: m, [out]; None without DoRA.
    scaling: s.
  """

  def __init__(self, base: Any, config: LoraConfig):
    super().__init__(name=base.name, num_rows=base.num_rows, dtype=base._dtype_policy)
    self.input_size, self.output_size = base.input_size, base.output_size
    self.config = config
    self.scaling = scaling_of(config)
    self.dropout_rate = config.lora_dropout
    in_block = re.sub(r'.*blocks/(\d+/)?', '', base.name)  # The same, whether the layers are stacked or not.
    self._site = zlib.crc32(in_block.encode()) & 0x7FFFFFFF
    bound = base.input_size**-0.5  # The initial values of PyTorch's linear layers, and so of peft's.
    initializer = tf_keras.initializers.RandomUniform(-bound, bound)
    self.lora_a = self.make_weight('lora_a', (base.input_size, config.r), initializer)
    self.lora_b = self.make_weight('lora_b', (config.r, base.output_size), 'zeros')
    self.lora_magnitude = None
    if config.use_dora:
      self.lora_magnitude = self.make_weight('lora_magnitude', (base.output_size,), 'zeros')
      self.lora_magnitude.assign(tf.cast(lengths(base.matrix()), self.lora_magnitude.dtype))
    self.base = base

  @property
  def bias(self) -> tf.Variable | None:
    """The frozen layer's bias: [out], or None."""
    return self.base.bias

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """[..., in] -> [..., out], in the compute dtype."""
    y = self.base.product(x)
    if id(self) not in _LOCAL.switched_off:
      y = self._adapted(x, y)
    return y if self.bias is None else y + self.value(self.bias)

  def _adapted(self, x, y):
    """The layer's output for x, without the bias, if the frozen layer's is y."""
    dropped = layers.dropout(x, self.dropout_rate, remat.seed_here(), self._site)
    added = layers.product(dropped, self.value(self.lora_a), self.value(self.lora_b))
    added *= tf.cast(self.scaling, added.dtype)
    if self.lora_magnitude is None:
      return y + added
    factor = tf.cast(self._factor(), y.dtype)
    # As peft has it: only DoRA's addition is computed without dropout.
    of_dropped = y if dropped is x else self.base.product(dropped)
    return y + (factor - 1) * of_dropped + factor * added

  def _factor(self):
    """By which DoRA multiplies each column, m / |W + s A B|: float32 [out]."""
    found = tf.stop_gradient(lengths(self.base.matrix() + self._delta()))
    return self.value(self.lora_magnitude, tf.float32) / found

  def _delta(self):
    """The adapter's addition, s A B: float32 [in, out], or [rows, in, out]."""
    return self.scaling * tf.matmul(self.value(self.lora_a, tf.float32), self.value(self.lora_b, tf.float32))

  def matrix(self) -> tf.Tensor:
    """The kernel that the layer and its adapter amount to: float32 [in, out], or [rows, in, out]."""
    merged = self.base.matrix() + self._delta()
    if self.lora_magnitude is None:
      return merged
    return merged * (self.value(self.lora_magnitude, tf.float32) / lengths(merged))[..., tf.newaxis, :]


def lengths(matrix):
  """The Euclidean norms of the columns, which DoRA trains.

  Args:
    matrix: floating-point [..., in, out].

  Returns:
    [..., out], of the same type.
  """
  return tf.sqrt(tf.reduce_sum(tf.square(matrix), axis=-2))


def attach(
  module: tf.Module,
  config: LoraConfig,
  quantization: quantized_linear.QuantizationConfig | None = None,
  frozen_dtype: tf.DType | str | None = None,
) -> None:
  """Adds adapters to linear layers, and freezes everything else.

  Args:
    module: a `LanguageModel`; or a `Decoder`, so that a custom head on it is trained too.
    config: the adapters.
    quantization: how the kernels are kept; None for unchanged.
    frozen_dtype: in which frozen weights are kept that are not quantized, such as bfloat16; None for unchanged.

  Raises:
    UserError: a pattern matches no layer, or some rows of stacked ones; or there are adapters already.
  """
  _check_plain(module)
  chosen = dict.fromkeys(_chosen(module, config.target_modules), config)
  attach_to(module, chosen, quantization, frozen_dtype, config.modules_to_save)


def attach_to(
  module: tf.Module,
  chosen: Mapping[str, LoraConfig],
  quantization: quantized_linear.QuantizationConfig | None = None,
  frozen_dtype: tf.DType | str | None = None,
  modules_to_save: Sequence[str] = (),
) -> None:
  """Does the same as `attach`, with a separate adapter for each linear layer.

  Args:
    module: see `attach`.
    chosen: name of a layer -> its adapter; `target_modules` and `modules_to_save` of it are not looked at.
    quantization: see `attach`.
    frozen_dtype: see `attach`.
    modules_to_save: see `LoraConfig`.

  Raises:
    UserError: there are adapters already, or a module cannot be trained whole.
  """
  _check_plain(module)
  quantized_linear.quantize(module, quantization or quantized_linear.QuantizationConfig())
  saved = model_weights.find_saved_modules(module, modules_to_save) if modules_to_save else []
  for part in saved:
    if part.name in chosen:
      raise errors.UserError(f'modules_to_save: {part.name}: has an adapter by target_modules; name it in one of them')
    model_weights.mark_saved(part)
  for parent in (module, *model_weights.layer_parts(module)):
    for attribute, child in list(vars(parent).items()):
      if isinstance(child, _LINEAR) and child.name in chosen:
        setattr(parent, attribute, LoraLinear(child, chosen[child.name]))
  model_weights.freeze(module, leave_out=(LoraLinear,), dtype=frozen_dtype)
  for part in model_weights.layer_parts(module):
    if isinstance(part, decoder_lib.Decoder) and any(config.lora_dropout for config in chosen.values()):
      part.draws = True


def _check_plain(module):
  if adapters(module):
    raise errors.UserError('lora: the model has adapters already; merge them first')


def adapters(module: tf.Module) -> list[LoraLinear]:
  """The linear layers with an adapter; [] without adapters.

  Args:
    module: the argument of `attach`, or a model that holds it.
  """
  return [part for part in model_weights.layer_parts(module) if isinstance(part, LoraLinear)]


@contextlib.contextmanager
def switched_off(module: tf.Module) -> Iterator[None]:
  """Within, the model computes as without its adapters: a reference that needs no additional weights.

  It holds for calls, and for functions that are traced within; one that was traced before has its adapters. The values
  computed within have no gradient: its layers may be computed once more for that.

  Args:
    module: the argument of `attach`.
  """
  before = _LOCAL.switched_off
  _LOCAL.switched_off = before | {id(adapter) for adapter in adapters(module)}
  try:
    yield
  finally:
    _LOCAL.switched_off = before


def merge(module: tf.Module) -> None:
  """Makes a plain model again, which `pretrained` saves: kernels unpacked, adapters added, all trainable.

  Args:
    module: the argument of `attach`, or a model that holds it.
  """
  for parent in (module, *model_weights.layer_parts(module)):
    for attribute, child in list(vars(parent).items()):
      if isinstance(child, (LoraLinear, quantized_linear.QuantizedLinear)) and not isinstance(parent, LoraLinear):
        setattr(parent, attribute, quantized_linear.restore(child))
  model_weights.thaw(module)


def merged_copy(model: tf_keras.Model, make: Callable[[], tf_keras.Model]) -> tf_keras.Model:
  """A plain model with the function of one with adapters; that one is unchanged.

  Args:
    model: it holds the argument of `attach`.
    make: makes the same model once more, with adapters; it is called on the CPU, whose memory has room for both.

  Raises:
    UserError: `make` makes another model, such as one without a custom layer; with the first difference.
  """
  with tf.device('/CPU:0'):
    found = make()
    _check_same(model, found)
    for target, source in zip(found.trainable_variables, model.trainable_variables, strict=True):
      target.assign(source.numpy().astype(target.dtype.as_numpy_dtype))
    merge(found)
  return found


def _check_same(model, copy):
  """Refuses a copy whose layers are others."""
  kinds = [[(part.name, type(part)) for part in (each, *each.submodules)] for each in (model, copy)]
  for (name, kind), (other, other_kind) in itertools.zip_longest(*kinds, fillvalue=('none', type(None))):
    if kind is not other_kind:
      of = lambda kind: f'{kind.__module__}.{kind.__qualname__}'
      raise errors.UserError(
        f'merge: {name if kind is not type(None) else other} is a {of(kind)} in the trained model, and a '
        f'{of(other_kind)} in a new one of the same configuration: merge it in the task that makes it'
      )


def _chosen(module: tf.Module, patterns: Sequence[str]) -> set[str]:
  """The names of the linear layers that the patterns match."""
  config = module.config
  linears = [part for part in model_weights.layer_parts(module) if isinstance(part, _LINEAR)]
  chosen: set[str] = set()
  for pattern in patterns:
    found = {linear.name for linear in linears if _matches(pattern, linear.name, config)}
    if not found and any(_is_name(pattern, name) for name in _expert_names(module)):
      raise errors.UserError(
        f'target_modules: {pattern!r}: the linear layers of experts, and their router, have no adapters'
      )
    if not found:
      known = sorted({linear.name.rpartition('/')[2] for linear in linears})
      guess = errors.did_you_mean(pattern, known, before='; ')
      raise errors.UserError(
        f'target_modules: {pattern!r} matches no linear layer; there are {", ".join(known)}{guess}'
      )
    chosen |= found
  return chosen


def _expert_names(module):
  """The linear parts of sparse layers that are not linear layers, by our names and by Hugging Face's."""
  for part in model_weights.layer_parts(module):
    if isinstance(part, mlp.SparseMLP):
      for name in ('gate', *(f'experts.{each}' for each in part.experts.own_weights())):
        yield f'{part.name.replace("/", ".")}.{name}'
        yield re.sub(r'.*blocks\.', 'model.layers.', f'{part.name.replace("/", ".")}.{name}')


def _matches(pattern: str, name: str, config: decoder_config.DecoderConfig) -> bool:
  """Whether a pattern is for a layer: for none or for all rows of a stacked one."""
  if pattern == ALL_LINEAR:
    return '/blocks/' in name
  matching = [
    any(_is_name(pattern, known) for known in (_dotted(name, place), place.module))
    for place in model_weights.module_places(config, name)
  ] or [_is_name(pattern, name.replace('/', '.'))]
  if any(matching) and not all(matching):
    raise errors.UserError(
      f'target_modules: {pattern!r} matches some layers of {name}, whose weights are stacked: load it with '
      'scan_layers=False'
    )
  return all(matching)


def _dotted(name, place):
  """Our name of a layer, with its number if it is a row of stacked ones."""
  if place.row is not None:
    name = name.replace('/blocks/', f'/blocks/{place.row}/')
  return name.replace('/', '.')


def _is_name(pattern, name):
  if name == pattern or name.endswith(f'.{pattern}'):
    return True
  try:
    return re.fullmatch(pattern, name) is not None
  except re.error as error:
    raise errors.UserError(f'target_modules: {pattern!r} is not a regular expression: {error}') from error
