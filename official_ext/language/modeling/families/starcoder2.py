"""StarCoder 2."""

from official_ext.base import file_fields
from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import layer_fields
from official_ext.language.modeling.families import rope_fields

_FIELDS = family.llama_fields(
  num_key_value_heads=2, hidden_act='gelu_pytorch_tanh', max_position_embeddings=4096, tie_word_embeddings=True
)
del _FIELDS['rms_norm_eps']

STARCODER2 = family.Family(
  model_type='starcoder2',
  architecture='Starcoder2ForCausalLM',
  block_tensors={
    **family.ATTENTION,
    **family.linear('mlp.c_fc', 'mlp/up_proj'),
    **family.linear('mlp.c_proj', 'mlp/down_proj'),
    **family.norm('input_layernorm', 'input_layernorm'),
    **family.norm('post_attention_layernorm', 'pre_feedforward_layernorm'),
  },
  fields={
    **_FIELDS,
    'norm_epsilon': family.Field(('norm_eps',), 1e-5),
    'use_bias': family.Field(('attention_bias', 'attention_out_bias', 'mlp_bias'), True),
    'residual_dropout': family.Field(('residual_dropout',), 0.0),
    'embedding_dropout': family.Field(('embedding_dropout',), 0.0),
    'initializer_range': family.Field(('initializer_range',), 0.018042),
  },
  fixed={'gated_mlp': False, 'norm_type': 'layer_norm'},
  harmless=file_fields.because(
    {
      'of published files; transformers does not read it': """activation_function attention_softmax_in_fp32
        layer_norm_epsilon mlp_type norm_type scale_attention_softmax_in_fp32 scale_attn_weights"""
    }
  ),
  layers=layer_fields.ALL_OR_NONE,
  rope=rope_fields.RopeFields(),
)
