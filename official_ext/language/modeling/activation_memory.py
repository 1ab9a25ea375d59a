"""Estimates the memory of a decoder's training: the activations of a step, and the least that weights take.

The estimate counts the tensors that the backward pass reads, by their shapes: of each layer the inputs of its norms,
products and softmax; and the logits, whose gradient is computed while all of these are in memory. One more layer stands
for the tensors of the layer that is computed. Compared with real runs: "Memory" in docs/how_to/scale.md.

Example:

  >>> config = ext.DecoderConfig(vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=4)
  >>> texts = ext.activation_memory.TrainingShapes(sequences=8, length=128)
  >>> ext.activation_memory.of_step(config, texts, 'float32')  # Bytes.
  55705600
  >>> ext.activation_memory.num_weights(config)  # In the embedding and the head, in the blocks.
  (128000, 163840)
"""

import dataclasses

import tensorflow as tf

from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import model_weights
from official_ext.training.devices import device_types
from official_ext.training.model_parts import grouped

_UNPACKING = int(4e6)  # Of each packed kernel, forward and backward.
_LOGITS = 4  # Float32 arrays of the logits' shape: logits, the learned tokens' logits, softmax, gradient.


@dataclasses.dataclass(frozen=True)
class TrainingShapes:
  """The texts of a micro-batch on one replica.

  Attributes:
    sequences: their number, padded ones included.
    length: tokens of each, padding included.
    has_logits: whether there are logits of every token, as of a language model, or none, as of a classifier.
  """

  sequences: int
  length: int
  has_logits: bool = True


def of_step(config: decoder_config.DecoderConfig, shapes: TrainingShapes, dtype: tf.DType | str) -> int:
  """Bytes of the activations at the peak of a step.

  Args:
    config: of the decoder; `remat`, `scan_layers` and `attn_implementation` are read. On CPUs `scan_layers` counts as
      in a step that XLA compiles between products, the one that keeps most.
    shapes: of the micro-batch.
    dtype: in which layers compute.
  """
  size = tf.as_dtype(dtype).size
  tokens = shapes.sequences * shapes.length
  stream = tokens * config.hidden_size * size
  attention, mlp = _attention(config, shapes, size), max(_mlp(config, tokens, size))
  kept = {
    'none': attention + mlp,
    'attention': stream + mlp,
    'mlp': attention + stream,
    'block': stream,
  }['block' if config.scan_layers and tf.config.list_logical_devices('GPU') else config.remat]
  of_layers = config.num_hidden_layers * kept + attention + mlp + _gathered_matrices(config, tokens, size)
  logits = tokens * config.vocab_size * (_LOGITS * 4 + (size if size < 4 else 0)) if shapes.has_logits else 0
  return of_layers + logits


def of_unpacking(model: tf.Module) -> int:
  """Bytes that the operations of packed kernels add to the graph of a step, while it is compiled on a CPU: measured.

  Args:
    model: a decoder.
  """
  if tf.config.list_logical_devices('GPU'):  # Graphs are in the memory of the host.
    return 0
  return _UNPACKING * sum(part.is_packed for part in model_weights.layer_parts(model))


def num_weights(config: decoder_config.DecoderConfig, has_head: bool = True) -> tuple[int, int]:
  """(numbers in the embedding and the head, numbers in the matrices of all blocks), without norms and biases.

  Args:
    config: of the decoder.
    has_head: whether there is a head of logits; a classifier has none.
  """
  width, head_dim = config.hidden_size, decoder_config.head_dim(config)
  outside = config.vocab_size * width * (2 if has_head and not config.tie_word_embeddings else 1)
  attention = width * head_dim * 2 * (config.num_attention_heads + config.num_key_value_heads)
  inner = 3 if config.gated_mlp else 2
  inside = 0
  for is_sparse in decoder_config.sparse_layers(config):
    of_experts = config.num_experts * config.moe_intermediate_size + config.shared_expert_intermediate_size
    inside += attention + inner * width * (of_experts if is_sparse else config.intermediate_size)
  return outside, inside


def _attention(config, shapes, size):
  """The bytes that a layer's attention keeps: the inputs of norm and projections, the heads, scores and softmax."""
  tokens = shapes.sequences * shapes.length
  heads, head_dim = config.num_attention_heads, decoder_config.head_dim(config)
  queries, keys = heads * head_dim, config.num_key_value_heads * head_dim
  widths = 2 * config.hidden_size + 2 * queries + 2 * keys + config.post_norms * config.hidden_size
  if config.qk_norm:
    widths += queries + keys
  if _is_fused(config, size):  # The result, and a number of each row of scores.
    return tokens * ((widths + queries) * size + heads * 4)
  scores = shapes.sequences * heads * shapes.length**2
  of_scores = 2 * size + (4 if config.attn_logit_softcapping else 0) + (size if config.attention_dropout else 0)
  return tokens * widths * size + scores * of_scores


def _is_fused(config, size):
  """Whether attention is fused, as far as the configuration and the devices say; shapes of batches may forbid it."""
  if config.attn_implementation != decoder_config.AUTO:
    return config.attn_implementation == decoder_config.CUDNN
  return size == 2 and not decoder_config.fused_problem(config) and device_types.gpus_multiply_bfloat16()


def _experts(config, tokens):
  """The experts that compute each token: all, or its experts with the rows that pad their blocks."""
  k, count = config.num_experts_per_tok, config.num_experts
  rows = grouped.rows_of_block(tokens, k, count)
  return (tokens * k + count * (rows - 1)) / tokens if rows else count


def _gathered_matrices(config, tokens, size):
  """The bytes of the matrices of each block's expert, in one layer, and of their gradients before they are added."""
  rows = grouped.rows_of_block(tokens, config.num_experts_per_tok, config.num_experts) if config.num_experts else 0
  if not rows:
    return 0
  num_blocks = (tokens * config.num_experts_per_tok + config.num_experts * (rows - 1)) // rows
  return 4 * num_blocks * config.hidden_size * config.moe_intermediate_size * size


def _mlp(config, tokens, size):
  """The bytes that the MLPs of dense and of sparse layers keep, whichever there are: inputs of norm and products."""
  inner = 3 if config.gated_mlp else 2
  outside = (2 + config.post_norms) * config.hidden_size
  widths = []
  sparse = decoder_config.sparse_layers(config)
  if not all(sparse):
    widths.append(config.intermediate_size)
  if any(sparse):
    widths.append(_experts(config, tokens) * config.moe_intermediate_size + config.shared_expert_intermediate_size)
  return [round(tokens * (outside + inner * width)) * size for width in widths]
