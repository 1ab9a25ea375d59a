"""Byte-level BPE as implemented here: every text and back, the same in every process, kept after its first use."""

import os

import pytest

from official_ext.base import errors
from official_ext.language.text import python_topics
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_training
from tests.language.text import hugging_face_folders

TEXTS = [document['text'] for document in python_topics.documents('validation')]
SPECIAL = ['<|im_start|>', '<|im_end|>']


@pytest.fixture(scope='module')
def trained():
  return tokenizer_training.train(TEXTS, 400, SPECIAL, hugging_face_folders.CHATML)


def test_every_text_is_got_back(trained):
  everything = ''.join(chr(code) for code in range(0x3000) if not 0xD800 <= code < 0xE000)
  for text in (everything, 'naïve 你好 🎉', TEXTS[0], '', ' \n\t '):
    assert trained.decode(trained.encode(text)) == text


def test_tokens_are_as_many_as_asked_for_and_shorten_text(trained):
  assert len(trained) == 400
  assert len(trained.encode(TEXTS[0])) < 0.6 * len(TEXTS[0].encode())
  assert [trained.token_id(token) for token in ('<|endoftext|>', *SPECIAL)] == [0, 1, 2]
  assert (trained.eos_token_id, trained.pad_token_id, trained.stop_token_ids) == (0, 0, (0,))
  assert trained.encode('<|im_start|>a<|im_end|>')[::2] == [1, 2]


def test_all_bytes_need_room():
  assert len(tokenizer_training.train(['a'], 257)) == 257
  with pytest.raises(errors.UserError, match='^vocab_size: expected at least 259, for 256 bytes and 3 special tokens'):
    tokenizer_training.train(TEXTS, 258, SPECIAL)


@pytest.mark.tensorflow
def test_transformers_reads_what_is_saved(trained, tmp_path, monkeypatch):
  monkeypatch.setenv('HF_HUB_OFFLINE', '1')
  import transformers  # pylint: disable=g-import-not-at-top

  trained.save(str(tmp_path))
  theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
  text = TEXTS[1] + 'naïve <|im_end|> 你好 🎉<|endoftext|>'
  assert theirs.encode(text) == trained.encode(text)
  chat = [{'role': 'user', 'content': 'Hi <|im_end|>'}]
  rendered = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
  assert trained.apply_chat_template(chat, True) == rendered


def test_it_is_trained_once_and_the_same_in_every_process(trained, tmp_path, start_script):
  code = """
import sys
from official_ext.language.text import tokenizer_training
from tests.language.text import tokenizer_training_test as test
found = tokenizer_training.cached(
  test.TEXTS, 400, test.SPECIAL, test.hugging_face_folders.CHATML, folder=sys.argv[1])
print(found.digest)
"""
  environments = [{'RAYON_NUM_THREADS': '1'}, {'RAYON_NUM_THREADS': '3'}]
  digests = []
  for number, environment in enumerate(environments):
    done = start_script(code, [str(tmp_path / str(number))], environment).finish()
    assert done.returncode == 0, done.stderr
    digests.append(done.stdout.strip())
  assert digests == [trained.digest] * 2
  (place,) = (tmp_path / '0' / 'tokenizers').iterdir()
  before = os.stat(place / 'tokenizer.json').st_mtime_ns
  again = tokenizer_training.cached(TEXTS, 400, SPECIAL, hugging_face_folders.CHATML, folder=str(tmp_path / '0'))
  assert again.digest == trained.digest and os.stat(place / 'tokenizer.json').st_mtime_ns == before
  other = tokenizer_training.cached(TEXTS[:-1], 400, SPECIAL, folder=str(tmp_path / '0'))
  assert other.digest != trained.digest and len(list((tmp_path / '0' / 'tokenizers').iterdir())) == 2
  assert tokenizer_lib.Tokenizer.load(str(place)).encode(TEXTS[0]) == trained.encode(TEXTS[0])


def test_topics_are_split_by_their_names():
  splits = {split: python_topics.documents(split) for split in ('train', 'validation')}
  names = {split: {document['topic'] for document in documents} for split, documents in splits.items()}
  assert not names['train'] & names['validation']
  sizes = {split: sum(len(document['text']) for document in documents) for split, documents in splits.items()}
  assert sizes['train'] > 300_000 and 10_000 < sizes['validation'] < 0.2 * sizes['train']
  assert python_topics.records('train').digest != python_topics.records('validation').digest
  assert python_topics.records('train').read(0) == splits['train'][0]
