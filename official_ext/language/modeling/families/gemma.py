"""Gemma 1 and 2, and the text models of Gemma 3."""

from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import layer_fields
from official_ext.language.modeling.families import rope_fields


def _fields(max_position_embeddings, attention_cap, final_cap):
  fields = family.llama_fields(
    num_key_value_heads=4, head_dim=256, max_position_embeddings=max_position_embeddings, tie_word_embeddings=True
  )
  del fields['hidden_act']  # Early files of Gemma 2 have both; this one is not read.
  return {
    **fields,
    'hidden_activation': family.Field(('hidden_act',), 'gelu_pytorch_tanh'),
    'attention_bias': family.BIAS_OF_ALL_FOUR,
    'query_pre_attn_scalar': family.Field(('query_pre_attn_scalar',), 256),
    'attn_logit_softcapping': attention_cap,
    'final_logit_softcapping': final_cap,
  }


_FIXED = {'norm_offset': 1.0, 'post_norms': True, 'scale_embeddings': True}

GEMMA = family.Family(
  model_type='gemma',
  architecture='GemmaForCausalLM',
  fields={
    **family.llama_fields(num_key_value_heads=16, head_dim=256, max_position_embeddings=8192, tie_word_embeddings=True),
    # The published files say gelu, and mean the approximation: so transformers reads them.
    'hidden_act': family.Field(('hidden_act',), 'gelu_pytorch_tanh', aliases={'gelu': 'gelu_pytorch_tanh'}),
    'attention_bias': family.BIAS_OF_ALL_FOUR,
  },
  fixed={'norm_offset': 1.0, 'scale_embeddings': True},
  neutral={'hidden_activation': 'gelu_pytorch_tanh'},
  rope=rope_fields.RopeFields(),
)
GEMMA2 = family.Family(
  model_type='gemma2',
  architecture='Gemma2ForCausalLM',
  block_tensors=family.GEMMA_BLOCK,
  fields=_fields(
    8192,
    family.Field(('attn_logit_softcapping',), 50.0, null=0.0),
    family.Field(('final_logit_softcapping',), 30.0, null=0.0),
  ),
  fixed=_FIXED,
  harmless={'hidden_act': 'hidden_activation has it'},
  layers=layer_fields.EVERY_OTHER,
  rope=rope_fields.RopeFields(),
)
GEMMA3 = family.Family(
  model_type='gemma3_text',
  architecture='Gemma3ForCausalLM',
  sequence_classifier='Gemma3TextForSequenceClassification',
  block_tensors={**family.GEMMA_BLOCK, **family.HEAD_NORMS},
  fields=_fields(
    131072,
    family.Field(('attn_logit_softcapping',), 0.0, null=0.0),
    family.Field(('final_logit_softcapping',), 0.0, null=0.0),
  ),
  fixed={**_FIXED, 'qk_norm': True},
  layers=layer_fields.ALL_BUT_EVERY_NTH,
  rope=rope_fields.RopeFields(theta=1000000.0, local_theta=10000.0),
)
