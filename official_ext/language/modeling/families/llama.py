"""Llama 1, 2 and 3.x."""

from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import rope_fields

LLAMA = family.Family(
  model_type='llama',
  architecture='LlamaForCausalLM',
  prefix='model.',
  block_prefix='layers.{}.',
  tensors=family.LLAMA_TENSORS,
  block_tensors=family.LLAMA_BLOCK,
  fields={
    **family.llama_fields(max_position_embeddings=2048),
    'attention_bias': family.BIAS_OF_ALL_FOUR,
    'mlp_bias': family.Field(('mlp_bias',), False),
  },
  fixed={},
  rope=rope_fields.RopeFields(),
)
