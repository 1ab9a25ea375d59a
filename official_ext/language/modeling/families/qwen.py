"""Qwen2, Qwen2.5 and Qwen3, dense and with experts; Qwen1.5 and Qwen2 with experts."""

import dataclasses

from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import layer_fields
from official_ext.language.modeling.families import rope_fields

QWEN2 = family.Family(
  model_type='qwen2',
  architecture='Qwen2ForCausalLM',
  fields=family.llama_fields(num_key_value_heads=32, max_position_embeddings=32768),
  fixed={'attention_bias': True},
  neutral={'attention_bias': True, 'mlp_bias': False},
  layers=layer_fields.FROM_LAYER_ON,
  rope=rope_fields.RopeFields(),
)
QWEN3 = family.Family(
  model_type='qwen3',
  architecture='Qwen3ForCausalLM',
  block_tensors={**family.LLAMA_BLOCK, **family.HEAD_NORMS},
  fields={
    **family.llama_fields(num_key_value_heads=32, max_position_embeddings=32768, head_dim=128),
    'attention_bias': family.BIAS_OF_ALL_FOUR,
  },
  fixed={'qk_norm': True},
  neutral={'mlp_bias': False},
  layers=layer_fields.FROM_LAYER_ON,
  rope=rope_fields.RopeFields(),
)


_EXPERTS = {
  'mlp.gate.weight': family.Tensor(('mlp/gate/kernel',), is_transposed=True),
  **family.expert_linear('mlp.experts.{}.gate_proj', 'gate_proj'),
  **family.expert_linear('mlp.experts.{}.up_proj', 'up_proj'),
  **family.expert_linear('mlp.experts.{}.down_proj', 'down_proj'),
}
_EXPERT_FIELDS = {
  'num_experts_per_tok': family.Field(('num_experts_per_tok',), 8),
  'moe_intermediate_size': family.Field(('moe_intermediate_size',), 768),
  'norm_topk_prob': family.Field(('norm_topk_prob',), False),
  'decoder_sparse_step': family.Field(('decoder_sparse_step',), 1),
  'mlp_only_layers': family.Field(('mlp_only_layers',), ()),
  'router_aux_loss_coef': family.Field(('router_aux_loss_coef',), 0.001),
}

QWEN3_MOE = dataclasses.replace(
  QWEN3,
  model_type='qwen3_moe',
  architecture='Qwen3MoeForCausalLM',
  block_tensors={**QWEN3.block_tensors, **_EXPERTS},
  fields={
    **QWEN3.fields,
    **family.llama_fields(num_key_value_heads=4, max_position_embeddings=32768),
    # transformers 5 writes the other name, and reads both.
    'num_experts': family.Field(('num_experts',), lambda fields: fields.get('num_local_experts') or 128),
    **_EXPERT_FIELDS,
  },
  harmless={'num_local_experts': 'repeats num_experts', 'output_router_logits': 'what a call returns'},
)
QWEN2_MOE = family.Family(
  model_type='qwen2_moe',
  architecture='Qwen2MoeForCausalLM',
  block_tensors={
    **family.LLAMA_BLOCK,
    **_EXPERTS,
    **family.linear('mlp.shared_expert.gate_proj', 'mlp/shared_expert/gate_proj'),
    **family.linear('mlp.shared_expert.up_proj', 'mlp/shared_expert/up_proj'),
    **family.linear('mlp.shared_expert.down_proj', 'mlp/shared_expert/down_proj'),
    **family.linear('mlp.shared_expert_gate', 'mlp/shared_expert_gate'),
  },
  fields={
    **family.llama_fields(num_key_value_heads=16, max_position_embeddings=32768),
    **_EXPERT_FIELDS,
    'qkv_bias': family.Field(('attention_bias',), True),
    'num_experts': family.Field(('num_experts',), 60),
    'num_experts_per_tok': family.Field(('num_experts_per_tok',), 4),
    'moe_intermediate_size': family.Field(('moe_intermediate_size',), 1408),
    'shared_expert_intermediate_size': family.Field(('shared_expert_intermediate_size',), 5632),
  },
  harmless={'output_router_logits': 'what a call returns'},
  layers=layer_fields.EVERY_OTHER_UP_TO_LAYER,
  rope=rope_fields.RopeFields(),
)
