"""Tokens from a cache of pieces are those of the tokenizer, of any text and in any order of texts."""

import functools
import json
import random

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.language.text import python_topics
from official_ext.language.text import token_store
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_training
from tests.language.text import hugging_face_folders as folders

tokenizers = pytest.importorskip('tokenizers')

END = '<|endoftext|>'
LLAMA3 = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
  r'|\s+(?!\S)|\s+'
)
QWEN2 = LLAMA3.replace('{1,3}', '')
# Whitespace of every kind, punctuation that joins and does not, letters old and new, marks, digits, what NFC changes,
# parts of added tokens.
PARTS = [
  *' \n\t\r\'.,!("<|_-/9\u00a0\u3000\u0301éßщяλ字🙂\u2028\x85\x1c\x00\u037e\u212a٣²ſK',
  *("'s", "'LL", '  ', '\n\n', ' the', 'word', END, '<|endoftext', '<|end', '[odd] one', "don't", 'Ünï', '\r\n'),
  *('e\u0301', '\u1100\u1161', 'x1y2', '\U0001e900', ' a', 'e', '\ue000\uf8ff\ue000'),
]


@functools.cache
def trained():
  """A definition, with tokens of many of the parts that follow each other."""
  topics = [document['text'] for document in python_topics.documents('train')]
  return json.dumps(tokenizer_training.train([*topics[:20], *random_texts('train', 2000)], 2000).definition())


def tokenizer_of(pattern='', normalizer=None, begins=False):
  """A byte-level BPE with the pattern; '' for GPT-2's. `begins`: texts begin with a special token."""
  definition = json.loads(trained())
  byte_level = definition['pre_tokenizer']
  if pattern:
    split = {'type': 'Split', 'pattern': {'Regex': pattern}, 'behavior': 'Isolated', 'invert': False}
    definition['pre_tokenizer'] = {
      'type': 'Sequence',
      'pretokenizers': [split, {**byte_level, 'use_regex': False}],
    }
  definition['normalizer'] = normalizer
  backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
  if begins:
    number = backend.token_to_id(END)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
      single=f'{END} $A', special_tokens=[(END, number)]
    )
  backend.add_special_tokens([tokenizers.AddedToken('[odd] one', lstrip=True, rstrip=True, normalized=False)])
  return tokenizer_lib.Tokenizer.from_backend(backend, {'eos_token': END})


CASES = {
  'gpt2': {},
  'llama3': {'pattern': LLAMA3, 'begins': True},
  'qwen2': {'pattern': QWEN2, 'normalizer': {'type': 'NFC'}},
}


def random_texts(seed, count):
  draws = random.Random(seed)
  return [''.join(draws.choices(PARTS, k=draws.randrange(30))) for _ in range(count)]


def assert_same(encoder, tokenizer, texts):
  for adds in (False, True):
    for text, ids, expected in zip(
      texts, encoder.encode_batch(texts, adds), tokenizer.encode_batch(texts, adds), strict=True
    ):
      assert ids.dtype == expected.dtype and ids.tolist() == expected.tolist(), (text, adds)


@pytest.mark.parametrize('case', CASES)
def test_tokens_are_the_tokenizers(case, monkeypatch):
  monkeypatch.setattr(token_store, '_MOST_MISSED', 1.0)  # Each batch by its pieces.
  tokenizer = tokenizer_of(**CASES[case])
  encoder = token_store.cached_encoder(tokenizer)
  topics = [document['text'] for document in python_topics.documents('validation')]
  for batch in (['', ' ', 'a'], topics, *(random_texts(seed, 200) for seed in range(6))):
    assert_same(encoder, tokenizer, batch)
  assert encoder._young and encoder._without == 0


def test_generations_are_dropped(monkeypatch):
  monkeypatch.setattr(token_store, '_MOST_MISSED', 1.0)
  monkeypatch.setattr(token_store, '_GENERATION', 50)
  tokenizer = tokenizer_of()
  encoder = token_store.cached_encoder(tokenizer)
  seen = set()
  for seed in range(30):
    assert_same(encoder, tokenizer, random_texts(seed % 7, 20))
    seen |= encoder._young.keys()
  assert len(seen) > len(encoder._young) + len(encoder._old)


def test_long_pieces_are_not_kept():
  tokenizer = tokenizer_of()
  encoder = token_store.cached_encoder(tokenizer)
  assert_same(encoder, tokenizer, ['word ' * 1000 + 'x' * 64 + '\n' + 'x' * 65])
  assert {'word', ' word', ' ' + 'x' * 63} & encoder._young.keys() == {'word', ' word'}
  assert max(map(len, encoder._young)) <= token_store._MAX_CHARACTERS < 65


def test_batches_of_new_pieces_are_encoded_whole():
  tokenizer = tokenizer_of()
  encoder = token_store.cached_encoder(tokenizer)
  texts = [f'{number}a{number}' for number in range(100)]
  assert_same(encoder, tokenizer, texts)
  assert encoder._without == token_store._BATCHES_WITHOUT - 1
  for _ in range(token_store._BATCHES_WITHOUT):
    encoder.encode_batch(texts)
  assert encoder._without == 0


@pytest.mark.parametrize(
  'change',
  [
    {'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True, 'use_regex': True}},
    {'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': False}},
    {'pre_tokenizer': None},
    {'normalizer': {'type': 'Lowercase'}},
    {'normalizer': {'type': 'Prepend', 'prepend': '_'}},
  ],
)
def test_other_tokenizers_have_no_encoder(change):
  definition = {**json.loads(trained()), **change}
  backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
  assert token_store.cached_encoder(tokenizer_lib.Tokenizer.from_backend(backend, {'eos_token': END})) is None


def test_other_patterns_have_no_encoder():
  assert token_store.cached_encoder(tokenizer_of(r'\S+|\s+')) is None


@pytest.mark.parametrize('name, is_known', [('llama3', True), ('older', False), ('declared', True)])
def test_folders(name, is_known, tmp_path):
  tokenizer = tokenizer_lib.Tokenizer.load(str(folders.ALL[name](tmp_path / name)))
  encoder = token_store.cached_encoder(tokenizer)
  assert (encoder is not None) == is_known
  if encoder:
    assert_same(encoder, tokenizer, ['The quick <|im_end|> brown fox.', 'a <s></s> <pad><|tool|><|mask|> x b'])


def test_a_vocabulary_with_holes_has_no_encoder():
  definition = json.loads(trained())
  vocabulary = definition['model']['vocab']
  last = max(vocabulary, key=vocabulary.get)
  vocabulary[last] += 100
  backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
  assert token_store.cached_encoder(tokenizer_lib.Tokenizer.from_backend(backend, {'eos_token': END})) is None


def test_tokens_are_int32():
  encoder = token_store.cached_encoder(tokenizer_of())
  assert all(ids.dtype == np.int32 for ids in encoder.encode_batch(['', 'a b', END]))


def test_other_tokens_than_the_tokenizers_are_an_error(monkeypatch):
  monkeypatch.setattr(token_store, '_MOST_MISSED', 1.0)
  encoder = token_store.cached_encoder(tokenizer_of())
  encoder.encode_batch(['a first text', 'a second one'])
  fill = encoder._fill

  def wrong(missing):
    flagged = fill(missing)
    for tokens in missing.values():
      tokens += b'\1\0\0\0'
    return flagged

  monkeypatch.setattr(encoder, '_fill', wrong)
  with pytest.raises(errors.UserError, match="other tokens than the tokenizer for the text 'unseen'"):
    encoder.encode_batch(['unseen'])
