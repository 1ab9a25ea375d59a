"""Tiny checkpoints of Hugging Face, made by transformers itself, with nothing at its default.

Import it only behind `pytest.importorskip('transformers')`.
"""

import json
import os

os.environ['HF_HUB_OFFLINE'] = '1'

import torch
import transformers

_SIZES = dict(
  vocab_size=67,
  hidden_size=32,
  intermediate_size=44,
  num_hidden_layers=3,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=64,
  rms_norm_eps=1e-3,
  pad_token_id=0,
  bos_token_id=1,
  eos_token_id=2,
)
_MIXED = ['sliding_attention', 'full_attention', 'sliding_attention']
_LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
_YARN = dict(rope_type='yarn', rope_theta=5000.0, factor=4.0, original_max_position_embeddings=16)


def _rope(**parameters):
  return {'rope_parameters': {'rope_theta': 5000.0, **parameters}}


def _gemma(**others):
  return dict(head_dim=16, query_pre_attn_scalar=23, sliding_window=5, attention_bias=True, **others)


_EXPERTS = dict(
  head_dim=16, moe_intermediate_size=12, num_experts_per_tok=2, router_aux_loss_coef=0.7, **_rope(rope_type='default')
)

_MULTIPLIERS = dict(embedding_multiplier=3.0, attention_multiplier=0.21, logits_scaling=1.3)
_MIXTRAL = dict(num_experts_per_tok=2, router_aux_loss_coef=0.7)
_QWEN2_MOE = {name: value for name, value in _EXPERTS.items() if name != 'head_dim'}

# Name: (class of the configuration, its arguments).
CASES = {
  'llama': ('LlamaConfig', dict(attention_bias=True, mlp_bias=True, head_dim=12, **_rope(rope_type='default'))),
  'llama_tied': ('LlamaConfig', dict(tie_word_embeddings=True, hidden_act='gelu', **_rope(rope_type='default'))),
  'llama_linear': ('LlamaConfig', _rope(rope_type='linear', factor=3.0)),
  'llama_dynamic': ('LlamaConfig', {**_rope(rope_type='dynamic', factor=2.0), 'max_position_embeddings': 16}),
  'llama_3': ('LlamaConfig', _rope(rope_type='llama3', **_LLAMA3)),
  'llama_yarn': ('LlamaConfig', dict(rope_parameters=_YARN)),
  'llama_yarn_factor': (
    'LlamaConfig',
    dict(rope_parameters={**_YARN, 'attention_factor': 0.7, 'beta_fast': 20.0, 'beta_slow': 2.0, 'truncate': False}),
  ),
  'llama_yarn_mscale': ('LlamaConfig', dict(rope_parameters={**_YARN, 'mscale': 0.7, 'mscale_all_dim': 0.4})),
  'llama_longrope': (
    'LlamaConfig',
    _rope(
      rope_type='longrope',
      short_factor=[1.0, 1.1, 1.3, 1.6],
      long_factor=[1.5, 2.0, 3.0, 4.0],
      original_max_position_embeddings=16,
      factor=4.0,
    ),
  ),
  'mistral': ('MistralConfig', dict(sliding_window=5, **_rope(rope_type='default'))),
  'mistral_full': ('MistralConfig', dict(sliding_window=None, **_rope(rope_type='default'))),
  'qwen2': ('Qwen2Config', _rope(rope_type='default')),
  'qwen2_sliding': (
    'Qwen2Config',
    dict(use_sliding_window=True, sliding_window=5, max_window_layers=1, tie_word_embeddings=True, **_rope(**_YARN)),
  ),
  'qwen3': ('Qwen3Config', dict(head_dim=16, attention_bias=True, **_rope(rope_type='default'))),
  'qwen3_layers': (
    'Qwen3Config',
    dict(head_dim=16, layer_types=_MIXED, use_sliding_window=True, sliding_window=4, **_rope(rope_type='default')),
  ),
  'qwen3_moe': ('Qwen3MoeConfig', dict(num_experts=8, norm_topk_prob=True, attention_bias=True, **_EXPERTS)),
  'qwen3_moe_mixed': ('Qwen3MoeConfig', dict(num_experts=7, mlp_only_layers=[1], **_EXPERTS)),
  'gemma2': ('Gemma2Config', _gemma(attn_logit_softcapping=3.0, final_logit_softcapping=2.0, **_rope())),
  'gemma3': (
    'Gemma3TextConfig',
    _gemma(
      layer_types=_MIXED,
      rope_parameters={
        'full_attention': {'rope_type': 'linear', 'factor': 8.0, 'rope_theta': 9000.0},
        'sliding_attention': {'rope_type': 'default', 'rope_theta': 70.0},
      },
    ),
  ),
  'phi3': ('Phi3Config', dict(sliding_window=5, **_rope(rope_type='default', partial_rotary_factor=0.5))),
  'phi3_longrope': (
    'Phi3Config',
    dict(
      original_max_position_embeddings=16,
      **_rope(rope_type='longrope', short_factor=[1.0, 1.1, 1.3, 1.6], long_factor=[1.5, 2.0, 3.0, 4.0]),
    ),
  ),
  'smollm3': ('SmolLM3Config', dict(no_rope_layer_interval=2, attention_bias=True, mlp_bias=True, **_rope())),
  'smollm3_sliding': (
    'SmolLM3Config',
    dict(no_rope_layers=[0, 1, 0], use_sliding_window=True, sliding_window=5, rope_parameters=_YARN),
  ),
  'ministral3': (
    'Ministral3Config',
    dict(head_dim=16, rope_parameters={**_YARN, 'mscale': 1.0, 'mscale_all_dim': 1.0, 'llama_4_scaling_beta': 0.7}),
  ),
  'gemma': ('GemmaConfig', dict(head_dim=16, attention_bias=True, **_rope(rope_type='default'))),
  'gemma_gelu': ('GemmaConfig', dict(head_dim=12, hidden_act='gelu', **_rope(rope_type='linear', factor=3.0))),
  'starcoder2': ('Starcoder2Config', dict(norm_epsilon=1e-3, sliding_window=5, **_rope(rope_type='default'))),
  'starcoder2_untied': (
    'Starcoder2Config',
    dict(norm_epsilon=1e-3, use_bias=False, tie_word_embeddings=False, **_rope(rope_type='default')),
  ),
  'granite': (
    'GraniteConfig',
    dict(attention_bias=True, mlp_bias=True, residual_multiplier=0.7, **_MULTIPLIERS, **_rope(rope_type='default')),
  ),
  'olmo2': ('Olmo2Config', dict(attention_bias=True, **_rope(rope_type='default'))),
  'olmo2_yarn': ('Olmo2Config', dict(rope_parameters=_YARN)),
  'mixtral': ('MixtralConfig', dict(num_local_experts=5, **_MIXTRAL, **_rope(rope_type='default'))),
  'mixtral_sliding': (
    'MixtralConfig',
    dict(num_local_experts=4, sliding_window=5, **{**_MIXTRAL, 'num_experts_per_tok': 1}, **_rope(rope_type='default')),
  ),
  'cohere': ('CohereConfig', dict(layer_norm_eps=1e-3, logit_scale=0.7, **_rope(rope_type='default'))),
  'cohere_bias': (
    'CohereConfig',
    dict(attention_bias=True, tie_word_embeddings=False, logit_scale=1.3, **_rope(rope_type='linear', factor=3.0)),
  ),
  'cohere_qk_norm': (
    'CohereConfig',
    dict(use_qk_norm=True, layer_norm_eps=1e-3, logit_scale=0.7, **_rope(rope_type='default')),
  ),
  'cohere2': (
    'Cohere2Config',
    dict(layer_types=_MIXED, sliding_window=5, layer_norm_eps=1e-3, logit_scale=0.7, **_rope(rope_type='default')),
  ),
  'cohere2_pattern': (
    'Cohere2Config',
    dict(
      num_hidden_layers=5,
      sliding_window=4,
      attention_bias=True,
      tie_word_embeddings=False,
      logit_scale=0.7,
      **_rope(**_YARN),
    ),
  ),
  'phi': ('PhiConfig', dict(layer_norm_eps=1e-3, **_rope(rope_type='default', partial_rotary_factor=0.5))),
  'phi_whole': ('PhiConfig', dict(**_rope(rope_type='default', partial_rotary_factor=1.0))),
  'falcon': ('FalconConfig', dict(layer_norm_epsilon=1e-3, **_rope(rope_type='default'))),
  'falcon_groups': (
    'FalconConfig',
    dict(new_decoder_architecture=True, num_kv_heads=2, bias=True, **_rope(rope_type='default')),
  ),
  'falcon_one_norm': (
    'FalconConfig',
    dict(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, **_rope(rope_type='default')),
  ),
  'falcon_sequential': (
    'FalconConfig',
    dict(parallel_attn=False, multi_query=False, bias=True, tie_word_embeddings=False, **_rope(rope_type='default')),
  ),
  'falcon_alibi': ('FalconConfig', dict(alibi=True, parallel_attn=False, multi_query=False, bias=True)),
  'falcon_alibi_groups': (  # Six heads: a number whose slopes are not those of the paper's formula alone.
    'FalconConfig',
    dict(alibi=True, new_decoder_architecture=True, num_kv_heads=2, num_attention_heads=6, hidden_size=36),
  ),
  'qwen2_moe': (
    'Qwen2MoeConfig',
    dict(num_experts=8, norm_topk_prob=True, shared_expert_intermediate_size=20, **_QWEN2_MOE),
  ),
  'qwen2_moe_mixed': (
    'Qwen2MoeConfig',
    dict(
      num_experts=7,
      mlp_only_layers=[1],
      shared_expert_intermediate_size=16,
      qkv_bias=False,
      use_sliding_window=True,
      sliding_window=4,
      max_window_layers=2,
      **_QWEN2_MOE,
    ),
  ),
  'gpt2': ('GPT2Config', dict(n_embd=32, n_layer=3, n_head=4, n_positions=64, layer_norm_epsilon=1e-3, n_inner=44)),
}


def config(name, **changes):
  """The configuration of a case, with other fields."""
  cls, arguments = CASES[name]
  made = getattr(transformers, cls)
  sizes = {field: value for field, value in _SIZES.items() if hasattr(made, field)}
  return made(**{**sizes, **arguments, **changes}, attn_implementation=_attention(arguments))


def _attention(fields):
  """Of a configuration's fields. With eager, transformers 5 adds ALiBi to the scores twice."""
  return 'sdpa' if fields.get('alibi') else 'eager'


def random_model(configuration, seed=0):
  """A model with random norms and biases, and matrices large enough for logits of several units."""
  torch.manual_seed(seed)
  how = _attention(configuration.to_dict())
  model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation=how).eval()
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      scale = 0.3 if parameter.ndim == 1 else 0.15
      offset = parameter if 'norm' in name or 'ln_' in name else 0
      parameter.copy_(torch.randn(parameter.shape) * scale + offset)
  return model


def folders(tmp_path_factory, **configurations):
  """A function: name of a case, or of one of the configurations -> the folder of its random model, written once."""
  made = {}

  def make(name):
    if name not in made:
      made[name] = str(tmp_path_factory.mktemp(name))
      random_model(configurations.get(name) or config(name)).save_pretrained(made[name])
    return made[name]

  return make


def reloaded(folder):
  """The model of transformers for a folder; no key is missing or unexpected."""
  with open(os.path.join(folder, 'config.json'), encoding='utf-8') as file:
    how = _attention(json.load(file))
  model, info = transformers.AutoModelForCausalLM.from_pretrained(
    folder, output_loading_info=True, attn_implementation=how, dtype=torch.float32
  )
  assert {name: keys for name, keys in info.items() if keys} == {}
  return model.eval()


def logits(model, ids, **options):
  """Of a transformers model, as a numpy array."""
  with torch.no_grad():
    return model(torch.tensor(ids), **options).logits.numpy()
