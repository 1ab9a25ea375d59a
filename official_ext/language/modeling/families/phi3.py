"""Phi-3, Phi-3.5 and Phi-4, dense: queries, keys and values in one tensor, gate and up in another."""

from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import layer_fields
from official_ext.language.modeling.families import rope_fields

PHI3 = family.Family(
  model_type='phi3',
  architecture='Phi3ForCausalLM',
  block_tensors={
    **family.linear('self_attn.qkv_proj', 'self_attn/q_proj', 'self_attn/k_proj', 'self_attn/v_proj'),
    **family.linear('self_attn.o_proj', 'self_attn/o_proj'),
    **family.linear('mlp.gate_up_proj', 'mlp/gate_proj', 'mlp/up_proj'),
    **family.linear('mlp.down_proj', 'mlp/down_proj'),
    **family.norm('input_layernorm', 'input_layernorm'),
    **family.norm('post_attention_layernorm', 'pre_feedforward_layernorm'),
  },
  fields={
    **family.llama_fields(max_position_embeddings=4096, rms_norm_eps=1e-5),
    'resid_pdrop': family.Field(('residual_dropout',), 0.0),
  },
  neutral={'attention_bias': False, 'mlp_bias': False},
  harmless={'embd_pdrop': 'transformers no longer makes the layer'},
  layers=layer_fields.ALL_OR_NONE,
  rope=rope_fields.RopeFields(may_be_partial=True, kinds=('default', 'longrope'), original=4096),
)
