"""Mistral 7B and later models of its architecture, Mixtral, and Ministral 3."""

from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import layer_fields
from official_ext.language.modeling.families import rope_fields

MISTRAL = family.Family(
  model_type='mistral',
  architecture='MistralForCausalLM',
  fields=family.llama_fields(num_key_value_heads=8, max_position_embeddings=131072),
  neutral={'attention_bias': False, 'mlp_bias': False},
  layers=layer_fields.ALL_OR_NONE,
  rope=rope_fields.RopeFields(),
)
_MIXTRAL_FIELDS = family.llama_fields(num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5)
MIXTRAL = family.Family(
  model_type='mixtral',
  architecture='MixtralForCausalLM',
  block_tensors={
    **family.LLAMA_BLOCK,
    'block_sparse_moe.gate.weight': family.Tensor(('mlp/gate/kernel',), is_transposed=True),
    **family.expert_linear('block_sparse_moe.experts.{}.w1', 'gate_proj'),
    **family.expert_linear('block_sparse_moe.experts.{}.w3', 'up_proj'),
    **family.expert_linear('block_sparse_moe.experts.{}.w2', 'down_proj'),
  },
  fields={
    **_MIXTRAL_FIELDS,
    'intermediate_size': family.Field(('moe_intermediate_size', 'intermediate_size')),
    'num_local_experts': family.Field(('num_experts',), 8),
    'num_experts_per_tok': family.Field(('num_experts_per_tok',), 2),
    'router_aux_loss_coef': family.Field(('router_aux_loss_coef',), 0.001),
  },
  fixed={'norm_topk_prob': True},
  neutral={'router_jitter_noise': 0.0},
  harmless={'output_router_logits': 'what a call returns'},
  layers=layer_fields.ALL_OR_NONE,
  rope=rope_fields.RopeFields(theta=1000000.0),
)
MINISTRAL3 = family.Family(
  model_type='ministral3',
  architecture='Ministral3ForCausalLM',
  fields=family.llama_fields(num_key_value_heads=8, head_dim=128, max_position_embeddings=262144, rms_norm_eps=1e-5),
  neutral={'attention_bias': False, 'mlp_bias': False},
  layers=layer_fields.ALL_OR_NONE,
  rope=rope_fields.RopeFields(
    default={
      'rope_type': 'yarn',
      'rope_theta': 1000000.0,
      'factor': 16.0,
      'original_max_position_embeddings': 16384,
      'beta_fast': 32.0,
      'beta_slow': 1.0,
      'mscale': 1.0,
      'mscale_all_dim': 1.0,
      'llama_4_scaling_beta': 0.1,
    },
    scales_queries=True,
  ),
)
