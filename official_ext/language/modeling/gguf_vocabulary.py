"""The tokenizer of a GGUF file, as llama.cpp reads it.

llama.cpp has two kinds of tokenizers for BPE: of bytes (`gpt2`), whose words are split by a rule that the file names,
and of characters with bytes for unknown ones (`llama`), which joins the pair of highest score. Others are refused: a
wrong rule would silently make other tokens.
"""

from collections.abc import Mapping
import json
import os
import re
import tempfile
from typing import Any

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_classes

_LLAMA3_PATTERN = tokenizer_classes.QWEN2_PATTERN.replace(r'|\p{N}|', r'|\p{N}{1,3}|')
_BLANK = {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'}
_PREPEND = {'type': 'Prepend', 'prepend': '▁'}
_GEMMA_SPLIT = {'type': 'Split', 'pattern': {'String': ' '}, 'behavior': 'MergedWithPrevious', 'invert': False}
_BYTE = re.compile(r'<0x[0-9A-F]{2}>')


def add(writer: Any, library: Any, tokenizer: tokenizer_lib.Tokenizer, vocab_size: int, where: str) -> None:
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
  _add_special(writer, library, tokenizer, content, has_merges=not model.get('byte_fallback'))


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


def _add_special(writer, library, tokenizer, content, has_merges):
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
  for kind in ('bos', 'eos'):  # Without them llama.cpp has other defaults.
    special.add_special_token.setdefault(kind, False)
  special.add_to_gguf(writer, quiet=True)


def split_rule(content: json_types.JsonMapping, where: str) -> str:
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

  llama.cpp joins any two neighbours that make a token, and first those whose token has the highest score. That is the
  order of the merges if all pairs that make a token are merges, and those of a token follow each other.
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
