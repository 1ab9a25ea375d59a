"""The text of `language_model`."""

from typing import Any

import official_ext as ext


def source(params: ext.DataConfig, tokens: ext.Tokenizer) -> Any:
  """The rows of a data configuration.

  Args:
    params: `task.train_data` or `task.validation_data`.
    tokens: the tokenizer.
  """
  split = 'train' if params.is_training else 'validation'
  return ext.text_source(params, tokens, None if params.input_path else ext.python_topics.records(split))
