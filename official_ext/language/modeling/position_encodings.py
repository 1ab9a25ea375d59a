"""Positions of tokens in attention: ALiBi, and rotary embeddings in every scaling of published configurations.

Attention with linear biases (ALiBi; Press et al. 2022, https://arxiv.org/abs/2108.12409) adds a slope times the
position of a key to the scores. Within a row of scores that differs from the paper's -slope * distance by a constant,
which the softmax removes. Slopes, positions and products are rounded to bfloat16, as in transformers' Falcon: the
rounding is a part of the model, since a product of 1,000 is rounded to a multiple of 4.

Rotary frequencies (Su et al., 2021) are computed in float32 in the order of Hugging Face's `modeling_rope_utils.py`: at
position 10,000 one rounding of a frequency turns by a thousandth, so the same roundings are a part of the same model.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import ClassVar

import numpy as np
import tensorflow as tf

from official_ext.base import base_config
from official_ext.base import errors
from official_ext.language.modeling import layers
from official_ext.language.modeling import packed_documents
from official_ext.training.model_parts import clusters


def alibi_biases(num_heads: int, positions: tf.Tensor) -> tf.Tensor:
  """The biases of keys.

  Args:
    num_heads: heads of queries.
    positions: int32 [b, s], of keys, from 0 on in each document.

  Returns:
    float32 [b, num_heads, s].
  """
  rounded = _as_bfloat16(tf.cast(positions, tf.float32))[:, tf.newaxis]
  return _as_bfloat16(_as_bfloat16(tf.constant(alibi_slopes(num_heads)))[:, tf.newaxis] * rounded)


def alibi_slopes(num_heads: int) -> np.ndarray:
  """The slope of each head, float32 [num_heads]: 2^(-8 k / n) for n heads, a power of 2.

  For another number: the slopes of the next smaller power of 2, and every other one of the next larger.
  """
  smaller = 2 ** int(math.log2(num_heads))
  found = [2 ** (-8 * k / smaller) for k in range(1, smaller + 1)]
  found += [2 ** (-8 * k / (2 * smaller)) for k in range(1, 2 * (num_heads - smaller), 2)]
  return np.array(found, np.float32)


def _as_bfloat16(x):
  """float32 from 0 up, rounded to the nearest bfloat16, ties to even. XLA may leave out casts to bfloat16 and back."""
  bits = tf.bitcast(x, tf.int32)
  odd = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 16), 1)
  return tf.bitcast(tf.bitwise.bitwise_and(bits + 0x7FFF + odd, -0x10000), tf.float32)


# The kinds, and the fields of `RopeParameters` that each uses besides `rope_theta` and `partial_rotary_factor`.
USED_FIELDS: dict[str, tuple[str, ...]] = {
  'default': (),
  'linear': ('factor',),
  'dynamic': ('factor',),
  'llama3': ('factor', 'low_freq_factor', 'high_freq_factor', 'original_max_position_embeddings'),
  'yarn': (
    'factor',
    'attention_factor',
    'beta_fast',
    'beta_slow',
    'mscale',
    'mscale_all_dim',
    'original_max_position_embeddings',
    'truncate',
  ),
  'longrope': ('factor', 'attention_factor', 'short_factor', 'long_factor', 'original_max_position_embeddings'),
}
_NEEDED_FIELDS: dict[str, tuple[str, ...]] = {
  'linear': ('factor',),
  'dynamic': ('factor',),
  'llama3': ('factor', 'low_freq_factor', 'high_freq_factor'),
  'longrope': ('short_factor', 'long_factor'),
}


@dataclasses.dataclass
class RopeParameters(base_config.Config):
  """How queries and keys are rotated by their positions. Names are as in Hugging Face's `rope_parameters`.

  Attributes:
    rope_type: default; linear (kaiokendev, 2023); dynamic (NTK-aware, bloc97 and emozilla, 2023); llama3 (Llama 3.1);
      yarn (Peng et al., 2023); longrope (Ding et al., 2024).
    rope_theta: the base; dimension pair i turns by rope_theta^(-2i/d) a position.
    partial_rotary_factor: the part of a head that is rotated; the rest has no position.
    factor: by how much the context is longer than in pre-training. None: max_position_embeddings over
      original_max_position_embeddings (yarn, longrope).
    original_max_position_embeddings: the context of pre-training (llama3, yarn, longrope); 0 for the decoder's
      max_position_embeddings.
    low_freq_factor, high_freq_factor: between original_max_position_embeddings over these wavelengths, llama3 blends.
    attention_factor: the factor of cosine and sine (yarn, longrope); None for the papers' recommendation.
    beta_fast, beta_slow: turns within the original context from which on yarn keeps, and below which it divides.
    mscale, mscale_all_dim: DeepSeek's form of yarn's attention factor: the quotient of both.
    truncate: whether yarn rounds the ends of its ramp to whole dimensions.
    short_factor, long_factor: longrope's divisor for each pair, up to and beyond the original context.
    llama_4_scaling_beta: queries are multiplied by 1 + beta log(1 + floor(position / original context)) (Llama 4,
      Ministral 3); 0 for not.
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'rope_type': tuple(USED_FIELDS)}
  RANGES: ClassVar[Mapping[str, str]] = {
    **dict.fromkeys(('rope_theta', 'factor', 'short_factor', 'long_factor'), '(0, inf)'),
    'partial_rotary_factor': '(0, 1]',
    **dict.fromkeys(('original_max_position_embeddings', 'llama_4_scaling_beta'), '[0, inf)'),
  }

  rope_type: str = 'default'
  rope_theta: float = 10000.0
  partial_rotary_factor: float = 1.0
  factor: float | None = None
  original_max_position_embeddings: int = 0
  low_freq_factor: float | None = None
  high_freq_factor: float | None = None
  attention_factor: float | None = None
  beta_fast: float | None = None
  beta_slow: float | None = None
  mscale: float | None = None
  mscale_all_dim: float | None = None
  truncate: bool = True
  short_factor: tuple[float, ...] | None = None
  long_factor: tuple[float, ...] | None = None
  llama_4_scaling_beta: float = 0.0


def check_rope(parameters: RopeParameters, field: str = 'rope_parameters') -> None:
  """Refuses an unknown kind, and one with missing fields.

  Args:
    parameters: the parameters to check.
    field: the dotted path that an error names.

  Raises:
    errors.UserError: with the field.
  """
  kind = parameters.rope_type
  if kind not in USED_FIELDS:
    guess = errors.did_you_mean(kind, USED_FIELDS, before=' ')
    raise errors.UserError(f'{field}.rope_type: {kind!r} is not known; known are {", ".join(USED_FIELDS)}.{guess}')
  for name in _NEEDED_FIELDS.get(kind, ()):
    if getattr(parameters, name) is None:
      raise errors.UserError(f'{field}.{name}: must be set for rope_type {kind!r}')


def rope_cos_and_sin(
  parameters: RopeParameters, head_dim: int, max_position_embeddings: int, positions: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """The cosine and sine of every rotation, multiplied by the kind's attention factor.

  Args:
    parameters: the kind, checked.
    head_dim: size of a head.
    max_position_embeddings: the decoder's longest context.
    positions: int32 [b, t], from 0 on in each document. Its length so far decides the angles of dynamic and longrope:
      a text has the same ones beside any others.

  Returns:
    Two float32 tensors [b, t, 1, pairs], with pairs = int(head_dim * partial_rotary_factor) / 2.
  """
  frequencies, factor = _frequencies(parameters, head_dim, max_position_embeddings, positions)
  angles = tf.cast(positions, tf.float32)[:, :, tf.newaxis, tf.newaxis] * frequencies
  return tf.cos(angles) * factor, tf.sin(angles) * factor


def query_scale(parameters: RopeParameters, max_position_embeddings: int, positions: tf.Tensor) -> tf.Tensor | None:
  """The factor of queries, float32 [b, t, 1, 1]; None for 1. For the arguments see `rope_cos_and_sin`."""
  if not parameters.llama_4_scaling_beta:
    return None
  original = parameters.original_max_position_embeddings or max_position_embeddings
  periods = tf.cast(positions // original, tf.float32)[:, :, tf.newaxis, tf.newaxis]
  return 1 + parameters.llama_4_scaling_beta * tf.math.log(1 + periods)


def rotated(x: tf.Tensor, cos: tf.Tensor, sin: tf.Tensor, is_interleaved: bool = False) -> tf.Tensor:
  """Heads, rotated: dimension i together with i + pairs, as Hugging Face's `rotate_half` has them.

  Args:
    x: [b, t, heads, head_dim].
    cos: [b, t, 1, pairs], with 2 * pairs <= head_dim; further numbers are unchanged.
    sin: the same.
    is_interleaved: whether dimension 2i is rotated together with 2i + 1 instead (Su et al., 2021).

  Returns:
    A tensor of `x`'s shape and dtype, computed in float32.
  """
  return (_rotated_interleaved if is_interleaved else _rotated)(x, cos, sin)


def _rotate(x, cos, sin):
  pairs = cos.shape[-1]
  first, second = tf.cast(x[..., :pairs], tf.float32), tf.cast(x[..., pairs : 2 * pairs], tf.float32)
  turned = tf.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)
  turned = tf.cast(turned, x.dtype)
  return turned if 2 * pairs == x.shape[-1] else tf.concat([turned, x[..., 2 * pairs :]], axis=-1)


def _rotate_interleaved(x, cos, sin):
  pairs = cos.shape[-1]
  turned = tf.cast(x[..., : 2 * pairs], tf.float32)
  first, second = turned[..., ::2], turned[..., 1::2]
  turned = tf.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
  turned = tf.cast(tf.reshape(turned, [*layers.sizes(x)[:-1], 2 * pairs]), x.dtype)
  return turned if 2 * pairs == x.shape[-1] else tf.concat([turned, x[..., 2 * pairs :]], axis=-1)


_rotated = clusters.cluster(_rotate, num_constants=2)  # They come from positions alone.
_rotated_interleaved = clusters.cluster(_rotate_interleaved, num_constants=2)


def _frequencies(parameters, head_dim, max_position_embeddings, positions):
  """(float32 [pairs], or [b, t, 1, pairs] by the lengths of documents; attention factor)."""
  size = int(head_dim * parameters.partial_rotary_factor)
  original = parameters.original_max_position_embeddings or max_position_embeddings
  if parameters.rope_type == 'linear':
    return _default(parameters.rope_theta, size) / np.float32(parameters.factor), 1.0
  if parameters.rope_type == 'dynamic':
    return _dynamic(parameters, size, max_position_embeddings, positions), 1.0
  if parameters.rope_type == 'llama3':
    return _llama3(parameters, size, original), 1.0
  if parameters.rope_type == 'yarn':
    return _yarn(parameters, size, max_position_embeddings, original)
  if parameters.rope_type == 'longrope':
    return _longrope(parameters, size, max_position_embeddings, original, positions)
  return _default(parameters.rope_theta, size), 1.0


def frequency_factors(parameters: RopeParameters, head_dim: int, original: int) -> np.ndarray:
  """By which llama3 divides the frequencies of the default rotation, float32 [pairs].

  Args:
    parameters: of kind llama3.
    head_dim: size of a head.
    original: the context of pre-training.
  """
  size = int(head_dim * parameters.partial_rotary_factor)
  return (_default(parameters.rope_theta, size) / _llama3(parameters, size, original)).astype(np.float32)


def _exponents(size):
  return np.arange(0, size, 2, dtype=np.float32) / np.float32(size)


def _default(theta, size):
  return np.float32(1) / np.float32(theta) ** _exponents(size)


def _dynamic(parameters, size, max_position_embeddings, positions):
  """The base grows with the length beyond the context, so that the slowest pair turns as far as it did there."""
  length = tf.cast(tf.maximum(_lengths(positions), max_position_embeddings), tf.float32)
  stretch = parameters.factor * length / max_position_embeddings - (parameters.factor - 1)
  theta = parameters.rope_theta * stretch ** (size / (size - 2))
  return 1.0 / theta ** _exponents(size)


def _llama3(parameters, size, original):
  """Short waves are kept, long ones divided by the factor, the ones between blended."""
  low, high = parameters.low_freq_factor, parameters.high_freq_factor
  frequencies = _default(parameters.rope_theta, size)
  wavelengths = np.float32(2 * math.pi) / frequencies
  divided = np.where(wavelengths > original / low, frequencies / np.float32(parameters.factor), frequencies)
  smooth = (np.float32(original) / wavelengths - np.float32(low)) / np.float32(high - low)
  blended = (1 - smooth) * divided / np.float32(parameters.factor) + smooth * divided
  is_between = (wavelengths >= original / high) & (wavelengths <= original / low)
  return np.where(is_between, blended, divided).astype(np.float32)


def _yarn(parameters, size, max_position_embeddings, original):
  """A ramp over the dimensions from frequencies that are kept to frequencies that are divided by the factor."""
  factor = parameters.factor or max_position_embeddings / original

  def dimension_of(turns):
    return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(parameters.rope_theta))

  low, high = dimension_of(parameters.beta_fast or 32), dimension_of(parameters.beta_slow or 1)
  if parameters.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, size - 1)
  ramp = (np.arange(size // 2, dtype=np.float32) - np.float32(low)) / np.float32((high - low) or 0.001)
  kept = 1 - np.clip(ramp, 0, 1)
  periods = np.float32(parameters.rope_theta) ** _exponents(size)
  frequencies = 1 / (np.float32(factor) * periods) * (1 - kept) + 1 / periods * kept
  return frequencies.astype(np.float32), _yarn_attention_factor(parameters, factor)


def _yarn_attention_factor(parameters, factor):
  def scale(mscale):
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

  if parameters.attention_factor is not None:
    return parameters.attention_factor
  if parameters.mscale and parameters.mscale_all_dim:
    return scale(parameters.mscale) / scale(parameters.mscale_all_dim)
  return scale(1.0)


def _longrope(parameters, size, max_position_embeddings, original, positions):
  """Each pair has its own divisor, another one if the sequence is longer than the original context."""
  factor = parameters.factor or max_position_embeddings / original
  attention_factor = parameters.attention_factor
  if attention_factor is None:
    attention_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
  periods = np.float32(parameters.rope_theta) ** _exponents(size)
  short, long = (
    1 / (np.asarray(factors, np.float32) * periods) for factors in (parameters.short_factor, parameters.long_factor)
  )
  return tf.where(_lengths(positions) > original, long, short), attention_factor


def _lengths(positions):
  """Of each token's document: int32 [b, t, 1, 1]."""
  return packed_documents.lengths(positions)[:, :, tf.newaxis, tf.newaxis]


def switches_at(parameters: RopeParameters | None, max_position_embeddings: int) -> int | None:
  """The length beyond which all tokens of a document are rotated otherwise (longrope); None for no such length."""
  if parameters is None or parameters.rope_type != 'longrope':
    return None
  return parameters.original_max_position_embeddings or max_position_embeddings
