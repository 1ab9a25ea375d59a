"""The decoder by hand in TensorFlow, with query, key and value in one product."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.peers.work import decoder as decoder_work
from benchmarks.peers.work import training


class Decoder(tf.Module):
  """Token ids, int32 [b, t], to logits, float32 [b, t, vocabulary]."""

  def __init__(self, work: training.Work, bfloat16: bool = False):
    """Takes the work's first weights; with `bfloat16` all products are in it, and the rest in float32."""
    super().__init__()
    self._sizes, self._bfloat16 = work.sizes, bfloat16
    values = dict(work.weights)
    for number in range(work.sizes['layers']):
      attention = f'decoder/blocks/{number}/self_attn'
      parts = [values.pop(f'{attention}/{name}_proj/kernel') for name in 'qkv']
      values[f'{attention}/qkv_proj/kernel'] = np.concatenate(parts, axis=1)
    self._weights = {name: tf.Variable(value, name=name.replace('/', '_')) for name, value in values.items()}

  def __call__(self, ids: tf.Tensor, training: bool = False) -> tf.Tensor:
    del training  # Nothing is dropped.
    sizes, weights = self._sizes, self._weights
    heads, width = sizes['heads'], sizes['width']
    batch, length = ids.shape
    split = lambda x: tf.transpose(tf.reshape(x, [batch, length, heads, width // heads]), [0, 2, 1, 3])
    mask = tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0)
    x = tf.gather(weights['decoder/embed_tokens/embeddings'], ids) + weights['decoder/embed_positions/embeddings']
    for number in range(sizes['layers']):
      block = f'decoder/blocks/{number}'
      y = self._linear(self._norm(x, f'{block}/input_layernorm'), f'{block}/self_attn/qkv_proj')
      q, k, v = (split(part) for part in tf.split(y, 3, -1))
      scores = self._product(q, k, transpose_b=True) * float(width // heads) ** -0.5
      y = self._product(tf.nn.softmax(tf.where(mask, scores, tf.constant(-1e9))), v)
      y = tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [batch, length, width])
      x += self._linear(y, f'{block}/self_attn/o_proj')
      y = self._linear(self._norm(x, f'{block}/pre_feedforward_layernorm'), f'{block}/mlp/up_proj')
      x += self._linear(tf.nn.gelu(y), f'{block}/mlp/down_proj')
    return self._linear(self._norm(x, 'decoder/norm'), 'lm_head')

  def _product(self, a: tf.Tensor, b: Any, transpose_b: bool = False) -> tf.Tensor:
    if not self._bfloat16:
      return tf.matmul(a, b, transpose_b=transpose_b)
    a, b = tf.cast(a, tf.bfloat16), tf.cast(b, tf.bfloat16)
    return tf.cast(tf.matmul(a, b, transpose_b=transpose_b), tf.float32)

  def _linear(self, x, name):
    kernel, bias = self._weights[f'{name}/kernel'], self._weights.get(f'{name}/bias')
    y = self._product(tf.reshape(x, [-1, x.shape[-1]]), kernel)
    y = y if bias is None else tf.nn.bias_add(y, bias)
    return tf.reshape(y, [*x.shape[:-1], kernel.shape[-1]])

  def _norm(self, x, name):
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    scale, bias = self._weights[f'{name}/scale'], self._weights[f'{name}/bias']
    return (x - mean) * tf.math.rsqrt(variance + decoder_work.EPSILON) * scale + bias
