"""Which of its classes transformers' AutoTokenizer makes of a folder, and how that class changes tokenizer.json.

A class of transformers 5 with its own constructor takes vocabulary, merges, added tokens and post-processor from
tokenizer.json, and brings its own normalizer, pre-tokenizer and decoder. `FOLLOWED` classes are built in the same way
here. Others are refused. All further names mean tokenizer.json without changes.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
from typing import Any, NamedTuple

from official_ext.base import json_values

# Of the families of modeling/families: transformers' TOKENIZER_MAPPING_NAMES.
REGISTERED: Mapping[str, str] = {
  **dict.fromkeys(('qwen2', 'qwen2_moe', 'qwen3', 'qwen3_moe'), 'Qwen2Tokenizer'),
  **dict.fromkeys(('gemma', 'gemma2', 'gemma3_text'), 'GemmaTokenizer'),
  **dict.fromkeys(('mistral', 'ministral3', 'mixtral'), 'MistralCommonBackend'),
  **dict.fromkeys(('gpt2', 'phi', 'starcoder2'), 'GPT2Tokenizer'),
  **dict.fromkeys(('phi3', 'granite', 'olmo2'), 'TokenizersBackend'),
  **dict.fromkeys(('cohere', 'cohere2'), 'CohereTokenizer'),
}
# Families whose registered class wins over every tokenizer_class: MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS.
FORCED = ('phi3', 'qwen2')
_UNCHANGED = ('TokenizersBackend', 'PythonBackend', 'PreTrainedTokenizerFast', 'MistralCommonBackend')
UNCHANGED_CLASS = 'PreTrainedTokenizerFast'  # Its name in transformers 4 and 5.

QWEN2_PATTERN = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTE_LEVEL = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': False, 'use_regex': True}
_BYTE_FALLBACK = [
  {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '},
  {'type': 'ByteFallback'},
  {'type': 'Fuse'},
]
_END = '<|endoftext|>'
# Named tokens of each class if the files have none: its constructor's defaults.
FOLLOWED: Mapping[str, Mapping[str, str]] = {
  'Qwen2Tokenizer': dict.fromkeys(('unk_token', 'eos_token', 'pad_token'), _END),
  'GPT2Tokenizer': dict.fromkeys(('unk_token', 'bos_token', 'eos_token'), _END),
  'CodeGenTokenizer': dict.fromkeys(('unk_token', 'bos_token', 'eos_token'), _END),
  'CohereTokenizer': {
    'unk_token': '<UNK>',
    'bos_token': '<BOS_TOKEN>',
    'eos_token': '<|END_OF_TURN_TOKEN|>',
    'pad_token': '<PAD>',
    'cls_token': '<CLS>',
    'sep_token': '<SEP>',
    'mask_token': '<MASK_TOKEN>',
  },
  'LlamaTokenizer': {'unk_token': '<unk>', 'bos_token': '<s>', 'eos_token': '</s>'},
  'GemmaTokenizer': {name: f'<{name.removesuffix("_token")}>' for name in (
    'unk_token', 'bos_token', 'eos_token', 'pad_token', 'mask_token'
  )},
}  # fmt: skip
REFUSED = frozenset(
  f'{name}Tokenizer'
  for name in """
  Albert Bart Barthez Bartpho Bert BertGeneration BertJapanese Bertweet BigBird BioGpt Blenderbot BlenderbotSmall ByT5
  CLIP CTRL Camembert Canine Clvp CodeLlama Cpm CpmAnt DPRQuestionEncoder Deberta DebertaV2 Dia Esm Esmc FSMT
  Flaubert Funnel GPTNeoX GPTNeoXJapanese GPTSw3 Herbert LED Lasr LayoutLMv2 LayoutLMv3 LayoutXLM Luke Lxmert M2M100
  MBart MBart50 MLuke MPNet Marian MarkupLM Mgpstr MobileBert Mvp MyT5 Nllb Nougat OpenAIGPT PLBart Pegasus Perceiver
  Phobert ProphetNet Qwen3_5 Rag Reformer RemBert RoCBert RoFormer Roberta SeamlessM4T Siglip Siglip2 Speech2Text
  SpeechT5 Splinter T5 Tapas Tipsv2 Udop VideoPrism Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC Whisper XGLM XLM XLMRoberta
  XLNet
  """.split()
)


def resolve(model_type: str, tokenizer_class: str, content: Callable[[], Mapping[str, object]]) -> str:
  """The class that AutoTokenizer makes, as transformers 5 chooses it.

  Args:
    model_type: of the config.json in the tokenizer's folder; '' for none.
    tokenizer_class: of tokenizer_config.json; '' if it names none.
    content: reads tokenizer.json.

  Returns:
    One of `FOLLOWED`, one of `REFUSED`, or '' if tokenizer.json is taken unchanged.
  """
  named, registered = tokenizer_class.removesuffix('Fast'), REGISTERED.get(model_type, '')
  if model_type in FORCED:
    named = registered
  elif named == 'LlamaTokenizer' and registered != 'MistralCommonBackend' and _has_byte_level(content()):
    named = ''  # Llama 3.
  elif registered in _UNCHANGED:
    named = ''
  elif not named:
    named = registered
  return named if named in FOLLOWED or named in REFUSED else ''


def _has_byte_level(content: Mapping[str, object]) -> bool:
  """Whether the pre-tokenizer or the decoder works on bytes."""
  return any('"ByteLevel"' in json.dumps(content.get(part)) for part in ('pre_tokenizer', 'decoder'))


@dataclasses.dataclass(frozen=True)
class _Parts:
  """The parts of a class: the parts of tokenizer.json, and the fields of its model but for vocabulary and merges."""

  normalizer: object
  pre_tokenizer: object
  decoder: Any
  model: json_values.JsonMapping


def _parts(name: str, config: Mapping[str, object], special_tokens: Mapping[str, str]) -> _Parts:
  adds_space = config.get('add_prefix_space')
  if name == 'Qwen2Tokenizer':
    split = {'type': 'Split', 'pattern': {'Regex': QWEN2_PATTERN}, 'behavior': 'Isolated', 'invert': False}
    bytes_alone = {**_BYTE_LEVEL, 'add_prefix_space': bool(adds_space), 'use_regex': False}
    pre_tokenizer = {'type': 'Sequence', 'pretokenizers': [split, bytes_alone]}
    return _Parts({'type': 'NFC'}, pre_tokenizer, _BYTE_LEVEL, {})
  if name == 'CohereTokenizer':
    bytes_alone = {**_BYTE_LEVEL, 'add_prefix_space': bool(adds_space)}
    pre_tokenizer = {'type': 'Sequence', 'pretokenizers': [{'type': 'Digits', 'individual_digits': True}, bytes_alone]}
    return _Parts({'type': 'NFC'}, pre_tokenizer, _BYTE_LEVEL, {})
  if name in ('GPT2Tokenizer', 'CodeGenTokenizer'):
    return _Parts(None, {**_BYTE_LEVEL, 'add_prefix_space': bool(adds_space)}, _BYTE_LEVEL, {})
  if name == 'GemmaTokenizer':
    split = {'type': 'Split', 'pattern': {'String': ' '}, 'behavior': 'MergedWithPrevious', 'invert': False}
    model = {'fuse_unk': True, 'byte_fallback': True, 'unk_token': special_tokens.get('unk_token', 'None')}
    normalizer = {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'}
    return _Parts(normalizer, split, {'type': 'Sequence', 'decoders': _BYTE_FALLBACK}, model)
  adds_space = adds_space is None or bool(adds_space)
  scheme = 'never' if not adds_space else 'always' if config.get('legacy') else 'first'
  mark = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': scheme, 'split': False}
  strip = [{'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}] if adds_space else []
  decoder = {'type': 'Sequence', 'decoders': [*_BYTE_FALLBACK, *strip]}
  return _Parts(None, mark, decoder, {'fuse_unk': True, 'byte_fallback': True})


def rebuilt(
  name: str, content: json_values.JsonMapping, config: json_values.JsonMapping, special_tokens: Mapping[str, str]
) -> json_values.JsonObject | None:
  """The tokenizer.json of a class of `FOLLOWED`.

  Args:
    name: of the class.
    content: of tokenizer.json.
    config: of tokenizer_config.json.
    special_tokens: the named ones.

  Returns:
    The contents of an equivalent tokenizer.json, without added tokens: they are to be added again, as that
    changes numbers. None if tokenizer.json has all of it already.

  Raises:
    ValueError: the class cannot be made of this file; the message says why.
  """
  model = content.get('model') or {}
  kind = model.get('type') or ('BPE' if 'merges' in model else 'unknown')
  if kind != 'BPE':
    raise ValueError(f'the model is {kind}, expected BPE')
  parts = _parts(name, config, special_tokens)
  unknown = parts.model.get('unk_token')
  if unknown is not None and unknown not in model['vocab']:
    raise ValueError(f'the vocabulary lacks the unknown token {unknown}')
  own = {field: value for field, value in model.items() if field not in ('type', 'vocab', 'merges')}
  brought = {'normalizer': parts.normalizer, 'pre_tokenizer': parts.pre_tokenizer, 'decoder': parts.decoder}
  is_same = all(
    _essential(content.get(part), part == 'decoder') == _essential(value, part == 'decoder')
    for part, value in brought.items()
  )
  if is_same and _essential(own) == _essential(parts.model) and _declared_alike(content, config):
    return None
  made = {'type': 'BPE', 'vocab': model['vocab'], 'merges': model['merges'], **parts.model}
  return {**content, **brought, 'model': made, 'added_tokens': []}


def _essential(part: object, is_decoder: bool = False) -> object:
  """A part without the fields that do not change tokens or text: offsets, and fields that are off."""
  if isinstance(part, list):
    return [_essential(value, is_decoder) for value in part]
  if not isinstance(part, dict):
    return part
  if part.get('type') == 'ByteLevel':
    part = {'type': 'ByteLevel'} if is_decoder else {'use_regex': True, **part}
  left = {name: _essential(value, is_decoder) for name, value in part.items() if name not in ('trim_offsets', 'id')}
  return {name: value for name, value in left.items() if value not in (None, '', False)}


def _declared_alike(content, config):
  """Whether the added tokens agree with tokenizer_config.json, which wins if it has any."""
  declared = config.get('added_tokens_decoder')
  if declared is None:
    return True
  of_file = {int(token['id']): _essential(token) for token in content.get('added_tokens', ())}
  return of_file == {int(number): _essential(token) for number, token in declared.items()}


# The order in which transformers knows them.
NAMED = ('bos_token', 'eos_token', 'unk_token', 'sep_token', 'pad_token', 'cls_token', 'mask_token')


class Declared(NamedTuple):
  """The special and added tokens that the files of a folder declare.

  Attributes:
    named: name -> token, such as 'eos_token', or a model's own 'image_token'; a token is a text or its fields.
    extra: further special tokens.
    added: number -> fields of an added token, of all files.
  """

  named: Mapping[str, Any]
  extra: Sequence[Any]
  added: Mapping[int, json_values.JsonMapping]


def declared_tokens(
  of_json: Mapping[int, json_values.JsonMapping],
  config: json_values.JsonMapping,
  special_map: json_values.JsonMapping,
  added: Mapping[str, int],
) -> Declared:
  """The tokens of a folder, by the rules of transformers 5.

  Files of before tokenizer_config.json had `added_tokens_decoder` declare them in three other files, which are not
  read if it is there.

  Args:
    of_json: number -> fields of the added tokens of tokenizer.json.
    config: of tokenizer_config.json.
    special_map: of special_tokens_map.json.
    added: of added_tokens.json: text -> number.
  """
  own = {name: value for name, value in config.items() if name.endswith('_token') and name not in NAMED}
  own = {name: value for name, value in own.items() if isinstance(value, str)}
  extra = config.get('extra_special_tokens') or config.get('additional_special_tokens') or []
  if isinstance(extra, Mapping):
    own, extra = {**own, **extra}, []
  if not own:
    own = dict(config.get('model_specific_special_tokens') or {})
  named = {name: config[name] for name in NAMED if name in config}
  if config.get('added_tokens_decoder') is not None:
    of_config = {int(number): fields for number, fields in config['added_tokens_decoder'].items()}
    return Declared({**named, **own}, list(extra), of_config)
  named.update({name: value for name, value in special_map.items() if name in NAMED})
  of_map = {name: value for name, value in special_map.items() if name.endswith('_token') and name not in NAMED}
  more = special_map.get('extra_special_tokens')
  if isinstance(more, Mapping):
    own = {**own, **more}
  elif more:
    extra = [*extra, *(token for token in more if token not in extra)]
  elif not {'extra_special_tokens', 'additional_special_tokens'} & config.keys():
    extra = special_map.get('additional_special_tokens') or extra
  special = {*map(text_of, named.values()), *map(text_of, extra)}
  of_file = {
    number: {'content': text, 'normalized': text not in special, 'special': text in special}
    for text, number in added.items()
  }
  return Declared({**named, **of_map, **own}, list(extra), {**of_file, **of_json})


def text_of(token: object) -> str:
  """The text of a token, which is written as such or as a dictionary; '' for none."""
  return token.get('content', '') if isinstance(token, dict) else token if isinstance(token, str) else ''
