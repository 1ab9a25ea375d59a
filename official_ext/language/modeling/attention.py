"""Attention with grouped heads, rotary positions, norms of queries and keys, soft-caps and a cache.

The cache holds keys and values of the tokens so far: the next token costs one row instead of all.

`fused_attend` is cuDNN's FlashAttention on NVIDIA GPUs (Dao et al. 2022, https://arxiv.org/abs/2205.14135): memory
grows with the length of a row, as the scores are never stored. XLA has it as custom calls, which JAX emits too
(`jax.nn.dot_product_attention(implementation='cudnn')`). It computes the same as `Attention`, in another order, and
rounds its probabilities to the input's dtype.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import json
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import layers
from official_ext.language.modeling import position_encodings
from official_ext.training.devices import device_types
from official_ext.training.model_parts import clusters
from official_ext.training.step import step_random


class LayerCache(NamedTuple):
  """Of one layer.

  Attributes:
    keys: [b, key_value_heads, s, head_dim], rotated.
    values: the same shape.
    index: int32 scalar, how many of the s columns are written.
  """

  keys: tf.Tensor
  values: tf.Tensor
  index: tf.Tensor


class KeyValueCache(NamedTuple):
  """Of all layers; a structure that tf.while_loop and tf.function take.

  Attributes:
    keys: for each layer [b, key_value_heads, s, head_dim]; with stacked weights one tensor [layers, b, ...].
    values: the same.
    index: int32 scalar, how many of the s columns are written.
  """

  keys: tuple[tf.Tensor, ...]
  values: tuple[tf.Tensor, ...]
  index: tf.Tensor

  @property
  def length(self) -> int:
    """How many columns there are."""
    return self.keys[0].shape[-2]


def empty_cache(config: decoder_config.DecoderConfig, batch_size: int, length: int, dtype: tf.DType) -> KeyValueCache:
  """A cache with room for `length` tokens of each sequence."""
  shape = [batch_size, config.num_key_value_heads, length, decoder_config.head_dim(config)]
  if config.scan_layers:
    zeros: tuple[tf.Tensor, ...] = (tf.zeros([config.num_hidden_layers, *shape], dtype),)
  else:
    zeros = tuple(tf.zeros(shape, dtype) for _ in range(config.num_hidden_layers))
  return KeyValueCache(zeros, tuple(map(tf.identity, zeros)), tf.constant(0))


def extended_cache(cache: LayerCache, keys: tf.Tensor, values: tf.Tensor) -> LayerCache:
  """With the keys and values of new tokens after the present ones. A graph must be compiled by XLA, which does it in
  place.

  Args:
    cache: the present keys and values.
    keys: [b, key_value_heads, t, head_dim].
    values: the same.
  """
  if tf.executing_eagerly():
    end = cache.index + keys.shape[2]
    joined = lambda old, new: tf.concat([old[:, :, : cache.index], new, old[:, :, end:]], axis=2)
    return LayerCache(joined(cache.keys, keys), joined(cache.values, values), end)
  start = tf.stack([0, 0, cache.index, 0])
  return LayerCache(
    tf_internals.dynamic_update_slice(cache.keys, keys, start),
    tf_internals.dynamic_update_slice(cache.values, values, start),
    cache.index + keys.shape[2],
  )


def repeated_cache(cache: KeyValueCache, count: int) -> KeyValueCache:
  """With `count` adjacent rows for each sequence."""
  # From the end, since stacked layers have one axis more.
  repeat = lambda tensors: tuple(tf.repeat(tensor, count, axis=tensor.shape.rank - 4) for tensor in tensors)
  return KeyValueCache(repeat(cache.keys), repeat(cache.values), cache.index)


def with_row(stack: tf.Tensor, row: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
  """A stack of all layers' keys or values with another row i."""
  return tf_internals.dynamic_update_slice(stack, row[tf.newaxis], tf.stack([i, 0, 0, 0, 0]))


_NAMES = {tf.bfloat16: 'BF16', tf.float16: 'F16'}
# cuDNN subtracts two of them, which must not overflow. JAX takes the same.
_MASKED_SCORES = {tf.bfloat16: -(2.0**41), tf.float16: -(2.0**15)}
_LEAST_CAPABILITY = (8, 0)
_WIDE_CAPABILITY = (9, 0)  # From here on heads may have 256 numbers, before 128.


def fused_attend(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
  """softmax(queries keys^T, masked) values: one XLA program forward and one backward, or parts of a larger one.

  Its gradient adds in no fixed order, so that two runs differ in the last bits.

  Args:
    queries: [b, heads, t, head_dim], bfloat16 or float16, scaled. All shapes are static.
    keys: [b, groups, s, head_dim]; groups is a divisor of heads.
    values: as keys.
    mask: bool [b or 1, 1, t, s], whether a token sees another; None: itself and earlier ones. A token that sees
      none gets the mean of all.

  Returns:
    [b, heads, t, head_dim].

  Raises:
    UserError: these GPUs, types or shapes have no fused attention; says why.
  """
  problem = _problem(queries, keys)
  if problem:
    raise errors.UserError(f'attn_implementation: cudnn {problem}; or set eager')
  if mask is None:
    return _fused(queries, keys, values)
  return _fused(queries, keys, values, tf.where(mask, tf.zeros([], queries.dtype), _masked_score(queries.dtype)))


def _is_fused(config, queries, keys) -> bool:
  """Whether a step fuses its attention, of queries [b, t, heads, head_dim] and keys; says so once for each reason."""
  if config.attn_implementation != decoder_config.AUTO:
    return config.attn_implementation == decoder_config.CUDNN
  heads_first = tf.TensorSpec([queries.shape[0], queries.shape[2], queries.shape[1], queries.shape[3]], queries.dtype)
  problem = decoder_config.fused_problem(config) or _problem(heads_first, keys)
  if device_types.device_type(tf.distribute.get_strategy()) == 'GPU':
    _report_choice(problem)
  return not problem


@functools.cache
def _report_choice(problem):
  choice = f'eager: cudnn {problem}' if problem else 'cudnn'
  print(f'attn_implementation: auto is {choice}', flush=True)


def _problem(queries, keys) -> str:
  """Why attention cannot be fused, and what to set; '' if it can."""
  if device_types.device_type(tf.distribute.get_strategy()) != 'GPU':
    return 'needs an NVIDIA GPU, and this step runs on no GPU'
  capability, head_dim = device_types.gpu_capability(), queries.shape[3]
  if capability < _LEAST_CAPABILITY:
    return f'needs GPUs of compute capability 8.0, and one here has {".".join(map(str, capability))}'
  if queries.dtype not in _NAMES:
    return (
      f'needs bfloat16 or float16, and the step computes in {queries.dtype.name}; set runtime.mixed_precision_dtype'
    )
  if not (queries.shape.is_fully_defined() and keys.shape.is_fully_defined()):
    return f'needs batches of one shape, and rows are {queries.shape}; set task.train_data.drop_remainder=true'
  if queries.shape[2] % 2 or keys.shape[2] % 2:
    return f'needs rows of an even number of tokens, and they have {queries.shape[2]}'
  most = 256 if capability >= _WIDE_CAPABILITY else 128
  if head_dim % 8 or head_dim > most:
    return f'needs heads of at most {most} numbers, a multiple of 8, and they have {head_dim}'
  if tf_internals.is_op_determinism_enabled():
    return 'adds in no fixed order, and runtime.deterministic=true asks for one; set it to false'
  return ''


def _masked_score(dtype):
  return tf.constant(_MASKED_SCORES[dtype], dtype)


@tf.custom_gradient
def _fused(queries, keys, values, *bias):
  """Attention with a bias of the scores, which has no gradient; without one, causal."""
  y, statistics = _forward(queries, keys, values, *bias)

  def gradient(dy):
    return *_backward(queries, keys, values, statistics, y, dy, *bias), *[None] * len(bias)

  return y, gradient


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _forward(queries, keys, values, *bias):
  """(y, float32 [b, heads, t]: the logarithms of the sums of the exponentials)."""
  b, heads, t, _ = queries.shape
  specs = [tf.TensorSpec(queries.shape, queries.dtype), tf.TensorSpec([b, heads, t])]
  return _custom_call('', [queries, keys, values, *bias], specs, [((3, 3), (0, 1)), ((3, 2), (0, 1))], bool(bias))


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _backward(queries, keys, values, statistics, y, dy, *bias):
  """The gradients of queries, keys and values."""
  specs = [tf.TensorSpec(each.shape, each.dtype) for each in (queries, keys, values)]
  operands = [queries, keys, values, statistics, dy, *bias, y]
  products = [((2, 2), (0, 1)), ((3, 2), (0, 1)), ((2, 2), (0, 1)), ((3, 3), (0, 1))]
  return _custom_call('Backward', operands, specs, products, bool(bias))


def _custom_call(
  suffix: str,
  operands: Sequence[tf.Tensor],
  specs: Sequence[tf.TensorSpec],
  products: Sequence[tuple[tuple[int, int], tuple[int, int]]],
  has_bias: bool,
) -> list[tf.Tensor]:
  """The results of cuDNN's call but its workspace, for which XLA finds the size.

  Args:
    suffix: of the call's name.
    operands: in the call's order.
    specs: of the results.
    products: (contracted axes, batch axes) of the matrix products, in the call's order.
    has_bias: whether something is added to the scores.
  """
  queries, keys = operands[:2]
  names = ['bmm1_grad_gemm1', 'bmm1_grad_gemm2', 'bmm2_grad_gemm1', 'bmm2_grad_gemm2'] if suffix else ['bmm1', 'bmm2']
  dimensions = {
    f'{name}_dot_dimension_numbers': {
      'lhs_contracting_dimensions': [str(left)],
      'rhs_contracting_dimensions': [str(right)],
      'lhs_batch_dimensions': [str(axis) for axis in batch],
      'rhs_batch_dimensions': [str(axis) for axis in batch],
    }
    for name, ((left, right), batch) in zip(names, products, strict=True)
  }
  scores = {
    'element_type': _NAMES[queries.dtype],
    'dimensions': [str(size) for size in (*queries.shape[:3], keys.shape[2])],
    'layout': {'minor_to_major': ['3', '2', '1', '0']},
    'is_dynamic_dimension': [False] * 4,
  }
  config = {
    'algorithm': {
      'algo_id': '0',
      'math_type': 'TENSOR_OP_MATH',
      'tuning_knobs': {'17': '1', '24': '0'},
      'is_cudnn_frontend': True,
      'workspace_size': '0',
    },
    'fmha_scale': 1.0,
    'intermediate_tensor_shape': scores,
    'is_flash_attention': True,
    'mask_type': 'NO_MASK' if has_bias else 'CAUSAL',
    **dimensions,
    'dropout_rate': 0.0,
    'seed': 42,
    'sliding_window_length': 0,
    'max_seg_per_batch': 1,
    'is_paged_attention': False,
  }
  name = f'__cudnn$fmha{"ScaleBias" if has_bias else ""}Softmax{suffix}'
  backend = json.dumps({'operation_queue_id': '0', 'cudnn_fmha_backend_config': config})
  results = tf_internals.xla_custom_call(name, operands, [*specs, tf.TensorSpec([0], tf.uint8)], backend_config=backend)
  return list(results[:-1])


@dataclasses.dataclass(frozen=True)
class LayerContext:
  """The arguments of a block other than its input.

  Attributes:
    mask: bool [b or 1, 1, t, s], whether a token (t) sees another (s).
    cos: float32 [b, t, 1, pairs], see `position_encodings.rope_cos_and_sin`; None for no rotation.
    sin: the same.
    query_scale: float32 [b, t, 1, 1], the factor of queries; None for nothing.
    bias: float32 [b or 1, heads, s], added to the scores of each key (ALiBi); None for nothing.
    seed: int64 [2], of this layer's dropout; None for none.
    cache: the keys and values before this call; None to see this call's own alone.
    extras: the arguments of the model for its layers: tensors by name.
    is_token: float32 [b, t], 0 for padding; None for tokens alone.
    is_causal: whether, by the mask, each token sees itself and earlier ones, and all rows are alike.
  """

  mask: tf.Tensor
  cos: tf.Tensor | None = None
  sin: tf.Tensor | None = None
  query_scale: tf.Tensor | None = None
  bias: tf.Tensor | None = None
  seed: tf.Tensor | None = None
  cache: LayerCache | None = None
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

  def call(self, x: tf.Tensor, context: LayerContext) -> tuple[tf.Tensor, LayerCache | None]:
    """([b, t, hidden_size], the cache with this call's keys and values)."""
    config, cache = self._config, context.cache
    queries = self._heads(self.q_proj(x), config.num_attention_heads, self.q_norm, context)
    if context.query_scale is not None:
      queries *= tf.cast(context.query_scale, queries.dtype)
    keys = tf.transpose(self._heads(self.k_proj(x), config.num_key_value_heads, self.k_norm, context), [0, 2, 1, 3])
    values = tf.transpose(self._split(self.v_proj(x), config.num_key_value_heads), [0, 2, 1, 3])
    if cache is not None:
      cache = extended_cache(cache, keys, values)
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
    return position_encodings.rotated(x, context.cos, context.sin, self._config.rope_interleaved)

  def _attend(self, queries, keys, values, context):
    """[b, t, heads * head_dim]. The heads that share keys are rows of one product."""
    config = self._config
    _, t, heads, size = layers.sizes(queries)
    _, groups, s, _ = layers.sizes(keys)
    shared = heads // groups
    queries *= tf.cast(decoder_config.attention_multiplier(config), queries.dtype)
    is_in_step = step_random.current_key() is not None
    if is_in_step and context.cache is None and _is_fused(config, queries, keys):
      mask = None if context.is_causal else context.mask
      y = fused_attend(tf.transpose(queries, [0, 2, 1, 3]), keys, values, mask)
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
