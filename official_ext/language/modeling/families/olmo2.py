"""OLMo 2: norms after attention and MLP alone, and over whole queries and keys."""

from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import rope_fields

OLMO2 = family.Family(
  model_type='olmo2',
  architecture='Olmo2ForCausalLM',
  block_tensors={
    **family.LLAMA_LINEARS,
    **family.HEAD_NORMS,
    **family.norm('post_attention_layernorm', 'post_attention_layernorm'),
    **family.norm('post_feedforward_layernorm', 'post_feedforward_layernorm'),
  },
  fields={
    **family.llama_fields(max_position_embeddings=2048, rms_norm_eps=1e-5),
    'attention_bias': family.BIAS_OF_ALL_FOUR,
  },
  fixed={'pre_norms': False, 'post_norms': True, 'qk_norm': True, 'qk_norm_over': 'projection'},
  rope=rope_fields.RopeFields(),
)
