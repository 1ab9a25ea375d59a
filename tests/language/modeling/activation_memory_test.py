"""The activations of a step, counted by hand for one shape, and by what settings leave away."""

import dataclasses

import pytest

from official_ext.language.modeling import activation_memory
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import quantized_linear

_LAYERS, _WIDTH, _INNER, _HEADS, _VOCABULARY = 3, 32, 80, 4, 100
_SHAPES = activation_memory.TrainingShapes(sequences=2, length=16)
_TOKENS = 2 * 16
_ATTENTION = 4 * (_TOKENS * 6 * _WIDTH + 2 * 2 * _HEADS * 16 * 16)
_MLP = 4 * _TOKENS * (2 * _WIDTH + 3 * _INNER)
_STREAM = 4 * _TOKENS * _WIDTH
_LOGITS = 4 * 4 * _TOKENS * _VOCABULARY


def config(**changes):
  return decoder_config.DecoderConfig(
    **{
      'vocab_size': _VOCABULARY,
      'hidden_size': _WIDTH,
      'intermediate_size': _INNER,
      'num_hidden_layers': _LAYERS,
      'num_attention_heads': _HEADS,
      'num_key_value_heads': _HEADS,
      **changes,
    }
  )


@pytest.mark.parametrize(
  'changes, kept',
  [
    ({}, _ATTENTION + _MLP),
    ({'remat': 'attention'}, _STREAM + _MLP),
    ({'remat': 'mlp'}, _ATTENTION + _STREAM),
    ({'remat': 'block'}, _STREAM),
    ({'scan_layers': True}, _ATTENTION + _MLP),
    ({'scan_layers': True, 'remat': 'block'}, _STREAM),
  ],
)
def test_what_the_backward_pass_keeps_of_each_layer(changes, kept):
  found = activation_memory.of_step(config(**changes), _SHAPES, 'float32')
  assert found == _LAYERS * kept + _ATTENTION + _MLP + _LOGITS


def test_a_classifier_has_no_logits_and_bfloat16_half_of_the_layers():
  scores = dataclasses.replace(_SHAPES, has_logits=False)
  whole = activation_memory.of_step(config(), scores, 'float32')
  assert activation_memory.of_step(config(), _SHAPES, 'float32') == whole + _LOGITS
  assert activation_memory.of_step(config(), scores, 'bfloat16') == whole // 2


@pytest.mark.parametrize(
  'changes',
  [{}, {'tie_word_embeddings': True}, {'gated_mlp': False}, {'num_key_value_heads': 2, 'head_dim': 12},
   {'num_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 24, 'decoder_sparse_step': 2}],
)  # fmt: skip
def test_the_weights_are_those_of_the_model(changes):
  model = decoder.LanguageModel(config(**changes))
  count = lambda variables: sum(variable.shape.num_elements() for variable in variables)
  # A router and the norms are left away.
  kernels = [v for v in model.variables if v.shape.rank > 1 and 'gate/kernel' not in v.name]
  inside = [v for v in kernels if '/blocks/' in v.name]
  assert activation_memory.num_weights(model.config) == (count(kernels) - count(inside), count(inside))


@pytest.mark.parametrize('scan, kernels', [(False, 7 * _LAYERS), (True, 7)])
def test_packed_kernels_add_operations_to_the_graph(scan, kernels):
  model = decoder.LanguageModel(config(scan_layers=scan))
  assert activation_memory.of_unpacking(model.decoder) == 0
  quantized_linear.quantize(model.decoder, quantized_linear.QuantizationConfig(method='nf4'))
  assert activation_memory.of_unpacking(model.decoder) == kernels * 4_000_000
