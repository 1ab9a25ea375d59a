"""cuDNN's fused attention on NVIDIA GPUs: the scores are never in memory, which then grows with the length of a row.

Dao et al. 2022 (FlashAttention), https://arxiv.org/abs/2205.14135. XLA has it as custom calls, which JAX emits too
(`jax.nn.dot_product_attention(implementation='cudnn')`); TensorFlow has no operation for it. It computes what
`attention.Attention` does, in another order, and rounds its probabilities to the input's dtype.
"""

from collections.abc import Sequence
import functools
import json

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.training.devices import device_types

_NAMES = {tf.bfloat16: 'BF16', tf.float16: 'F16'}
# cuDNN subtracts two of them, which must not overflow. JAX takes the same.
_MASKED_SCORES = {tf.bfloat16: -(2.0**41), tf.float16: -(2.0**15)}
_LEAST_CAPABILITY = (8, 0)
_WIDE_CAPABILITY = (9, 0)  # From here on heads may have 256 numbers, before 128.


def attend(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
  """softmax(queries keys^T, masked) values: one XLA program forward and one backward, or parts of a larger one.

  Its gradient adds in no fixed order, so that two runs differ in the last bits.

  Args:
    queries: [b, heads, t, head_dim], bfloat16 or float16, scaled. All shapes are static.
    keys: [b, groups, s, head_dim]; groups is a divisor of heads.
    values: as keys.
    mask: bool [b or 1, 1, t, s], whether a token sees another; None: itself and those before it. A token that sees
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


def _problem(queries, keys) -> str:
  """Why attention cannot be fused, and what to set; '' if it can."""
  if device_types.device_type(tf.distribute.get_strategy()) != 'GPU':
    return 'needs an NVIDIA GPU, and this step runs on no GPU'
  capability, head_dim = _capability(), queries.shape[3]
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


@functools.cache
def _capability() -> tuple[int, ...]:
  """The least of the GPUs' compute capabilities."""
  found = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices('GPU')]
  return min((tuple(details.get('compute_capability', (0, 0))) for details in found), default=(0, 0))


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
