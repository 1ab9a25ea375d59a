"""A family of models: the names of its fields and tensors, and their counterparts here."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import re
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.base import json_values
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling.families import layer_fields
from official_ext.language.modeling.families import rope_fields

# Fields of every Hugging Face configuration that change nothing about the logits.
HARMLESS: Mapping[str, str] = file_fields.because(
  {
    'kind and origin of the model': """_commit_hash _name_or_path architectures auto_map finetuning_task model_type
      task_specific_params tokenizer_class transformers_version unsloth_fixed unsloth_version""",
    'ids of special tokens, which the tokenizer has': """bos_token_id decoder_start_token_id eos_token_id pad_token_id
      prefix sep_token_id""",
    'generation: see generation_config.json': """do_sample forced_bos_token_id forced_eos_token_id max_length min_length
      num_beams num_return_sequences repetition_penalty temperature top_k top_p typical_p""",
    'how the model is run': """_attn_implementation _attn_implementation_internal attn_implementation
      cache_implementation chunk_size_feed_forward dtype gradient_checkpointing pretraining_tp torch_dtype torchscript
      use_bfloat16 use_cache""",
    'what a call returns': 'output_attentions output_hidden_states output_scores return_dict return_dict_in_generate',
    'labels of a classifier': 'id2label label2id num_labels problem_type',
    'initial values of new weights': 'initializer_range',
    'of models with an encoder': 'is_decoder tie_encoder_decoder',
  }
)
# Fields that change nothing as long as they have this value; null is as good.
NEUTRAL: dict[str, object] = {
  'add_cross_attention': False,
  'clip_qkv': None,
  'cross_attention_hidden_size': None,
  'is_encoder_decoder': False,
  'pruned_heads': {},
  'quantization_config': None,
  'use_bidirectional_attention': False,
  'use_mrope': False,
}
REQUIRED = object()
# The tensors of heads, which stand outside of the decoder and its prefix.
LM_HEAD, LM_HEAD_BIAS, SCORES = 'lm_head.weight', 'lm_head.bias', 'score.weight'
HEADS = (LM_HEAD, LM_HEAD_BIAS, SCORES)


@dataclasses.dataclass(frozen=True)
class Field:
  """A field of their configuration.

  Attributes:
    ours: the fields of `DecoderConfig` that have its value.
    default: the value if it is missing: REQUIRED for an error; a function of all fields is called.
    null: the meaning of null, if not the default.
    aliases: values that mean another one, such as a name that transformers replaces.
  """

  ours: tuple[str, ...]
  default: Any = REQUIRED
  null: Any = None
  aliases: Mapping[object, object] = dataclasses.field(default_factory=dict)

  def value(self, fields: Mapping[str, object], name: str) -> Any:
    """Its value in the fields, by its name."""
    value = fields.get(name)
    if value is not None:
      return self.aliases.get(value, value) if self.aliases else value
    stands_for = self.default if name not in fields or self.null is None else self.null
    return stands_for(fields) if callable(stands_for) else stands_for


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A tensor of their files.

  Attributes:
    ours: the weights that lie in it, one after the other along the outputs.
    is_transposed: whether it is [out, in], as PyTorch's nn.Linear has it.
    is_grouped: whether the outputs are ordered by groups of heads, with the weights one after the other within each
      group (Falcon).
    block_types: the decoders that have it, by `DecoderConfig.block_type`; empty for all.
  """

  ours: tuple[str, ...]
  is_transposed: bool = False
  is_grouped: bool = False
  block_types: tuple[str, ...] = ()


def joined(parts: list[np.ndarray], num_groups: int = 1) -> np.ndarray:
  """Arrays [..., out] side by side along the last axis, within each of the groups of outputs: see `Tensor`."""
  grouped = [part.reshape(*part.shape[:-1], num_groups, -1) for part in parts]
  whole = np.concatenate(grouped, axis=-1)
  return whole.reshape(*whole.shape[:-2], -1)


def parted(value: np.ndarray, sizes: list[int], num_groups: int = 1) -> list[np.ndarray]:
  """The arrays of `joined`, by their sizes along the last axis."""
  grouped = value.reshape(*value.shape[:-1], num_groups, -1)
  ends = np.cumsum([size // num_groups for size in sizes])[:-1]
  return [part.reshape(*value.shape[:-1], -1) for part in np.split(grouped, ends, axis=-1)]


@dataclasses.dataclass(frozen=True)
class OtherFields:
  """Fields of which several together define fields of `DecoderConfig`.

  Attributes:
    names: of the fields.
    read: the fields of config.json -> fields of `DecoderConfig`.
    write: the decoder's configuration -> fields of config.json.
  """

  names: tuple[str, ...]
  read: Callable[[json_values.JsonMapping], json_values.JsonObject]
  write: Callable[[decoder_config.DecoderConfig], json_values.JsonObject]


NO_OTHERS = OtherFields((), lambda fields: {}, lambda config: {})


@dataclasses.dataclass(frozen=True)
class Family:
  """An architecture of Hugging Face. Names of tensors are Llama's by default.

  Attributes:
    model_type: its name in config.json.
    architecture: its class in transformers.
    fields: their name -> ours.
    prefix: the prefix of every tensor's name but the head's; files of the bare decoder lack it.
    block_prefix: the prefix of a layer's tensors, after `prefix`, with `{}` for the layer's number.
    tensors: their name -> ours, of tensors outside of layers.
    block_tensors: the same within a layer; ours begin at the block. {} is the number of an expert.
    fixed: fields of `DecoderConfig` that all models of the family share.
    neutral: fields that are implemented for one value alone, in addition to `NEUTRAL`.
    harmless: fields that change nothing, with the reason, in addition to `HARMLESS`.
    layers: the fields of layer types and windows.
    rope: the fields of rotations; None for a family without them.
    others: fields that are not `fields`, one by one.
    ignored_tensors: patterns of tensors that hold no weights.
    sequence_classifier: the class of its classifiers in transformers; '' if it is named like the architecture; None if
      transformers has none.
  """

  model_type: str
  architecture: str
  fields: Mapping[str, Field]
  prefix: str = 'model.'
  block_prefix: str = 'layers.{}.'
  tensors: Mapping[str, Tensor] = dataclasses.field(default_factory=lambda: LLAMA_TENSORS)
  block_tensors: Mapping[str, Tensor] = dataclasses.field(default_factory=lambda: LLAMA_BLOCK)
  fixed: json_values.JsonMapping = dataclasses.field(default_factory=dict)
  neutral: Mapping[str, object] = dataclasses.field(default_factory=dict)
  harmless: Mapping[str, str] = dataclasses.field(default_factory=dict)
  layers: layer_fields.LayerFields = layer_fields.FULL
  rope: rope_fields.RopeFields | None = None
  others: OtherFields = NO_OTHERS
  ignored_tensors: tuple[str, ...] = (r'.*rotary_emb\.inv_freq',)
  sequence_classifier: str | None = ''

  def __post_init__(self):
    if self.sequence_classifier == '':
      name = self.architecture.replace('ForCausalLM', 'ForSequenceClassification')
      object.__setattr__(self, 'sequence_classifier', name)

  def file_fields(self) -> file_fields.FileFields:
    """The fields of the config.json of its models."""
    rope_names = () if self.rope is None else self.rope.names
    used = frozenset({*self.fields, *self.layers.names, *self.others.names, *rope_names})
    return file_fields.FileFields(
      'config.json',
      used=used,
      harmless={name: reason for name, reason in {**HARMLESS, **self.harmless}.items() if name not in used},
      neutral={name: (value,) for name, value in {**NEUTRAL, **self.neutral}.items()},
      effect='may change the output of the model',
      unknown=f'not known for {self.model_type}',
      remedy=' (ignore_fields=({!r},) loads it all the same)',
    )


def linear(theirs: str, *ours: str, is_grouped: bool = False) -> dict[str, Tensor]:
  """The tensors of an nn.Linear: the products of several layers lie one after the other."""
  kernels, biases = (tuple(f'{name}/{kind}' for name in ours) for kind in ('kernel', 'bias'))
  return {
    f'{theirs}.weight': Tensor(kernels, is_transposed=True, is_grouped=is_grouped),
    f'{theirs}.bias': Tensor(biases, is_grouped=is_grouped),
  }


def expert_linear(theirs: str, ours: str) -> dict[str, Tensor]:
  """The tensors of a linear layer of all experts, without biases; {} is an expert's number."""
  return {f'{theirs}.weight': Tensor((f'mlp/experts/{{}}/{ours}',), is_transposed=True)}


def norm(theirs: str, ours: str, block_types: tuple[str, ...] = ()) -> dict[str, Tensor]:
  """The tensors of an RMSNorm or LayerNorm."""
  make = lambda kind: Tensor((f'{ours}/{kind}',), block_types=block_types)
  return {f'{theirs}.weight': make('scale'), f'{theirs}.bias': make('bias')}


def full_name(family: Family, name: str) -> str:
  """A tensor's name in a file of the whole model; files of the bare decoder have it without the prefix."""
  return name if name in HEADS or name.startswith(family.prefix) else family.prefix + name


def is_ignored(family: Family, name: str) -> bool:
  """Whether a tensor, by its full name, holds no weights."""
  return any(re.fullmatch(pattern, name) for pattern in family.ignored_tensors)


def check_classifier(family: Family, where: str) -> None:
  """Refuses a family of which transformers has no classifier.

  Raises:
    errors.UserError: with `where`, the folder or field that names the family.
  """
  if family.sequence_classifier is None:
    raise errors.UserError(
      f'{where}: transformers has no classifier of {family.model_type}, so a folder cannot represent one; take a model '
      'of another family'
    )


def of_experts(tensors: Mapping[str, Tensor], num_experts: int) -> Iterator[tuple[str, Tensor]]:
  """Yields tensors by name; names with a {} once for each expert."""
  for name, tensor in tensors.items():
    for number in range(num_experts) if '{}' in name else [None]:
      ours = tuple(path.format(number) for path in tensor.ours)
      yield name.format(number), dataclasses.replace(tensor, ours=ours)


def read(
  family: Family, fields: json_values.JsonMapping, where: str, ignore_fields: tuple[str, ...] = ()
) -> decoder_config.DecoderConfig:
  """The decoder that a Hugging Face configuration describes.

  Args:
    family: of its `model_type`.
    fields: the contents of config.json.
    where: the file that errors name.
    ignore_fields: fields to take no notice of, though they may change the logits.

  Raises:
    errors.UserError: for a field that is missing, unknown or not implemented, with its name.
  """
  _refuse_others(family, fields, where, ignore_fields)
  values = dict(family.fixed)
  for name, field in family.fields.items():
    value = field.value(fields, name)
    if value is REQUIRED:
      raise errors.UserError(f'{where}: {name} is missing')
    values.update(dict.fromkeys(field.ours, value))
  try:
    num_layers = values['num_hidden_layers']
    values['layer_types'], values['sliding_window'] = layer_fields.normal(*family.layers.read(fields, num_layers))
    if family.rope is not None:
      values.update(family.rope.read(fields))
    values.update(family.others.read(fields))
    config = decoder_config.DecoderConfig(model_type=family.model_type, **values)
    config.check_values('')
  except errors.UserError as error:
    raise errors.UserErrors([f'{where}: {line}' for line in errors.lines_of(error)]) from error
  return config


def _refuse_others(family, fields, where, ignore_fields):
  """Raises for a field that is not read."""
  found = fields.get('quantization_config')
  if found is not None and 'quantization_config' not in ignore_fields:
    how = found.get('quant_method') if isinstance(found, Mapping) else None
    raise errors.UserError(
      f'{where}: quantization_config: the weights are quantized ({how or "by an unnamed method"}), and only those in '
      'float32, float16 and bfloat16 are read; take the model from before its quantization (load_in_4bit=true '
      'quantizes it here)'
    )
  family.file_fields().check(fields, where, ignore_fields)


# Fields whose 0 stands for a value that follows from others.
_COMPUTED: Mapping[str, Callable[[decoder_config.DecoderConfig], Any]] = {
  'head_dim': decoder_config.head_dim,
  'attention_multiplier': decoder_config.attention_multiplier,
}


def write(
  family: Family, config: decoder_config.DecoderConfig, dialect: str = rope_fields.OLD
) -> json_values.JsonObject:
  """The Hugging Face configuration of a decoder.

  Args:
    family: of its `model_type`.
    config: the decoder to write.
    dialect: of the rotations, see `rope_fields`.

  Raises:
    errors.UserError: for a field that the family cannot express.
  """
  fields: dict[str, object] = {'model_type': family.model_type, 'architectures': [family.architecture]}
  for name, field in family.fields.items():
    value = getattr(config, field.ours[0])
    if field.ours[0] in _COMPUTED:
      value = _COMPUTED[field.ours[0]](config)
    value = list(value) if isinstance(value, tuple) else value
    fields[name] = None if field.null is not None and value == field.null else value
  fields.update(family.layers.write(*layer_fields.normal(config.layer_types, config.sliding_window), config))
  if family.rope is not None:
    fields.update(family.rope.write(config, dialect))
  fields.update(family.others.write(config))
  again = comparable(read(family, fields, 'config.json'))
  for name, value in comparable(config).items():
    if again[name] != value:
      raise errors.UserError(f'{name}: {value!r} cannot be saved as {family.model_type}, which has {again[name]!r}')
  return fields


def comparable(config: decoder_config.DecoderConfig) -> json_values.JsonObject:
  """The fields that make the decoder's function, in one form for all configurations of the same function."""
  values = {name: value for name, value in config.as_dict().items() if name not in decoder_config.SETTINGS}
  values['layer_types'], values['sliding_window'] = layer_fields.normal(config.layer_types, config.sliding_window)
  values['no_rope_layers'] = [has_rope for _, has_rope in decoder_config.layer_kinds(config)]
  values.update({name: compute(config) for name, compute in _COMPUTED.items()})
  del values['query_pre_attn_scalar']  # attention_multiplier has it.
  if config.norm_type != 'layer_norm':
    values['norm_bias'] = None
  if not config.qk_norm:
    values['qk_norm_over'] = None
  values['decoder_sparse_step'] = values['mlp_only_layers'] = decoder_config.sparse_layers(config)
  if not config.num_experts:
    values['num_experts_per_tok'] = values['moe_intermediate_size'] = values['norm_topk_prob'] = None
    values['shared_expert_intermediate_size'] = None
  if config.position_embedding_type != 'rope':
    values['rope_parameters'] = values['sliding_rope_parameters'] = values['rope_interleaved'] = None
  return values


# The common part of the families derived from Llama.


def llama_fields(**defaults: object) -> dict[str, Field]:
  """The fields of Llama; `defaults` are transformers' values for missing ones."""
  heads = lambda fields: fields['num_attention_heads']
  fields = {
    'vocab_size': Field(('vocab_size',)),
    'hidden_size': Field(('hidden_size',)),
    'intermediate_size': Field(('intermediate_size',)),
    'num_hidden_layers': Field(('num_hidden_layers',)),
    'num_attention_heads': Field(('num_attention_heads',)),
    'num_key_value_heads': Field(('num_key_value_heads',), heads, null=heads),
    'head_dim': Field(('head_dim',), 0),
    'hidden_act': Field(('hidden_act',), 'silu'),
    'max_position_embeddings': Field(('max_position_embeddings',)),
    'rms_norm_eps': Field(('norm_eps',), 1e-6),
    'tie_word_embeddings': Field(('tie_word_embeddings',), False),
    'attention_dropout': Field(('attention_dropout',), 0.0),
    'initializer_range': Field(('initializer_range',), 0.02),
  }
  return {name: dataclasses.replace(field, default=defaults.get(name, field.default)) for name, field in fields.items()}


BIAS_OF_ALL_FOUR = Field(('attention_bias', 'attention_out_bias'), False)
HEAD = linear('lm_head', 'lm_head')
LLAMA_TENSORS = {
  'embed_tokens.weight': Tensor(('decoder/embed_tokens/embeddings',)),
  **norm('norm', 'decoder/norm'),
  **HEAD,
}
ATTENTION = {
  **linear('self_attn.q_proj', 'self_attn/q_proj'),
  **linear('self_attn.k_proj', 'self_attn/k_proj'),
  **linear('self_attn.v_proj', 'self_attn/v_proj'),
  **linear('self_attn.o_proj', 'self_attn/o_proj'),
}
LLAMA_LINEARS = {
  **ATTENTION,
  **linear('mlp.gate_proj', 'mlp/gate_proj'),
  **linear('mlp.up_proj', 'mlp/up_proj'),
  **linear('mlp.down_proj', 'mlp/down_proj'),
}
HEAD_NORMS = {**norm('self_attn.q_norm', 'self_attn/q_norm'), **norm('self_attn.k_norm', 'self_attn/k_norm')}
LLAMA_BLOCK = {
  **LLAMA_LINEARS,
  **norm('input_layernorm', 'input_layernorm'),
  **norm('post_attention_layernorm', 'pre_feedforward_layernorm'),
}
GEMMA_BLOCK = {
  **LLAMA_LINEARS,
  **norm('input_layernorm', 'input_layernorm'),
  **norm('post_attention_layernorm', 'post_attention_layernorm'),
  **norm('pre_feedforward_layernorm', 'pre_feedforward_layernorm'),
  **norm('post_feedforward_layernorm', 'post_feedforward_layernorm'),
}
