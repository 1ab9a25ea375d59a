"""Granite 3, dense: Llama with four multipliers."""

from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import rope_fields

GRANITE = family.Family(
  model_type='granite',
  architecture='GraniteForCausalLM',
  sequence_classifier=None,
  fields={
    **family.llama_fields(max_position_embeddings=2048),
    'attention_bias': family.BIAS_OF_ALL_FOUR,
    'mlp_bias': family.Field(('mlp_bias',), False),
    'embedding_multiplier': family.Field(('embedding_multiplier',), 1.0),
    'residual_multiplier': family.Field(('residual_multiplier',), 1.0),
    'attention_multiplier': family.Field(('attention_multiplier',), 1.0),
    'logits_scaling': family.Field(('logits_scaling',), 1.0),
  },
  rope=rope_fields.RopeFields(),
)
