"""Writes GGUF files, which llama.cpp and programs around it read: weights, metadata and tokenizer in one file.

    gguf_files.write(model, 'model.gguf', tokenizer, 'q8_0')

Names and layout follow llama.cpp's convert_hf_to_gguf.py (https://github.com/ggml-org/llama.cpp); the package `gguf`
writes the file.

llama.cpp has two kinds of tokenizers for BPE: of bytes (`gpt2`), whose words are split by a rule that the file names,
and of characters with bytes for unknown ones (`llama`), which joins the pair of highest score. Others are refused: a
wrong rule would silently make other tokens.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import json
import os
import re
import tempfile
from typing import Any

from absl import logging
import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base.files import paths
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import position_encodings
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import tensor_files
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_classes

_LLAMA3_PATTERN = tokenizer_classes.QWEN2_PATTERN.replace(r'|\p{N}|', r'|\p{N}{1,3}|')
_BLANK = {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'}
_PREPEND = {'type': 'Prepend', 'prepend': '▁'}
_GEMMA_SPLIT = {'type': 'Split', 'pattern': {'String': ' '}, 'behavior': 'MergedWithPrevious', 'invert': False}
_BYTE = re.compile(r'<0x[0-9A-F]{2}>')


def add_vocabulary(writer: Any, library: Any, tokenizer: tokenizer_lib.Tokenizer, vocab_size: int, where: str) -> None:
  """Adds tokens, their types, merges or scores, special tokens and the chat template.

  Args:
    writer: a `gguf.GGUFWriter`.
    library: the module `gguf`.
    tokenizer: of the model.
    vocab_size: of the model; numbers without a token get an unused one.
    where: the start of messages.

  Raises:
    UserError: llama.cpp would make other tokens.
  """
  content = tokenizer.definition()
  model = content.get('model') or {}
  if model.get('type', 'BPE') != 'BPE':
    raise errors.UserError(f'{where}: the tokenizer is {model.get("type")}; only BPE is written as GGUF')
  if len(tokenizer) > vocab_size:
    raise errors.UserError(f'{where}: the tokenizer has {len(tokenizer)} tokens, and the model {vocab_size}')
  texts, types = _tokens(library, content, vocab_size)
  if model.get('byte_fallback'):
    has_prefix = _spm_prefix(content, where)
    scores = _scores(content, where)
    writer.add_tokenizer_model('llama')
    writer.add_tokenizer_pre('default')
    writer.add_token_list(texts)
    writer.add_token_scores([scores.get(text, 0.0) for text in texts])
    writer.add_add_space_prefix(has_prefix)
  else:
    rule = split_rule(content, where)
    writer.add_tokenizer_model('gpt2')
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(texts)
  writer.add_token_types(types)
  _add_special(writer, library, tokenizer, content, not model.get('byte_fallback'), where)


def _tokens(library, content, vocab_size):
  """(text, type) of every number."""
  kinds, model = library.TokenType, content['model']
  texts = [f'[PAD{number}]' for number in range(vocab_size)]
  types = [int(kinds.UNUSED)] * vocab_size
  has_bytes = bool(model.get('byte_fallback'))
  for text, number in model['vocab'].items():
    texts[number] = text
    types[number] = int(kinds.BYTE if has_bytes and _BYTE.fullmatch(text) else kinds.NORMAL)
  for token in content.get('added_tokens') or ():
    texts[token['id']] = token['content']
    types[token['id']] = int(kinds.CONTROL if token.get('special') else kinds.USER_DEFINED)
  if has_bytes and model.get('unk_token') in model['vocab']:
    types[model['vocab'][model['unk_token']]] = int(kinds.UNKNOWN)
  return texts, types


def _add_special(writer, library, tokenizer, content, has_merges, where):
  """Merges, special tokens and the chat template, by the package's own reader of a folder."""
  with tempfile.TemporaryDirectory() as folder:
    for name, data in tokenizer.files.items():
      os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
      with open(os.path.join(folder, name), 'wb') as file:
        file.write(data)
    with open(os.path.join(folder, 'tokenizer.json'), 'w', encoding='utf-8') as file:
      json.dump(content, file)
    # The reader finds special tokens in this file alone.
    config = json.loads(tokenizer.files.get('tokenizer_config.json', b'{}'))
    with open(os.path.join(folder, 'tokenizer_config.json'), 'w', encoding='utf-8') as file:
      json.dump({**config, **tokenizer.special_tokens}, file)
    special = library.SpecialVocab(folder, load_merges=has_merges)
  templates = tokenizer.templates  # The reader has another order of the places where they may lie.
  special.chat_template = [{'name': name, 'template': source} for name, source in templates.items()] or None
  if templates.keys() == {'default'}:
    special.chat_template = templates['default']
  # As in training, not as add_bos_token of tokenizer_config.json says, which transformers does not read either.
  begin, end = _added_to_texts(tokenizer, where)
  special.add_special_token.update(bos=bool(begin), eos=bool(end))
  ids = {'bos': tokenizer.bos_token_id, 'eos': tokenizer.eos_token_id}
  special.special_token_ids.update({kind: number for kind, number in ids.items() if number is not None})
  # llama.cpp ends a text at each of these: its names are those of the end of a turn, and of a message.
  stops = [stop for stop in tokenizer.stop_token_ids if stop != tokenizer.eos_token_id]
  for kind in ('eot', 'eom'):
    special.special_token_ids.pop(kind, None)
  special.special_token_ids.update(zip(('eot', 'eom'), stops))
  for stop in stops[2:]:
    logging.warning(
      '%s: generation_config.json: eos_token_id: %d: a GGUF file names two further ends at most', where, stop
    )
  special.add_to_gguf(writer, quiet=True)


def _added_to_texts(tokenizer, where):
  """The tokens that the tokenizer puts in front of each text, and after it; [] for none."""
  inside, whole = (tokenizer.encode('a', add_special_tokens=adds) for adds in (False, True))
  number = next((n for n in range(len(whole)) if whole[n : n + len(inside)] == inside), 0)
  begin, end = whole[:number], whole[number + len(inside) :]
  for found, known, name in ((begin, tokenizer.bos_token_id, 'bos_token'), (end, tokenizer.eos_token_id, 'eos_token')):
    if found and found != [known]:
      texts = ' '.join(tokenizer.decode([token]) for token in found)
      raise errors.UserError(
        f'{where}: the post-processor of tokenizer.json adds {texts} to texts, and llama.cpp adds nothing but {name}, '
        f'which is {tokenizer.special_tokens.get(name)!r} here; name that one in tokenizer_config.json'
      )
  return begin, end


def split_rule(content: json_values.JsonMapping, where: str) -> str:
  """llama.cpp's name of the rule that splits texts before bytes are joined (`tokenizer.ggml.pre`).

  Args:
    content: of tokenizer.json.
    where: the start of messages.

  Raises:
    UserError: it has none for this tokenizer.
  """
  model, normalizer = content['model'], content.get('normalizer')
  rule = _rule_of(content.get('pre_tokenizer') or {})
  # Qwen normalizes to NFC, which llama.cpp leaves to its caller.
  is_known = normalizer is None or (rule == 'qwen2' and normalizer == {'type': 'NFC'})
  ignores = bool(model.get('ignore_merges'))
  others = [name for name in ('dropout', 'continuing_subword_prefix', 'end_of_word_suffix') if model.get(name)]
  if rule is None or not is_known or others or ignores != (rule == 'llama-bpe'):
    what = others[0] if others else 'ignore_merges' if rule and is_known else 'pre_tokenizer or normalizer'
    raise errors.UserError(
      f'{where}: the {what} of tokenizer.json is not known to llama.cpp under any name: it would make other tokens; '
      'known are those of GPT-2, Llama 3, Qwen2 and SmolLM'
    )
  return rule


def _rule_of(pre_tokenizer: Mapping[str, Any]) -> str | None:
  parts = pre_tokenizer.get('pretokenizers') or [pre_tokenizer]
  first, last = parts[0], parts[-1]
  if last.get('type') != 'ByteLevel' or last.get('add_prefix_space') or len(parts) > 2:
    return None
  has_regex = last.get('use_regex', True)
  if len(parts) == 1:
    return 'gpt-2' if has_regex else None
  if first.get('type') == 'Digits':
    return 'smollm' if has_regex and first.get('individual_digits') else None
  is_split = first.get('type') == 'Split' and first.get('behavior') == 'Isolated' and not first.get('invert')
  pattern = (first.get('pattern') or {}).get('Regex')
  if has_regex or not is_split:
    return None
  return {tokenizer_classes.QWEN2_PATTERN: 'qwen2', _LLAMA3_PATTERN: 'llama-bpe'}.get(pattern or '')


def _spm_prefix(content, where) -> bool:
  """Whether a blank is put in front of each text."""
  normalizer, split = content.get('normalizer'), content.get('pre_tokenizer')
  steps = (normalizer or {}).get('normalizers') or ([] if normalizer is None else [normalizer])
  if steps == [_PREPEND, _BLANK] and split is None:
    return True
  if steps == [_BLANK] and split in (None, _GEMMA_SPLIT):
    return False
  if not steps and split is not None and split.get('type') == 'Metaspace' and not split.get('split'):
    return split.get('prepend_scheme') != 'never'
  raise errors.UserError(
    f'{where}: the normalizer or pre_tokenizer of tokenizer.json is not known to llama.cpp under any name: it would '
    'make other tokens; known are those of Llama 2, Mistral and Gemma'
  )


def _scores(content, where) -> dict[str, float]:
  """The score of each token that is joined: minus the place of its first merge.

  llama.cpp joins any two neighbours that make a token, and first the pair whose token has the highest score. That is
  the order of the merges if all pairs that make a token are merges, and a token's merges follow each other.
  """
  model = content['model']
  vocab = model['vocab']
  pairs = [tuple(merge.split(' ')) if isinstance(merge, str) else tuple(merge) for merge in model['merges']]
  scores: dict[str, float] = {}
  last = ''
  for place, (left, right) in enumerate(pairs):
    text = left + right
    if text != last and text in scores:
      raise _other_order(where, text)
    scores.setdefault(text, -float(place))
    last = text
  known = set(pairs)
  for text in scores:
    for end in range(1, len(text)):
      pair = text[:end], text[end:]
      if pair[0] in vocab and pair[1] in vocab and pair not in known:
        raise _other_order(where, text)
  return scores


def _other_order(where, text):
  return errors.UserError(
    f'{where}: the merges of tokenizer.json, at the token {text!r}, are no order of scores, by which llama.cpp joins '
    'tokens: it would make other tokens; use a tokenizer that was made by sentencepiece, or one of bytes'
  )


_SUFFIXES = ('.weight', '.bias')
# dtype -> the names of the type of matrices, and of the file's type, in the package. Vectors are always F32.
_TYPES = {
  'float32': ('F32', 'ALL_F32'),
  'float16': ('F16', 'MOSTLY_F16'),
  'bfloat16': ('BF16', 'MOSTLY_BF16'),
  'q8_0': ('Q8_0', 'MOSTLY_Q8_0'),
}
_CAPS = ('attn_logit_softcapping', 'final_logit_softcapping')


@dataclasses.dataclass(frozen=True)
class _Architecture:
  """The models that llama.cpp computes under one name.

  Attributes:
    name: in llama.cpp.
    hidden_act: of all of them.
    is_permuted: whether it rotates dimension 2i of a head together with 2i + 1, so that queries and keys are permuted.
    has_biases: whether all linear layers may have one; queries, keys and values of Qwen2 always have.
    is_tied: whether the embedding is always the head.
    alternates: whether the first, third, ... layer has the window, as Gemma 2 has them.
  """

  name: str
  hidden_act: str = 'silu'
  is_permuted: bool = False
  has_biases: bool = False
  is_tied: bool = False
  alternates: bool = False


_LLAMA = _Architecture('llama', is_permuted=True, has_biases=True)
_GEMMA = _Architecture('gemma', 'gelu_pytorch_tanh', is_tied=True)
_FAMILIES = {
  'llama': _LLAMA,
  'mistral': _LLAMA,
  'qwen2': _Architecture('qwen2'),
  'qwen3': _Architecture('qwen3'),
  'gemma': _GEMMA,
  'gemma2': dataclasses.replace(_GEMMA, name='gemma2', alternates=True),
}


def check(config: decoder_config.DecoderConfig, where: str) -> None:
  """Refuses a decoder that llama.cpp does not compute, or its family cannot express.

  Args:
    config: of the model.
    where: the start of messages, such as the folder.

  Raises:
    UserError: with the field.
  """
  if config.position_embedding_type == 'alibi':  # The converter of llama.cpp would write rotations without a word.
    raise errors.UserError(
      f'{where}: position_embedding_type: alibi: llama.cpp computes {config.model_type} with rotations alone; convert '
      'without --to=gguf'
    )
  known = _FAMILIES.get(config.model_type)
  if known is None:
    raise errors.UserError(
      f'{where}: model_type: {config.model_type} is not written as GGUF, {", ".join(_FAMILIES)} are; convert without '
      '--to=gguf, and with convert_hf_to_gguf.py of llama.cpp'
    )
  scaling = config.rope_parameters
  layers = decoder_config.layer_types(config)
  alternating = tuple(
    decoder_config.FULL if number % 2 else decoder_config.SLIDING for number in range(config.num_hidden_layers)
  )
  has_biases = config.attention_out_bias or config.mlp_bias or (config.attention_bias and config.model_type != 'qwen2')
  for field, is_wrong, wanted in (
    ('hidden_act', config.hidden_act != known.hidden_act, known.hidden_act),
    ('attention_bias', has_biases and not known.has_biases, 'False'),
    ('tie_word_embeddings', known.is_tied and not config.tie_word_embeddings, 'True'),
    ('layer_types', known.alternates and layers != alternating, 'a window in every other layer'),
    ('query_pre_attn_scalar', _has_other_scale(config), 'the size of a head'),
    # It divides by them.
    *((cap, known.alternates and getattr(config, cap) <= 0, 'a cap above 0') for cap in _CAPS),
  ):
    if is_wrong:
      value = getattr(config, field)
      raise errors.UserError(f'{where}: {field}: {value!r}: llama.cpp computes {known.name} with {wanted} alone')
  kinds = ('default', 'linear', 'llama3') if known is _LLAMA else ('default', 'linear')
  if scaling.rope_type not in kinds:
    raise errors.UserError(
      f'{where}: rope_parameters.rope_type: {scaling.rope_type} is not written as GGUF, {", ".join(kinds)} are'
    )
  try:
    pretrained.check_saves(config)
  except errors.UserError as error:
    raise errors.UserErrors([f'{where}: {line}' for line in errors.lines_of(error)]) from error


def _has_other_scale(config):
  """Whether scores are scaled otherwise than in llama.cpp: by heads, and in Gemma 2 27B by hidden_size / heads."""
  size = decoder_config.head_dim(config)
  if config.model_type == 'gemma2' and config.num_hidden_layers == 46:
    size = config.hidden_size // config.num_attention_heads
  return not np.isclose(decoder_config.attention_multiplier(config), size**-0.5, rtol=1e-6)


def context_length(config: decoder_config.DecoderConfig) -> int:
  """The longest context that the file states: the window, if llama.cpp has none and the model has."""
  has_window = decoder_config.SLIDING in decoder_config.layer_types(config)
  if has_window and not _FAMILIES[config.model_type].alternates:
    return min(config.max_position_embeddings, config.sliding_window)
  return config.max_position_embeddings


def write(
  model: decoder.LanguageModel, path: str, tokenizer: tokenizer_lib.Tokenizer, dtype: str = 'float16', name: str = ''
) -> None:
  """Writes a file, completely or not at all. It needs the memory of one tensor besides the model.

  Args:
    model: a plain `LanguageModel`, without adapters and packed weights.
    path: of the file, on a local disk.
    tokenizer: of the model.
    dtype: of matrices, one of `_TYPES`. Q8_0 has 8 bits a weight, and a scale for each 32; a matrix with rows of
      another multiple is float16 then. Vectors are float32.
    name: that programs show; '' for the file's name.

  Raises:
    UserError: the package is missing; llama.cpp does not compute the decoder or the tokenizer; a weight is not finite.
  """
  library: Any = package_imports.import_optional('gguf', 'a GGUF file', 'gguf')
  check(model.config, path)
  known = _FAMILIES[model.config.model_type]
  type_name, file_type = _TYPES[dtype]
  partial = os.path.join(os.path.dirname(path), f'.{os.path.basename(path)}.partial')
  writer = library.GGUFWriter(partial, known.name)
  writer.add_type('model')
  writer.add_name(name or os.path.basename(path).removesuffix('.gguf'))
  writer.add_file_type(library.LlamaFileType[file_type])
  writer.add_quantization_version(library.GGML_QUANT_VERSION)
  _add_structure(writer, library, model.config)
  add_vocabulary(writer, library, tokenizer, model.config.vocab_size, path)
  tensors = list(_tensors(library, model, library.GGMLQuantizationType[type_name]))
  for tensor_name, shape, kind, _ in tensors:
    block, size = library.GGML_QUANT_SIZES[kind]
    num_bytes = int(np.prod(shape)) // block * size
    writer.add_tensor_info(tensor_name, shape, np.dtype(np.float32), num_bytes, raw_dtype=kind)
  try:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor_name, _, kind, value in tensors:
      array = np.ascontiguousarray(value(), np.float32)
      tensor_files.check_finite(array, f'{path}: the tensor {tensor_name}')
      packed = library.quants.quantize(array, kind)
      if packed.dtype == np.float16:
        tensor_files.check_finite(packed, f'{path}: in float16, the tensor {tensor_name}')
      if kind == library.GGMLQuantizationType.Q8_0:  # Of each block: the scale in float16, and 32 numbers.
        scales = packed.reshape(-1, library.GGML_QUANT_SIZES[kind][1])[:, :2].copy().view(np.float16)
        tensor_files.check_finite(scales, f'{path}: in float16, the scales of the tensor {tensor_name}')
      writer.write_tensor_data(packed)
    writer.close()
    os.replace(partial, path)
  finally:
    if os.path.exists(partial):
      os.remove(partial)
  paths.sync_to_disk(os.path.dirname(path) or '.')


def _add_structure(writer: Any, library: Any, config: decoder_config.DecoderConfig) -> None:
  """The metadata of the decoder."""
  size, scaling = decoder_config.head_dim(config), config.rope_parameters
  writer.add_vocab_size(config.vocab_size)
  writer.add_context_length(context_length(config))
  writer.add_embedding_length(config.hidden_size)
  writer.add_block_count(config.num_hidden_layers)
  writer.add_feed_forward_length(config.intermediate_size)
  writer.add_head_count(config.num_attention_heads)
  writer.add_head_count_kv(config.num_key_value_heads)
  writer.add_key_length(size)
  writer.add_value_length(size)
  writer.add_layer_norm_rms_eps(config.norm_eps)
  writer.add_rope_dimension_count(size)
  writer.add_rope_freq_base(scaling.rope_theta)
  if scaling.rope_type == 'linear':
    writer.add_rope_scaling_type(library.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(scaling.factor)
  if _FAMILIES[config.model_type].alternates:
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _tensors(library, model, kind) -> Iterator[tuple[str, tuple[int, ...], Any, Callable[[], np.ndarray]]]:
  """(name in the file, shape, type, a function that makes the array) of every tensor."""
  config = model.config
  known, types = _FAMILIES[config.model_type], library.GGMLQuantizationType
  architectures = {name: architecture for architecture, name in library.MODEL_ARCH_NAMES.items()}
  names = library.get_tensor_name_map(architectures[known.name], config.num_hidden_layers)
  if config.rope_parameters.rope_type == 'llama3':
    original = config.rope_parameters.original_max_position_embeddings or config.max_position_embeddings
    factors = position_encodings.frequency_factors(config.rope_parameters, decoder_config.head_dim(config), original)
    yield 'rope_freqs.weight', factors.shape, types.F32, lambda: factors
  for theirs, shape, value in pretrained.tensors(model):
    name = names.get_name(theirs, try_suffixes=_SUFFIXES)
    assert name is not None, theirs
    chosen = types.F32 if len(shape) == 1 else kind
    if shape[-1] % library.GGML_QUANT_SIZES[chosen][0]:
      chosen = types.F16
    yield name, shape, chosen, _laid_out(config, known, theirs, value)


def _laid_out(config, known, theirs, value):
  """A function that makes an array as llama.cpp has it."""
  if config.norm_offset and theirs.endswith('norm.weight'):
    return lambda: np.asarray(value(), np.float32) + config.norm_offset
  for name, heads in (('q_proj', config.num_attention_heads), ('k_proj', config.num_key_value_heads)):
    if known.is_permuted and f'.{name}.' in theirs:
      return lambda: interleaved(value(), heads)
  return value


def interleaved(value: np.ndarray, num_heads: int) -> np.ndarray:
  """Outputs [heads * head_dim, ...] in which dimension i of a head and i + head_dim / 2 stand side by side."""
  parts = value.reshape(num_heads, 2, value.shape[0] // num_heads // 2, *value.shape[1:])
  return np.swapaxes(parts, 1, 2).reshape(value.shape)
