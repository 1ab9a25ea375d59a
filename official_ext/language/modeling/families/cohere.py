"""Command R, Command R+ and Command R7B: attention and MLP in parallel."""

from official_ext.base import file_fields
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import layer_fields
from official_ext.language.modeling.families import rope_fields

_FIELDS = {
  **family.llama_fields(max_position_embeddings=8192, tie_word_embeddings=True),
  'layer_norm_eps': family.Field(('norm_eps',), 1e-5),
  'logit_scale': family.Field(('logit_scale',), 0.0625),
  'attention_bias': family.BIAS_OF_ALL_FOUR,
}
del _FIELDS['rms_norm_eps']
_BLOCK = {**family.LLAMA_LINEARS, **family.norm('input_layernorm', 'input_layernorm')}
_FIXED = {
  'norm_type': 'layer_norm',
  'norm_bias': False,
  'block_type': decoder_config.PARALLEL,
  'rope_interleaved': True,
}


def _rotated(fields):
  """Layers with a window have a rotation, others none."""
  types, _ = layer_fields.THREE_OF_FOUR.read(fields, fields['num_hidden_layers'])
  return {'no_rope_layers': tuple(int(kind == decoder_config.SLIDING) for kind in types)}


COHERE = family.Family(
  model_type='cohere',
  architecture='CohereForCausalLM',
  sequence_classifier=None,
  block_tensors={**_BLOCK, **family.HEAD_NORMS},
  fields={**_FIELDS, 'use_qk_norm': family.Field(('qk_norm',), False)},
  fixed={**_FIXED, 'qk_norm_over': 'separate_heads'},
  harmless={'model_max_length': 'of the tokenizer'},
  rope=rope_fields.RopeFields(theta=500000.0),
)
COHERE2 = family.Family(
  model_type='cohere2',
  architecture='Cohere2ForCausalLM',
  sequence_classifier=None,
  block_tensors=_BLOCK,
  fields=_FIELDS,
  fixed=_FIXED,
  # Published files have these, and transformers does not read them.
  neutral={
    'order_of_interleaved_layers': 'local_attn_first',
    'position_embedding_type': 'rope_gptj',
    'rotary_pct': 1.0,
    'use_embedding_sharing': True,
    'use_gated_activation': True,
    'use_parallel_block': True,
    'use_qk_norm': False,
  },
  harmless=file_fields.because(
    {'transformers does not read it': 'layer_switch use_parallel_embedding', 'of the tokenizer': 'model_max_length'}
  ),
  layers=layer_fields.THREE_OF_FOUR,
  rope=rope_fields.RopeFields(),
  others=family.OtherFields((), _rotated, lambda config: {}),
)
