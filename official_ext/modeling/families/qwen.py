"""Qwen2, Qwen2.5 and Qwen3, dense."""

from official_ext.modeling.families import family
from official_ext.modeling.families import layer_fields
from official_ext.modeling.families import rope_fields

QWEN2 = family.Family(
  model_type='qwen2',
  architecture='Qwen2ForCausalLM',
  prefix='model.',
  block_prefix='layers.{}.',
  tensors=family.LLAMA_TENSORS,
  block_tensors=family.LLAMA_BLOCK,
  fields=family.llama_fields(num_key_value_heads=32, max_position_embeddings=32768),
  fixed={'attention_bias': True},
  neutral={'attention_bias': True, 'mlp_bias': False},
  layers=layer_fields.FROM_LAYER_ON,
  rope=rope_fields.RopeFields(),
)
QWEN3 = family.Family(
  model_type='qwen3',
  architecture='Qwen3ForCausalLM',
  prefix='model.',
  block_prefix='layers.{}.',
  tensors=family.LLAMA_TENSORS,
  block_tensors={**family.LLAMA_BLOCK, **family.HEAD_NORMS},
  fields={
    **family.llama_fields(num_key_value_heads=32, max_position_embeddings=32768, head_dim=128),
    'attention_bias': family.BIAS_OF_ALL_FOUR,
  },
  fixed={'qk_norm': True},
  neutral={'mlp_bias': False},
  layers=layer_fields.FROM_LAYER_ON,
  rope=rope_fields.RopeFields(),
)
