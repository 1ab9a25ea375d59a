"""Command R: attention and MLP in parallel."""

from official_ext.language.modeling import decoder_config
from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import rope_fields

_FIELDS = family.llama_fields(max_position_embeddings=8192, tie_word_embeddings=True)
del _FIELDS['rms_norm_eps']

COHERE = family.Family(
  model_type='cohere',
  architecture='CohereForCausalLM',
  sequence_classifier=None,
  block_tensors={**family.LLAMA_LINEARS, **family.norm('input_layernorm', 'input_layernorm')},
  fields={
    **_FIELDS,
    'layer_norm_eps': family.Field(('norm_eps',), 1e-5),
    'logit_scale': family.Field(('logit_scale',), 0.0625),
    'attention_bias': family.BIAS_OF_ALL_FOUR,
  },
  fixed={
    'norm_type': 'layer_norm',
    'norm_bias': False,
    'block_type': decoder_config.PARALLEL,
    'rope_interleaved': True,
  },
  neutral={'use_qk_norm': False},
  ignored=frozenset({'model_max_length'}),  # Of the tokenizer.
  rope=rope_fields.RopeFields(theta=500000.0),
)
