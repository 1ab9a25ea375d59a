"""Operations that DTensor cannot split, made of others that it can, while a step is traced for a mesh.

TensorFlow 2.20's DTensor fails on them, or takes the process with it (docs/mesh.md has the messages):

| operation | as of | instead |
|---|---|---|
| StridedSlice with a new axis | x[:, tf.newaxis] | the slice without it, and ExpandDims |
| SelectV2 with a scalar condition | tf.where(ok, x, y) | the condition broadcast to the shape of the result |
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
from typing import Any

import tensorflow as tf

from official_ext import tf_internals
from official_ext.step import method_patch


def _strided_slice(original: Callable[..., Any]) -> Callable[..., Any]:
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
    if not new_axis_mask or x.shape.rank is None or any(bound is None for bound in bounds):
      return original(
        x, begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask, name
      )
    kept, new_axes = _without_new_axes(x.shape.rank, len(bounds[0]), new_axis_mask, ellipsis_mask, shrink_axis_mask)
    if kept:
      parts = [[int(bound[i]) for i in kept] for bound in bounds]
      begins, ends, ellipses, shrinks = (sum((mask >> i & 1) << j for j, i in enumerate(kept)) for mask in masks)
      wholes = begins & ends & ~shrinks | ellipses
      is_whole = all(wholes >> j & 1 and (parts[2][j] == 1 or ellipses >> j & 1) for j in range(len(kept)))
      x = x if is_whole else original(x, *parts, begins, ends, ellipses, 0, shrinks)
    for axis in new_axes:
      x = tf.expand_dims(x, axis)
    return x

  return strided_slice


def _without_new_axes(
  rank: int, num_entries: int, new_axis_mask: int, ellipsis_mask: int, shrink_axis_mask: int
) -> tuple[list[int], list[int]]:
  """Takes a slice apart: (its entries that are no new axis, the new axes as dimensions of the result)."""
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


def _select(original: Callable[..., Any]) -> Callable[..., Any]:
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


_PATCHES: Sequence[method_patch.MethodPatch] = (
  method_patch.MethodPatch(tf_internals.array_ops, 'strided_slice', _strided_slice),
  method_patch.MethodPatch(tf_internals.math_ops, 'select_v2', _select),
)


@contextlib.contextmanager
def in_use() -> Iterator[None]:
  """A context in which a step is traced for a mesh."""
  with contextlib.ExitStack() as stack:
    for patch in _PATCHES:
      stack.enter_context(patch)
    yield
