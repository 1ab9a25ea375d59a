"""Mistral 7B and what followed with its architecture."""

from official_ext.modeling.families import family
from official_ext.modeling.families import layer_fields
from official_ext.modeling.families import rope_fields

MISTRAL = family.Family(
  model_type='mistral',
  architecture='MistralForCausalLM',
  prefix='model.',
  block_prefix='layers.{}.',
  tensors=family.LLAMA_TENSORS,
  block_tensors=family.LLAMA_BLOCK,
  fields=family.llama_fields(num_key_value_heads=8, max_position_embeddings=131072),
  fixed={},
  neutral={'attention_bias': False, 'mlp_bias': False},
  layers=layer_fields.ALL_OR_NONE,
  rope=rope_fields.RopeFields(),
)
