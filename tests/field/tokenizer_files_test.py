"""Fields and files of a tokenizer's folder: numbers and texts of transformers' AutoTokenizer, or named in an error."""

import json
import os
import random

from absl import logging
import pytest
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers

from official_ext.base import errors
from official_ext.language.text import tokenizer as tokenizer_lib

WORDS = ['hello world, yes and no.', "don't you ' know ? it 's", 'ab ba abba']
PIECES = [*"abno .,?!'", ' hello', 'yes', "n't", " 's", '<|im_end|>', '<image>', '<tool>', '<extra>', '<pad>', '\n']


def _trained(model, trainer, pre_tokenizer, decoder=None):
  made = tokenizers.Tokenizer(model)
  made.pre_tokenizer = pre_tokenizer
  if decoder:
    made.decoder = decoder
  made.train_from_iterator(WORDS * 3, trainer)
  return made


def byte_level():
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  trainer = trainers.BpeTrainer(
    vocab_size=300, special_tokens=['<|end|>'], show_progress=False, initial_alphabet=alphabet
  )
  return _trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())


def word_piece():
  trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=['[UNK]', '<|end|>'], show_progress=False)
  return _trained(models.WordPiece(unk_token='[UNK]'), trainer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece())


def unigram():
  trainer = trainers.UnigramTrainer(
    vocab_size=60, special_tokens=['<|end|>', '<unk>'], unk_token='<unk>', show_progress=False
  )
  return _trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace())


def _plain(text, special=False, **flags):
  return tokenizers.AddedToken(text, special=special, normalized=False, **flags)


def _fields(text, **flags):
  fields = {'lstrip': False, 'rstrip': False, 'normalized': True, 'single_word': False, 'special': False, **flags}
  return {'content': text, **fields}


# name -> (the backend, its added tokens, fields of tokenizer_config.json, other files).
CASES = {
  'an end token that is not special': (byte_level, [_plain('<|im_end|>')], {'eos_token': '<|im_end|>'}, {}),
  'an end token of a text that tokenizer.json lacks': (byte_level, [], {'eos_token': '<|im_end|>'}, {}),
  'added_tokens.json': (
    byte_level, [_plain('<tool>')], {'eos_token': '<|im_end|>'},
    {'added_tokens.json': {'<tool>': 300, '<extra>': 302, '<|im_end|>': 301}},
  ),
  'flags of added_tokens_decoder': (
    byte_level, [_plain('<tool>'), _plain('<pad>')],
    {'added_tokens_decoder': {
      '300': _fields('<tool>', lstrip=True, rstrip=True, special=True),
      '301': _fields('<pad>', single_word=True),
      '309': _fields('<extra>'),
    }, 'pad_token': '<pad>'},
    {},
  ),
  'tokens of a model alone': (
    byte_level, [],
    {'image_token': '<image>', 'eos_token': '<|end|>', 'extra_special_tokens': {'tool_token': '<tool>'}}, {},
  ),
  'a list of extra tokens': (byte_level, [_plain('<tool>')], {'extra_special_tokens': ['<extra>', '<tool>']}, {}),
  'special_tokens_map.json': (
    byte_level, [_plain('<tool>')], {},
    {'special_tokens_map.json': {
      'eos_token': {'content': '<|im_end|>', 'lstrip': True, 'normalized': False, 'rstrip': True, 'single_word': False},
      'pad_token': '<pad>', 'additional_special_tokens': ['<tool>', '<extra>'], 'image_token': '<image>',
    }},
  ),
  'special tokens that are split': (byte_level, [_plain('<tool>', True)], {'split_special_tokens': True}, {}),
  'blanks of BPE': (byte_level, [], {'clean_up_tokenization_spaces': True}, {}),
  'blanks of BPE by force': (byte_level, [], {
    'clean_up_tokenization_spaces': True,
    'clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output': True,
  }, {}),
  'blanks of WordPiece': (
    word_piece, [_plain('<tool>')], {'clean_up_tokenization_spaces': True, 'unk_token': '[UNK]'}, {},
  ),
  'WordPiece': (word_piece, [_plain('<tool>')], {'clean_up_tokenization_spaces': False, 'pad_token': '<pad>'}, {}),
  'blanks of Unigram': (unigram, [_plain('<tool>', True)], {'clean_up_tokenization_spaces': True}, {}),
  'a begin token that no post-processor adds': (
    byte_level, [_plain('<pad>', True)], {'bos_token': '<pad>', 'add_bos_token': True, 'add_eos_token': True}, {},
  ),
  'templates by name': (
    byte_level, [],
    {'chat_template': {'default': 'd{{ messages[0].content }}', 'tool_use': 't{{ tools | length }}'}}, {},
  ),
  'a template file beside the field': (
    byte_level, [], {'chat_template': 'no', 'image_token': '<image>'},
    {'chat_template.jinja': '{{ image_token }}{{ messages[0].content }}'},
  ),
}  # fmt: skip


def write(folder, backend, added=(), config=(), files=()):
  made = backend()
  for token in added:
    made.add_tokens([token])
  made.save(str(folder / 'tokenizer.json'))
  contents = {'tokenizer_config.json': {'tokenizer_class': 'PreTrainedTokenizerFast', **dict(config)}, **dict(files)}
  for name, content in contents.items():
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
  return str(folder)


@pytest.fixture(scope='module')
def auto():
  """transformers' AutoTokenizer, kept from the network."""
  os.environ['HF_HUB_OFFLINE'] = '1'
  import transformers  # pylint: disable=g-import-not-at-top

  transformers.logging.set_verbosity_error()
  return transformers.AutoTokenizer.from_pretrained


@pytest.mark.parametrize('case', CASES)
def test_numbers_texts_and_flags_are_those_of_transformers(case, auto, tmp_path):
  folder = write(tmp_path, *CASES[case])
  ours, theirs = tokenizer_lib.Tokenizer.load(folder), auto(folder)
  rng = random.Random(case)
  for _ in range(60):
    text = ''.join(rng.choices(PIECES, k=rng.randint(0, 25)))
    for adds in (True, False):
      ids = theirs.encode(text, add_special_tokens=adds)
      assert ours.encode(text, adds) == ids, text
      for skips in (True, False):
        assert ours.decode(ids, skips) == theirs.decode(ids, skip_special_tokens=skips), text
  assert len(ours) == max(theirs.get_vocab().values()) + 1
  for name in ('bos', 'eos', 'pad'):
    assert getattr(ours, f'{name}_token_id') == getattr(theirs, f'{name}_token_id'), name
  if theirs.chat_template:
    for tools in (None, [{'type': 'function', 'function': {'name': 'f'}}]):
      messages = [{'role': 'user', 'content': 'hi'}]
      assert ours.apply_chat_template(messages, tools=tools) == theirs.apply_chat_template(
        messages, tools=tools, tokenize=False
      )


def test_an_unknown_field_is_reported_once_and_one_that_changes_tokens_is_refused(tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr(logging, 'warning', lambda form, *values: said.append(form % values))
  folder = write(tmp_path, byte_level, config={'a_new_field': 1}, files={'special_tokens_map.json': {'other': 'x'}})
  for _ in range(2):
    tokenizer_lib.Tokenizer.load(folder)
  assert said == [
    f'{folder}/tokenizer_config.json: a_new_field: 1 may change tokens: not known here; remove it, or save the '
    'tokenizer by transformers once',
    f"{folder}/special_tokens_map.json: other: 'x' may change the result: not known here",
  ]
  for field, value in (
    ('auto_map', {'AutoTokenizer': ['a.B', None]}),
    ('fix_mistral_regex', True),
    ('fast_tokenizer_files', ['tokenizer.4.0.json']),
    ('init_inputs', [1]),
  ):
    folder = write(tmp_path, byte_level, config={field: value})
    with pytest.raises(errors.UserError, match=f'tokenizer_config.json: {field}: '):
      tokenizer_lib.Tokenizer.load(folder)
  folder = write(tmp_path, byte_level, files={'added_tokens.json': {'<tool>': '300'}})
  with pytest.raises(errors.UserError, match="added_tokens.json: '<tool>': '300': expected a token's number"):
    tokenizer_lib.Tokenizer.load(folder)
  folder = write(tmp_path, byte_level, files={'added_tokens.json': {}})
  content = json.loads((tmp_path / 'tokenizer.json').read_text())
  (tmp_path / 'tokenizer.json').write_text(json.dumps({**content, 'a_new_part': 1}))
  with pytest.raises(errors.UserError, match='tokenizer.json: a_new_part: 1 may change the result: not known here'):
    tokenizer_lib.Tokenizer.load(folder)
