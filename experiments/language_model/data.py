"""The text of `language_model`, and its tokens."""

import functools
from typing import Any

import official_ext as ext


@functools.cache
def tokenizer(path: str, vocab_size: int) -> ext.Tokenizer:
  """The tokenizer of a folder; if there is none, one that is trained on the training topics.

  Args:
    path: the folder, or ''.
    vocab_size: how many tokens the latter has.
  """
  if path:
    return ext.Tokenizer.load(path)
  return ext.train_tokenizer([document['text'] for document in ext.python_topics.documents('train')], vocab_size)


def source(params: Any, tokens: ext.Tokenizer) -> Any:
  """The rows of a data configuration.

  Args:
    params: `task.train_data` or `task.validation_data`.
    tokens: the tokenizer.
  """
  split = 'train' if params.is_training else 'validation'
  return ext.text_source(params, tokens, None if params.input_path else ext.python_topics.records(split))
