"""Fixtures of tests of texts. A test module has those that it assigns to its names."""

import gzip

import pytest

from official_ext.language.text import python_topics
from official_ext.language.text import tokenizer_training
from tests.language.text import hugging_face_folders as folders


@pytest.fixture(scope='module', autouse=True)
def cache(tmp_path_factory):
  """A cache that the tests of a module have to themselves."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
    yield


@pytest.fixture(scope='module')
def tokenizer():
  """One of 400 tokens with a chat template."""
  texts = [document['text'] for document in python_topics.documents('validation')]
  return tokenizer_training.train(texts, 400, ['<|im_start|>', '<|im_end|>'], folders.CHATML)


def damaged_inside(content):
  """gzip's output for some content, with a first block of a type that there is not."""
  found = bytearray(gzip.compress(content, mtime=0))
  found[10] |= 0b110
  return bytes(found)
