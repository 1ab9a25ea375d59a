"""Attention with grouped heads, rotary positions, norms of queries and keys, soft-caps and a cache."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import fused_attention
from official_ext.language.modeling import key_value_cache
from official_ext.language.modeling import layers
from official_ext.language.modeling import rope
from official_ext.training.model_parts import clusters
from official_ext.training.step import step_random


@dataclasses.dataclass(frozen=True)
class LayerContext:
  """The arguments of a block beside its input.

  Attributes:
    mask: bool [b or 1, 1, t, s], whether a token (t) sees another (s).
    cos: float32 [b, t, 1, pairs], see `rope.cos_and_sin`; None for no rotation.
    sin: the same.
    query_scale: float32 [b, t, 1, 1], the factor of queries; None for nothing.
    bias: float32 [b or 1, heads, s], added to the scores of each key (ALiBi); None for nothing.
    seed: int64 [2], of this layer's dropout; None for none.
    cache: the keys and values before this call; None to see this call's own alone.
    extras: the arguments of the model for its layers: tensors by name.
    is_token: float32 [b, t], 0 for padding; None for tokens alone.
    is_causal: whether, by the mask, each token sees itself and those before it, and all rows are alike.
  """

  mask: tf.Tensor
  cos: tf.Tensor | None = None
  sin: tf.Tensor | None = None
  query_scale: tf.Tensor | None = None
  bias: tf.Tensor | None = None
  seed: tf.Tensor | None = None
  cache: key_value_cache.LayerCache | None = None
  extras: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)
  is_token: tf.Tensor | None = None
  is_causal: bool = False


class Attention(layers.Part):
  """softmax(q k^T / sqrt(scalar), masked) v, with several heads of queries for each of keys and values (GQA).

  Attributes:
    q_proj, k_proj, v_proj, o_proj: `layers.Linear`.
    q_norm, k_norm: norms over head_dim, or over all heads (`config.qk_norm_over`); None without `config.qk_norm`.
  """

  def __init__(
    self,
    config: decoder_config.DecoderConfig,
    initializer: Callable[[], tf_keras.initializers.Initializer],
    **options: Any,
  ):
    super().__init__(**options)
    self._config = config
    size = decoder_config.head_dim(config)
    heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.hidden_size
    bias = config.attention_bias
    self.q_proj = layers.Linear(width, heads * size, bias, initializer(), **self.inside('q_proj'))
    self.k_proj = layers.Linear(width, groups * size, bias, initializer(), **self.inside('k_proj'))
    self.v_proj = layers.Linear(width, groups * size, bias, initializer(), **self.inside('v_proj'))
    out_bias = config.attention_out_bias
    self.o_proj = layers.Linear(heads * size, width, out_bias, initializer(), **self.inside('o_proj'))
    self.q_norm = self.k_norm = None
    if config.qk_norm:
      self._norms_projections = config.qk_norm_over == 'projection'
      kind = config.norm_type, config.norm_bias
      make = lambda name, heads: layers.Norm(
        _norm_shape(config, heads), config.norm_eps, config.norm_offset, *kind, **self.inside(name)
      )
      self.q_norm, self.k_norm = make('q_norm', heads), make('k_norm', groups)

  def call(self, x: tf.Tensor, context: LayerContext) -> tuple[tf.Tensor, key_value_cache.LayerCache | None]:
    """([b, t, hidden_size], the cache with this call's keys and values)."""
    config, cache = self._config, context.cache
    queries = self._heads(self.q_proj(x), config.num_attention_heads, self.q_norm, context)
    if context.query_scale is not None:
      queries *= tf.cast(context.query_scale, queries.dtype)
    keys = tf.transpose(self._heads(self.k_proj(x), config.num_key_value_heads, self.k_norm, context), [0, 2, 1, 3])
    values = tf.transpose(self._split(self.v_proj(x), config.num_key_value_heads), [0, 2, 1, 3])
    if cache is not None:
      cache = key_value_cache.extended(cache, keys, values)
      keys, values = cache.keys, cache.values
    return self.o_proj(self._attend(queries, keys, values, context)), cache

  def _split(self, x, num_heads):
    return tf.reshape(x, [*layers.sizes(x)[:2], num_heads, decoder_config.head_dim(self._config)])

  def _heads(self, x, num_heads, norm, context):
    """[b, t, heads, head_dim], normed and rotated."""
    if norm is not None and self._norms_projections:
      x = self._split(norm(x), num_heads)
    else:
      x = self._split(x, num_heads)
      x = x if norm is None else norm(x)
    if context.cos is None:
      return x
    return rope.rotated(x, context.cos, context.sin, self._config.rope_interleaved)

  def _attend(self, queries, keys, values, context):
    """[b, t, heads * head_dim]. The heads that share keys are rows of one product."""
    config = self._config
    _, t, heads, size = layers.sizes(queries)
    _, groups, s, _ = layers.sizes(keys)
    shared = heads // groups
    queries *= tf.cast(decoder_config.attention_multiplier(config), queries.dtype)
    is_in_step = step_random.current_key() is not None
    if config.attn_implementation == decoder_config.CUDNN and is_in_step and context.cache is None:
      mask = None if context.is_causal else context.mask
      y = fused_attention.attend(tf.transpose(queries, [0, 2, 1, 3]), keys, values, mask)
      return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, t, heads * size])
    queries = tf.reshape(queries, [-1, t, groups, shared, size])
    queries = tf.reshape(tf.transpose(queries, [0, 2, 3, 1, 4]), [-1, groups, shared * t, size])
    scores = softcapped(tf.matmul(queries, keys, transpose_b=True), config.attn_logit_softcapping)
    scores = tf.reshape(scores, [-1, groups, shared, t, s])
    constants = [context.mask[:, :, tf.newaxis]]
    if context.bias is not None:
      constants.append(tf.reshape(context.bias, [-1, groups, shared, 1, s]))
    shares = _shares(values.dtype, len(constants))(scores, *constants)
    shares = layers.dropout(shares, config.attention_dropout, context.seed, 0)
    y = tf.matmul(tf.reshape(shares, [-1, groups, shared * t, s]), values)
    y = tf.reshape(y, [-1, groups, shared, t, size])
    return tf.reshape(tf.transpose(y, [0, 3, 1, 2, 4]), [-1, t, heads * size])


@functools.cache
def _shares(dtype, num_constants):
  """A function of (scores, mask, and a bias of scores if there is one): the softmax over the last axis, in a dtype."""

  def shares(scores, mask, bias=None):
    scores = tf.cast(scores, tf.float32)
    scores = scores if bias is None else scores + bias
    return tf.cast(tf.nn.softmax(tf.where(mask, scores, -1e30)), dtype)

  return clusters.cluster(shares, num_constants)


def _norm_shape(config, num_heads):
  """The shape of the weight of a norm of queries or keys."""
  size = decoder_config.head_dim(config)
  shapes = {'head': (size,), 'separate_heads': (num_heads, size), 'projection': (num_heads * size,)}
  return shapes[config.qk_norm_over]


def softcapped(scores: tf.Tensor, cap: float) -> tf.Tensor:
  """tanh(scores / cap) * cap, in float32; unchanged scores if the cap is 0."""
  return tf.tanh(tf.cast(scores, tf.float32) / cap) * cap if cap else scores
