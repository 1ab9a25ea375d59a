"""The keys and values of the tokens so far, so that the next token costs one row instead of all."""

from typing import NamedTuple

import tensorflow as tf

from official_ext.base import tf_internals
from official_ext.language.modeling import decoder_config


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


def empty(config: decoder_config.DecoderConfig, batch_size: int, length: int, dtype: tf.DType) -> KeyValueCache:
  """A cache with room for `length` tokens of each sequence."""
  shape = [batch_size, config.num_key_value_heads, length, decoder_config.head_dim(config)]
  if config.scan_layers:
    zeros: tuple[tf.Tensor, ...] = (tf.zeros([config.num_hidden_layers, *shape], dtype),)
  else:
    zeros = tuple(tf.zeros(shape, dtype) for _ in range(config.num_hidden_layers))
  return KeyValueCache(zeros, tuple(map(tf.identity, zeros)), tf.constant(0))


def extended(cache: LayerCache, keys: tf.Tensor, values: tf.Tensor) -> LayerCache:
  """With the keys and values of new tokens behind the present ones. A graph must be compiled by XLA, which does it in
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


def repeated(cache: KeyValueCache, count: int) -> KeyValueCache:
  """With `count` rows for each sequence, beside each other."""
  # From the end, since stacked layers have one axis more.
  repeat = lambda tensors: tuple(tf.repeat(tensor, count, axis=tensor.shape.rank - 4) for tensor in tensors)
  return KeyValueCache(repeat(cache.keys), repeat(cache.values), cache.index)


def with_row(stack: tf.Tensor, row: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
  """A stack of all layers' keys or values with another row i."""
  return tf_internals.dynamic_update_slice(stack, row[tf.newaxis], tf.stack([i, 0, 0, 0, 0]))
