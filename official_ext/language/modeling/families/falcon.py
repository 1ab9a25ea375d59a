"""Falcon: queries, keys and values of each group of heads lie together in one tensor; Falcon-RW has ALiBi."""

from official_ext.language.modeling import decoder_config
from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import rope_fields

_SEQUENTIAL, _PARALLEL, _NORMS = decoder_config.SEQUENTIAL, decoder_config.PARALLEL, decoder_config.PARALLEL_NORMS


def _read(fields):
  """Positions, groups and blocks."""
  return {'position_embedding_type': 'alibi' if fields.get('alibi') else 'rope', **_read_blocks(fields)}


def _read_blocks(fields):
  """Of Falcon 40B and later, with new_decoder_architecture, or of the first models."""
  heads = fields['num_attention_heads']
  if fields.get('new_decoder_architecture'):
    has_one_norm = fields.get('num_ln_in_parallel_attn') == 1
    groups = fields.get('num_kv_heads') or heads
    return {'num_key_value_heads': groups, 'block_type': _PARALLEL if has_one_norm else _NORMS}
  is_parallel = fields.get('parallel_attn') in (None, True)
  groups = 1 if fields.get('multi_query') in (None, True) else fields.get('num_kv_heads') or heads
  return {'num_key_value_heads': groups, 'block_type': _PARALLEL if is_parallel else _SEQUENTIAL}


def _write(config):
  groups, kind = config.num_key_value_heads, config.block_type
  is_old = kind == _SEQUENTIAL or (kind == _PARALLEL and groups in (1, config.num_attention_heads))
  fields = {'new_decoder_architecture': not is_old, 'num_kv_heads': groups, 'parallel_attn': kind != _SEQUENTIAL}
  fields['multi_query'] = groups == 1
  fields['alibi'] = config.position_embedding_type == 'alibi'
  if is_old:
    return {**fields, 'num_kv_heads': config.num_attention_heads}
  return {**fields, 'num_ln_in_parallel_attn': 2 if kind == _NORMS else 1}


FALCON = family.Family(
  model_type='falcon',
  architecture='FalconForCausalLM',
  prefix='transformer.',
  block_prefix='h.{}.',
  tensors={
    'word_embeddings.weight': family.Tensor(('decoder/embed_tokens/embeddings',)),
    **family.norm('ln_f', 'decoder/norm'),
    **family.HEAD,
  },
  block_tensors={
    **family.linear(
      'self_attention.query_key_value', 'self_attn/q_proj', 'self_attn/k_proj', 'self_attn/v_proj', is_grouped=True
    ),
    **family.linear('self_attention.dense', 'self_attn/o_proj'),
    **family.linear('mlp.dense_h_to_4h', 'mlp/up_proj'),
    **family.linear('mlp.dense_4h_to_h', 'mlp/down_proj'),
    **family.norm('input_layernorm', 'input_layernorm', (_SEQUENTIAL, _PARALLEL)),
    **family.norm('post_attention_layernorm', 'pre_feedforward_layernorm', (_SEQUENTIAL,)),
    **family.norm('ln_attn', 'input_layernorm', (_NORMS,)),
    **family.norm('ln_mlp', 'pre_feedforward_layernorm', (_NORMS,)),
  },
  fields={
    'vocab_size': family.Field(('vocab_size',)),
    'hidden_size': family.Field(('hidden_size',)),
    'ffn_hidden_size': family.Field(('intermediate_size',), lambda fields: 4 * fields['hidden_size']),
    'num_hidden_layers': family.Field(('num_hidden_layers',)),
    'num_attention_heads': family.Field(('num_attention_heads',)),
    'activation': family.Field(('hidden_act',), 'gelu'),
    'max_position_embeddings': family.Field(('max_position_embeddings',), 2048),
    'layer_norm_epsilon': family.Field(('norm_eps',), 1e-5),
    'bias': family.Field(('attention_bias', 'attention_out_bias', 'mlp_bias'), False),
    'tie_word_embeddings': family.Field(('tie_word_embeddings',), True),
    'initializer_range': family.Field(('initializer_range',), 0.02),
  },
  fixed={'gated_mlp': False, 'norm_type': 'layer_norm'},
  # hidden_dropout is one of the sum of attention and MLP. transformers has dropout in attention with alibi alone, and
  # then one of the output of attention too. It ignores apply_residual_connection_post_layernorm.
  neutral={
    'apply_residual_connection_post_layernorm': False,
    'attention_dropout': 0.0,
    'hidden_dropout': 0.0,
  },
  others=family.OtherFields(
    (
      'alibi',
      'new_decoder_architecture',
      'num_ln_in_parallel_attn',
      'num_kv_heads',
      'multi_query',
      'parallel_attn',
    ),
    _read,
    _write,
  ),
  rope=rope_fields.RopeFields(),
)
