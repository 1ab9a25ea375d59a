"""Qwen2, Qwen2.5 and Qwen3, dense and with experts."""

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


def _experts(name):
  """The tensors of a linear layer of all experts; {} is an expert's number."""
  return {f'mlp.experts.{{}}.{name}.weight': family.Tensor((f'mlp/experts/{{}}/{name}',), is_transposed=True)}


QWEN3_MOE = dataclasses.replace(
  QWEN3,
  model_type='qwen3_moe',
  architecture='Qwen3MoeForCausalLM',
  block_tensors={
    **QWEN3.block_tensors,
    'mlp.gate.weight': family.Tensor(('mlp/gate/kernel',), is_transposed=True),
    **_experts('gate_proj'),
    **_experts('up_proj'),
    **_experts('down_proj'),
  },
  fields={
    **QWEN3.fields,
    **family.llama_fields(num_key_value_heads=4, max_position_embeddings=32768),
    # transformers 5 writes the other name, and reads both.
    'num_experts': family.Field(('num_experts',), lambda fields: fields.get('num_local_experts') or 128),
    'num_experts_per_tok': family.Field(('num_experts_per_tok',), 8),
    'moe_intermediate_size': family.Field(('moe_intermediate_size',), 768),
    'norm_topk_prob': family.Field(('norm_topk_prob',), False),
    'decoder_sparse_step': family.Field(('decoder_sparse_step',), 1),
    'mlp_only_layers': family.Field(('mlp_only_layers',), ()),
    'router_aux_loss_coef': family.Field(('router_aux_loss_coef',), 0.001),
  },
  ignored=frozenset({'num_local_experts', 'output_router_logits'}),
)
