"""GPT-2."""

from official_ext.base import file_fields
from official_ext.language.modeling.families import family


def _conv1d(theirs, *ours):
  """The tensors of transformers' Conv1D, which lie as ours do."""
  return {
    f'{theirs}.weight': family.Tensor(tuple(f'{name}/kernel' for name in ours)),
    f'{theirs}.bias': family.Tensor(tuple(f'{name}/bias' for name in ours)),
  }


GPT2 = family.Family(
  model_type='gpt2',
  architecture='GPT2LMHeadModel',
  sequence_classifier='GPT2ForSequenceClassification',
  prefix='transformer.',
  block_prefix='h.{}.',
  tensors={
    'wte.weight': family.Tensor(('decoder/embed_tokens/embeddings',)),
    'wpe.weight': family.Tensor(('decoder/embed_positions/embeddings',)),
    **family.norm('ln_f', 'decoder/norm'),
    **family.HEAD,
  },
  block_tensors={
    **_conv1d('attn.c_attn', 'self_attn/q_proj', 'self_attn/k_proj', 'self_attn/v_proj'),
    **_conv1d('attn.c_proj', 'self_attn/o_proj'),
    **_conv1d('mlp.c_fc', 'mlp/up_proj'),
    **_conv1d('mlp.c_proj', 'mlp/down_proj'),
    **family.norm('ln_1', 'input_layernorm'),
    **family.norm('ln_2', 'pre_feedforward_layernorm'),
  },
  fields={
    'vocab_size': family.Field(('vocab_size',)),
    'n_embd': family.Field(('hidden_size',)),
    'n_inner': family.Field(('intermediate_size',), lambda fields: 4 * fields['n_embd']),
    'n_layer': family.Field(('num_hidden_layers',)),
    'n_head': family.Field(('num_attention_heads', 'num_key_value_heads')),
    'n_positions': family.Field(('max_position_embeddings',), 1024),
    'activation_function': family.Field(('hidden_act',), 'gelu_new'),
    'layer_norm_epsilon': family.Field(('norm_eps',), 1e-5),
    'tie_word_embeddings': family.Field(('tie_word_embeddings',), True),
    'attn_pdrop': family.Field(('attention_dropout',), 0.1),
    'resid_pdrop': family.Field(('residual_dropout',), 0.1),
    'embd_pdrop': family.Field(('embedding_dropout',), 0.1),
    'initializer_range': family.Field(('initializer_range',), 0.02),
  },
  fixed={
    'gated_mlp': False,
    'norm_type': 'layer_norm',
    'position_embedding_type': 'learned',
    'attention_bias': True,
    'attention_out_bias': True,
    'mlp_bias': True,
  },
  neutral={'scale_attn_weights': True, 'scale_attn_by_inverse_layer_idx': False},
  harmless=file_fields.because(
    {
      'repeats n_positions': 'n_ctx',
      'precision of the scores': 'reorder_and_upcast_attn',
      'of the head with several choices': """summary_activation summary_first_dropout summary_proj_to_labels
        summary_type summary_use_proj""",
    }
  ),
  ignored_tensors=(r'.*attn\.bias', r'.*attn\.masked_bias'),
)
