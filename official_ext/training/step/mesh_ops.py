"""Operations that DTensor cannot split, made of others that it can, while a step is traced for a mesh.

TensorFlow 2.20's DTensor fails on them, takes the process with it, or does not promise the same numbers
(docs/reference/mesh_operations.md has the messages):

| operation | as of | instead |
|---|---|---|
| StridedSlice with a new axis | x[:, tf.newaxis] | the slice without it, and ExpandDims |
| StridedSlice that takes an axis away | x[0] | a slice of length 1, and Squeeze |
| SelectV2 with a scalar condition | tf.where(ok, x, y) | the condition broadcast to the shape of the result |
| FusedBatchNormV3 | batch and layer normalisation of Keras | means and variances, and their effect on the tensor |
| TopKV2, of which a gradient is asked | tf.math.top_k(x, 2) | its indices, and a sum over what they choose |
| a loop over stacked layers | scan_layers | the layers one by one: DTensor has no layout for TensorLists |
| random numbers that are split | dropout, `tf.random.*` | all of them on every device, of which each takes its part |
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import math
from typing import Any

import tensorflow as tf

from official_ext.base import keyed_draws
from official_ext.base import tf_internals
from official_ext.training.model_parts import stacked
from official_ext.training.step import method_patch


def _strided_slice(original: Callable[..., object]) -> Callable[..., Any]:
  @functools.wraps(original)
  def strided_slice(
    input,  # As TensorFlow names it.
    begin,
    end,
    strides,
    begin_mask=0,
    end_mask=0,
    ellipsis_mask=0,
    new_axis_mask=0,
    shrink_axis_mask=0,
    name=None,
  ):
    x = tf.convert_to_tensor(input)
    bounds = [tf.get_static_value(bound) for bound in (begin, end, strides)]
    masks = [begin_mask, end_mask, ellipsis_mask, shrink_axis_mask]
    is_plain = not (new_axis_mask or shrink_axis_mask)
    if is_plain or x.shape.rank is None or any(bound is None for bound in bounds):
      return original(
        x, begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask, name
      )
    kept, new_axes = _without_new_axes(x.shape.rank, len(bounds[0]), new_axis_mask, ellipsis_mask, shrink_axis_mask)
    if kept:
      parts = [[int(bound[i]) for i in kept] for bound in bounds]
      begins, ends, ellipses, shrinks = (sum((mask >> i & 1) << j for j, i in enumerate(kept)) for mask in masks)
      single = [j for j in range(len(kept)) if shrinks >> j & 1 and not ellipses >> j & 1]
      for j in single:  # A slice of length 1.
        parts[1][j], parts[2][j] = parts[0][j] + 1, 1
        begins, ends = begins & ~(1 << j), ends & ~(1 << j) | (parts[0][j] == -1) << j
      wholes = begins & ends | ellipses
      is_whole = all(wholes >> j & 1 and (parts[2][j] == 1 or ellipses >> j & 1) for j in range(len(kept)))
      rank = x.shape.rank
      x = x if is_whole else original(x, *parts, begins, ends, ellipses, 0, 0)
      behind = [bool(ellipses & (1 << j) - 1) for j in single]  # The ellipsis, whose length is not known.
      x = tf.squeeze(x, [rank - len(kept) + j if last else j for j, last in zip(single, behind)]) if single else x
    for axis in new_axes:
      x = tf.expand_dims(x, axis)
    return x

  return strided_slice


def _without_new_axes(
  rank: int, num_entries: int, new_axis_mask: int, ellipsis_mask: int, shrink_axis_mask: int
) -> tuple[list[int], list[int]]:
  """Takes a slice apart: (its entries that are not new axes, the new axes as dimensions of the result)."""
  is_new = [bool(new_axis_mask >> i & 1 and not ellipsis_mask >> i & 1) for i in range(num_entries)]
  num_taken = sum(not (is_new[i] or ellipsis_mask >> i & 1) for i in range(num_entries))
  kept: list[int] = []
  new_axes: list[int] = []
  dimension = 0
  for i in range(num_entries):
    if is_new[i]:
      new_axes.append(dimension)
    else:
      kept.append(i)
    if ellipsis_mask >> i & 1:
      dimension += rank - num_taken
    elif is_new[i] or not shrink_axis_mask >> i & 1:
      dimension += 1
  return kept, new_axes


def _select(original: Callable[..., object]) -> Callable[..., Any]:
  @functools.wraps(original)
  def select(condition, t, e, name=None):
    condition = tf.convert_to_tensor(condition)
    dtype = next((value.dtype for value in (t, e) if hasattr(value, 'dtype')), None)  # A number takes the other's.
    t, e = tf.convert_to_tensor(t, dtype), tf.convert_to_tensor(e, dtype)
    shape = tf.broadcast_static_shape(t.shape, e.shape)
    if condition.shape.rank == 0 and shape.rank and shape.is_fully_defined():
      condition = tf.broadcast_to(condition, shape)
    return original(condition, t, e, name)

  return select


def _top_k(original: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(original)
  def top_kv2(input, *args, **kwargs):  # As TensorFlow names it.
    x = tf.convert_to_tensor(input)
    found = original(tf.stop_gradient(x), *args, **kwargs)
    is_chosen = tf.one_hot(found.indices, x.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    candidates = tf.broadcast_to(tf.expand_dims(x, -2), is_chosen.shape)
    values = tf.reduce_sum(tf.where(is_chosen, candidates, tf.zeros_like(candidates)), axis=-1)
    return type(found)(values, found.indices)

  return top_kv2


def _fused_batch_norm(original: Callable[..., object]) -> Callable[..., Any]:
  @functools.wraps(original)
  def fused_batch_norm_v3(
    x,
    scale,
    offset,
    mean,
    variance,
    epsilon=0.0001,
    exponential_avg_factor=1.0,
    data_format='NHWC',
    is_training=True,
    name=None,
  ):
    axis = data_format.index('C')
    axes = [other for other in range(4) if other != axis]
    sizes = [x.shape[other] for other in axes]
    if None in sizes:
      return original(x, scale, offset, mean, variance, epsilon, exponential_avg_factor, data_format, is_training, name)
    dtype, x = x.dtype, tf.cast(x, scale.dtype)
    aligned = lambda vector: tf.reshape(vector, [-1 if other == axis else 1 for other in range(4)])
    found_mean, found_variance = mean, variance
    if is_training:
      found_mean = tf.reduce_mean(x, axes)
      found_variance = tf.reduce_mean(tf.square(x - aligned(found_mean)), axes)
    factor = tf.math.rsqrt(found_variance + epsilon)
    result = (x - aligned(found_mean)) * aligned(factor) * aligned(scale) + aligned(offset)
    if is_training:
      count = math.prod(sizes)
      spread = found_variance * (count / max(1, count - 1))  # Moving averages use the unbiased one.
      if exponential_avg_factor == 1.0:
        mean, variance = found_mean, spread
      else:
        keep = 1.0 - exponential_avg_factor
        mean = mean * keep + found_mean * exponential_avg_factor
        variance = variance * keep + spread * exponential_avg_factor
    return tf.cast(result, dtype), mean, variance, found_mean, found_variance, found_variance

  return fused_batch_norm_v3


def _drawn_whole(replicated: Callable[[tf.Tensor], tf.Tensor]) -> Callable[..., Any]:
  def wrap(original):
    return functools.wraps(original)(lambda *args, **kwargs: replicated(original(*args, **kwargs)))

  return wrap


# (module, name) of the functions that draw random numbers: those that tf.random.stateless_* calls.
_DRAWS: Sequence[tuple[Any, str]] = (
  (keyed_draws, 'bits'),
  (tf_internals.stateless_random_ops, 'stateless_multinomial'),
  (tf_internals.stateless_random_ops, 'stateless_parameterized_truncated_normal'),
  (tf_internals.stateless_random_ops, 'stateless_random_binomial'),
  (tf_internals.stateless_random_ops, 'stateless_random_poisson'),
  (tf_internals.stateless_random_ops_v2, 'stateless_random_gamma_v3'),
  (tf_internals.stateless_random_ops_v2, 'stateless_random_normal_v2'),
  (tf_internals.stateless_random_ops_v2, 'stateless_random_uniform_full_int_v2'),
  (tf_internals.stateless_random_ops_v2, 'stateless_random_uniform_int_v2'),
  (tf_internals.stateless_random_ops_v2, 'stateless_random_uniform_v2'),
  (tf_internals.stateless_random_ops_v2, 'stateless_shuffle'),
  (tf_internals.stateless_random_ops_v2, 'stateless_truncated_normal_v2'),
)
_PATCHES: Sequence[method_patch.MethodPatch] = (
  method_patch.MethodPatch(tf_internals.array_ops, 'strided_slice', _strided_slice),
  method_patch.MethodPatch(tf_internals.math_ops, 'select_v2', _select),
  method_patch.MethodPatch(tf_internals.nn_ops, 'top_kv2', _top_k),
  method_patch.MethodPatch(tf_internals.nn_ops, 'fused_batch_norm_v3', _fused_batch_norm),
  method_patch.MethodPatch(stacked, 'scan', lambda original: stacked.unrolled),
)


@contextlib.contextmanager
def in_use(replicated: Callable[[tf.Tensor], tf.Tensor]) -> Iterator[None]:
  """A context in which a step is traced for a mesh.

  Args:
    replicated: gives a tensor the layout that is whole on every device.
  """
  draws = [method_patch.MethodPatch(module, name, _drawn_whole(replicated)) for module, name in _DRAWS]
  with method_patch.all_of((*_PATCHES, *draws)):
    yield
