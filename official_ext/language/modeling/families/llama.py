"""Llama 1, 2 and 3.x."""

from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import rope_fields

LLAMA = family.Family(
  model_type='llama',
  architecture='LlamaForCausalLM',
  fields={
    **family.llama_fields(max_position_embeddings=2048),
    'attention_bias': family.BIAS_OF_ALL_FOUR,
    'mlp_bias': family.Field(('mlp_bias',), False),
  },
  rope=rope_fields.RopeFields(),
)
