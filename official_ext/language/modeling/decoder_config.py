"""The structure of a decoder, in one dataclass for all families."""

from collections.abc import Mapping
import dataclasses
from typing import ClassVar

from official_ext.base import base_config
from official_ext.base import errors
from official_ext.language.modeling import position_encodings

FULL, SLIDING = 'full_attention', 'sliding_attention'
NORMS = ('rms_norm', 'layer_norm')
QK_NORM_OVER = ('head', 'separate_heads', 'projection')
SEQUENTIAL, PARALLEL, PARALLEL_NORMS = 'sequential', 'parallel', 'parallel_norms'
POSITIONS = ('rope', 'learned', 'alibi')
AUTO, EAGER, CUDNN = 'auto', 'eager', 'cudnn'
REMATS = ('none', 'block', 'attention', 'mlp')
_COUNTS = ('vocab_size', 'hidden_size', 'intermediate_size', 'num_hidden_layers', 'num_attention_heads')
_ANY = '[0, inf)'
ACTIVATIONS = ('silu', 'gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu')


@dataclasses.dataclass
class DecoderConfig(base_config.Config):
  """A decoder. Names are as in Hugging Face's configurations, if they have one.

  Attributes:
    model_type: the family as which the decoder is saved (`families`): a configuration that its family cannot express
      can be trained, and is refused by `pretrained.save`.
    vocab_size: how many tokens there are.
    hidden_size: width of the residual stream.
    intermediate_size: width inside the MLP.
    num_hidden_layers: how many blocks.
    num_attention_heads: heads of queries.
    num_key_value_heads: heads of keys and values; a divisor of num_attention_heads.
    head_dim: size of a head; 0 for hidden_size / num_attention_heads.
    hidden_act: silu, gelu (exact), gelu_new and gelu_pytorch_tanh (both the tanh approximation), relu.
    gated_mlp: act(gate_proj(x)) * up_proj(x) instead of act(up_proj(x)).
    norm_type: rms_norm (Zhang and Sennrich, 2019) or layer_norm.
    norm_eps: added to the variance.
    norm_offset: added to a norm's weight: Gemma stores the difference from 1.
    norm_bias: whether a layer_norm has a bias.
    pre_norms: a norm before attention and before the MLP.
    post_norms: a norm after attention and MLP, before the sum (Gemma 2 and 3, OLMo 2).
    block_type: sequential: the MLP reads the sum of input and attention; parallel: attention and MLP read the same
      normed input, and both are added to it (Phi-2, Cohere); parallel_norms: in parallel, each with its own norm
      (Falcon 40B).
    residual_multiplier: outputs of attention and MLP are multiplied by it before the sum (Granite).
    qk_norm: a norm of queries and keys, of type `norm_type` (Qwen3, Gemma 3, OLMo 2, Command R+).
    qk_norm_over: what it norms: head, each head, with the same weights; separate_heads, each head, with separate
      weights (Command R+); projection, the whole projection (OLMo 2).
    attention_bias: biases of q_proj, k_proj and v_proj.
    attention_out_bias: bias of o_proj.
    mlp_bias: biases of the MLP.
    position_embedding_type: rope; learned: a row for each position, added to the embedding (GPT-2); alibi: a bias of
      scores for each head and key, scaled as the scores are, see position_encodings.py (Falcon-RW).
    max_position_embeddings: the longest context. With learned positions nothing longer can be run.
    rope_parameters: how heads are rotated.
    sliding_rope_parameters: the same for layers with a window; None for `rope_parameters`.
    layer_types: full_attention or sliding_attention for each layer; empty for full everywhere.
    no_rope_layers: 1 for each layer with a rotation, 0 for each without (in Hugging Face's words: the other way round);
      empty for a rotation everywhere.
    sliding_window: how many tokens a layer with a window sees, itself among them.
    rope_interleaved: whether a head's dimensions 2i and 2i + 1 are rotated together (Cohere), instead of i and
      i + pairs.
    query_pre_attn_scalar: scores are divided by its square root; 0 for head_dim.
    attention_multiplier: scores are multiplied by it instead (Granite); 0 for query_pre_attn_scalar.
    attn_logit_softcapping: scores become tanh(score / cap) * cap; 0 for not.
    final_logit_softcapping: the same for the logits.
    logit_scale: logits are multiplied by it (Cohere).
    logits_scaling: logits are divided by it (Granite).
    scale_embeddings: embeddings are multiplied by sqrt(hidden_size) (Gemma).
    embedding_multiplier: embeddings are multiplied by it (Granite).
    tie_word_embeddings: the head is the embedding, transposed.
    lm_head_bias: bias of a head that is not the embedding (Phi-2).
    num_experts: number of experts in a sparse layer; 0 for no sparse layers.
    num_experts_per_tok: number of experts that each token uses.
    moe_intermediate_size: width inside each expert.
    shared_expert_intermediate_size: width inside an additional expert of all tokens, whose output is multiplied by a
      sigmoid of its input's product with a vector (Qwen2-MoE); 0 for none.
    norm_topk_prob: a token's experts have shares that sum up to 1, instead of their probabilities among all.
    decoder_sparse_step: every n-th layer is sparse; 1 for all.
    mlp_only_layers: numbers of layers, from 0 on, that are not.
    router_aux_loss_coef: how much it costs in training if experts are used unevenly: `mlp.router_loss` times this
      is in the model's `losses`.
    attn_implementation: of the steps of training and evaluation. eager computes all scores. cudnn computes attention
      fused, on NVIDIA GPUs in bfloat16 or float16: its memory grows with the length of rows, not with its square. See
      `attention.fused_attend`. auto is cudnn wherever it can compute the attention, else eager. Generation and exports
      are eager.
    attention_dropout: rate on the shares of attention, in training.
    residual_dropout: rate after attention and MLP.
    embedding_dropout: rate after the embedding.
    initializer_range: standard deviation of new weights.
    remat: activations that are recomputed for the gradient instead of kept: none, block, attention, mlp.
    scan_layers: one block, run in a loop over stacked weights: it compiles in the time of one layer. A step that XLA
      compiles as a whole, or not at all, keeps each block's input alone for the gradient, for any `remat`; one that XLA
      compiles between products keeps what `remat` says.

  Example:

    >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
    >>> config.num_attention_heads
    4
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {
    'attn_implementation': (AUTO, EAGER, CUDNN),
    'hidden_act': ACTIVATIONS,
    'norm_type': NORMS,
    'qk_norm_over': QK_NORM_OVER,
    'block_type': (SEQUENTIAL, PARALLEL, PARALLEL_NORMS),
    'position_embedding_type': POSITIONS,
    'remat': REMATS,
  }
  RANGES: ClassVar[Mapping[str, str]] = {
    **dict.fromkeys(_COUNTS, '[1, inf)'),
    **dict.fromkeys(('num_key_value_heads', 'max_position_embeddings'), '[1, inf)'),
    **dict.fromkeys(('num_experts_per_tok', 'decoder_sparse_step'), '[1, inf)'),
    **dict.fromkeys(('head_dim', 'sliding_window', 'num_experts', 'moe_intermediate_size', 'mlp_only_layers'), _ANY),
    **dict.fromkeys(('norm_eps', 'initializer_range', 'router_aux_loss_coef', 'query_pre_attn_scalar'), _ANY),
    **dict.fromkeys(('attn_logit_softcapping', 'final_logit_softcapping'), _ANY),
    **dict.fromkeys(('attention_multiplier', 'shared_expert_intermediate_size'), _ANY),
    **dict.fromkeys(('residual_multiplier', 'embedding_multiplier', 'logit_scale', 'logits_scaling'), '(0, inf)'),
    **dict.fromkeys(('attention_dropout', 'residual_dropout', 'embedding_dropout'), '[0, 1)'),
    'norm_offset': '(-inf, inf)',
  }

  model_type: str = 'llama'
  vocab_size: int = 512
  hidden_size: int = 256
  intermediate_size: int = 688
  num_hidden_layers: int = 4
  num_attention_heads: int = 4
  num_key_value_heads: int = 4
  head_dim: int = 0
  hidden_act: str = 'silu'
  gated_mlp: bool = True
  norm_type: str = 'rms_norm'
  norm_eps: float = 1e-6
  norm_offset: float = 0.0
  norm_bias: bool = True
  pre_norms: bool = True
  post_norms: bool = False
  block_type: str = SEQUENTIAL
  residual_multiplier: float = 1.0
  qk_norm: bool = False
  qk_norm_over: str = 'head'
  attention_bias: bool = False
  attention_out_bias: bool = False
  mlp_bias: bool = False
  position_embedding_type: str = 'rope'
  max_position_embeddings: int = 2048
  rope_parameters: position_encodings.RopeParameters = dataclasses.field(
    default_factory=position_encodings.RopeParameters
  )
  sliding_rope_parameters: position_encodings.RopeParameters | None = None
  layer_types: tuple[str, ...] = ()
  no_rope_layers: tuple[int, ...] = ()
  sliding_window: int = 0
  rope_interleaved: bool = False
  query_pre_attn_scalar: float = 0.0
  attention_multiplier: float = 0.0
  attn_logit_softcapping: float = 0.0
  final_logit_softcapping: float = 0.0
  logit_scale: float = 1.0
  logits_scaling: float = 1.0
  scale_embeddings: bool = False
  embedding_multiplier: float = 1.0
  tie_word_embeddings: bool = False
  lm_head_bias: bool = False
  num_experts: int = 0
  num_experts_per_tok: int = 8
  moe_intermediate_size: int = 0
  shared_expert_intermediate_size: int = 0
  norm_topk_prob: bool = False
  decoder_sparse_step: int = 1
  mlp_only_layers: tuple[int, ...] = ()
  router_aux_loss_coef: float = 0.001
  attn_implementation: str = AUTO
  attention_dropout: float = 0.0
  residual_dropout: float = 0.0
  embedding_dropout: float = 0.0
  initializer_range: float = 0.02
  remat: str = 'none'
  scan_layers: bool = False

  def check_values(self, path: str) -> None:
    """Refuses an invalid decoder.

    Args:
      path: its dotted path in a larger configuration; '' if it is the whole.

    Raises:
      errors.UserError: with the field.
    """
    try:
      _check(self)
    except errors.UserError as error:
      if not path:
        raise
      raise errors.UserErrors([f'{path}.{line}' for line in errors.lines_of(error)]) from error


# The fields from which `layer_types` and the rest of a decoder are computed; the other fields may change without
# another model.
SETTINGS = (
  'attn_implementation',
  'remat',
  'scan_layers',
  'attention_dropout',
  'residual_dropout',
  'embedding_dropout',
  'initializer_range',
  'router_aux_loss_coef',
)


def head_dim(config: DecoderConfig) -> int:
  """The size of a head."""
  return config.head_dim or config.hidden_size // config.num_attention_heads


def attention_multiplier(config: DecoderConfig) -> float:
  """By which scores of attention are multiplied."""
  return config.attention_multiplier or (config.query_pre_attn_scalar or head_dim(config)) ** -0.5


def layer_types(config: DecoderConfig) -> tuple[str, ...]:
  """The type of each layer."""
  return tuple(config.layer_types) or (FULL,) * config.num_hidden_layers


def layer_kinds(config: DecoderConfig) -> tuple[tuple[str, bool], ...]:
  """(type, whether it is rotated) of each layer."""
  has_rope = tuple(config.no_rope_layers) or (1,) * config.num_hidden_layers
  return tuple(zip(layer_types(config), map(bool, has_rope)))


def sparse_layers(config: DecoderConfig) -> tuple[bool, ...]:
  """Whether each layer has experts."""
  step, dense = config.decoder_sparse_step, config.mlp_only_layers
  return tuple(
    bool(config.num_experts) and number not in dense and (number + 1) % step == 0
    for number in range(config.num_hidden_layers)
  )


def _check(config):
  with errors.Mistakes() as mistakes:
    for field, known in config.CHOICES.items():
      with mistakes.noted():
        value = getattr(config, field)
        _require(value in known, f'{field}: {value!r} is not known; known are {", ".join(known)}')
    for field in _COUNTS:
      with mistakes.noted():
        _require(getattr(config, field) > 0, f'{field}: {getattr(config, field)} must be above 0')
    mistakes.check(_check_heads, config)
    mistakes.check(_check_layers, config)
    mistakes.check(_check_norms_and_head, config)
    with mistakes.noted():
      if config.num_experts:
        _check_experts(config)
    mistakes.check(position_encodings.check_rope, config.rope_parameters)
    with mistakes.noted():
      if config.sliding_rope_parameters:
        position_encodings.check_rope(config.sliding_rope_parameters, 'sliding_rope_parameters')


def _check_heads(config):
  heads, groups = config.num_attention_heads, config.num_key_value_heads
  _require(groups > 0 and heads % groups == 0, f'num_key_value_heads: {groups} does not divide {heads} heads')
  _require(
    config.head_dim or config.hidden_size % heads == 0,
    f'num_attention_heads: {heads} does not divide hidden_size {config.hidden_size}; set head_dim',
  )
  problem = fused_problem(config)
  _require(config.attn_implementation != CUDNN or not problem, f'attn_implementation: {CUDNN} {problem}')
  _require(head_dim(config) % 2 == 0, f'head_dim: {head_dim(config)} is odd; heads are rotated in pairs')


def fused_problem(config: DecoderConfig) -> str:
  """Why no GPU fuses this attention, and the setting for it; '' if one may."""
  if config.attn_logit_softcapping or config.attention_dropout:
    return f'has neither attn_logit_softcapping nor attention_dropout; set them to 0, or attn_implementation={EAGER}'
  return (
    f'adds no ALiBi to scores; set attn_implementation={EAGER}' if config.position_embedding_type == 'alibi' else ''
  )


def _check_layers(config):
  types = layer_types(config)
  _require(
    len(types) == config.num_hidden_layers,
    f'layer_types: {len(types)} types for {config.num_hidden_layers} layers (num_hidden_layers)',
  )
  rotated = len(config.no_rope_layers)
  _require(
    rotated in (0, config.num_hidden_layers),
    f'no_rope_layers: {rotated} numbers for {config.num_hidden_layers} layers (num_hidden_layers)',
  )
  unknown = [kind for kind in types if kind not in (FULL, SLIDING)]
  _require(not unknown, f'layer_types: {unknown[:1]} is not known; known are {FULL}, {SLIDING}')
  _require(
    SLIDING not in types or config.sliding_window > 0,
    f'sliding_window: {config.sliding_window} must be above 0 for layers of type {SLIDING}',
  )


def _check_norms_and_head(config):
  is_parallel = config.block_type != SEQUENTIAL
  _require(config.pre_norms or not is_parallel, f'pre_norms: a block of type {config.block_type} has them')
  _require(
    not (config.lm_head_bias and config.tie_word_embeddings),
    'lm_head_bias: the embedding is the head, and has no bias; set tie_word_embeddings=False',
  )


def _check_experts(config):
  count, of_token = config.num_experts, config.num_experts_per_tok
  _require(0 < of_token <= count, f'num_experts_per_tok: {of_token} of {count} experts (num_experts)')
  _require(config.decoder_sparse_step > 0, f'decoder_sparse_step: {config.decoder_sparse_step} must be above 0')
  sparse = sparse_layers(config)
  _require(any(sparse), f'num_experts: {count}, but decoder_sparse_step and mlp_only_layers leave no sparse layer')
  _require(config.moe_intermediate_size > 0, 'moe_intermediate_size: must be above 0 if there are experts')
  _require(config.gated_mlp, 'gated_mlp: experts have gates')
  _require(not config.mlp_bias, 'mlp_bias: experts have none')
  _require(
    not config.scan_layers or all(sparse),
    'scan_layers: stacks layers of one kind alone, and decoder_sparse_step or mlp_only_layers leave some without '
    'experts; set scan_layers=False',
  )


def _require(condition, message):
  if not condition:
    raise errors.UserError(message)
