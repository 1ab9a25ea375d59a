"""Phi-1, Phi-1.5 and Phi-2: attention and MLP in parallel, biases everywhere, a part of each head rotated."""

from official_ext.language.modeling import decoder_config
from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import rope_fields

_FIELDS = family.llama_fields(hidden_act='gelu_new', max_position_embeddings=2048)
del _FIELDS['rms_norm_eps']

PHI = family.Family(
  model_type='phi',
  architecture='PhiForCausalLM',
  tensors={
    'embed_tokens.weight': family.Tensor(('decoder/embed_tokens/embeddings',)),
    **family.norm('final_layernorm', 'decoder/norm'),
    **family.HEAD,
  },
  block_tensors={
    **family.linear('self_attn.q_proj', 'self_attn/q_proj'),
    **family.linear('self_attn.k_proj', 'self_attn/k_proj'),
    **family.linear('self_attn.v_proj', 'self_attn/v_proj'),
    **family.linear('self_attn.dense', 'self_attn/o_proj'),
    **family.linear('mlp.fc1', 'mlp/up_proj'),
    **family.linear('mlp.fc2', 'mlp/down_proj'),
    **family.norm('input_layernorm', 'input_layernorm'),
  },
  fields={
    **_FIELDS,
    'layer_norm_eps': family.Field(('norm_eps',), 1e-5),
    'resid_pdrop': family.Field(('residual_dropout',), 0.0),
    'embd_pdrop': family.Field(('embedding_dropout',), 0.0),
  },
  fixed={
    'gated_mlp': False,
    'norm_type': 'layer_norm',
    'block_type': decoder_config.PARALLEL,
    'attention_bias': True,
    'attention_out_bias': True,
    'mlp_bias': True,
    'lm_head_bias': True,
  },
  neutral={'qk_layernorm': False},
  rope=rope_fields.RopeFields(may_be_partial=True, partial=0.5),
)
