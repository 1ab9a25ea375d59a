"""The settings with which texts are continued: those of the model's folder, overridden by the given values."""

from collections.abc import Mapping
import dataclasses
import os
from typing import TYPE_CHECKING

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.run_folder import model_folders

if TYPE_CHECKING:
  from official_ext.language.modeling import decoder
  from official_ext.language.modeling import token_sampling
  from official_ext.language.text import tokenizer as tokenizer_lib

KINDS = {  # Of `GenerationConfig`'s fields, that have separate flags.
  'max_new_tokens': int,
  'temperature': float,
  'top_k': int,
  'top_p': float,
  'min_p': float,
  'repetition_penalty': float,
}
_FILTERS = ('top_k', 'top_p', 'min_p')  # Of sampling.


def check(values: json_types.JsonMapping, seed: int) -> None:
  """Refuses values of `GenerationConfig`'s fields, and seeds, that mean nothing.

  Raises:
    UserError: a line for each mistake, which begins as a flag does.
  """
  from official_ext.language.modeling import token_sampling  # pylint: disable=g-import-not-at-top  # TensorFlow.

  try:
    token_sampling.check(token_sampling.GenerationConfig(**values))
  except errors.UserError as error:
    raise errors.UserErrors([f'--{line}' for line in errors.lines_of(error)]) from error
  if not -(2**63) <= seed < 2**63:
    raise errors.UserError(f'--seed: {seed} has more than 64 bits')


def config_of(
  model: 'decoder.LanguageModel', tokenizer: 'tokenizer_lib.Tokenizer', found: Mapping[str, object]
) -> 'token_sampling.GenerationConfig':
  """How the model continues texts: the settings of its folder, overridden by the flags.

  Args:
    model: a `LanguageModel`.
    tokenizer: its `Tokenizer`, whose stop tokens end a text as well.
    found: the fields of `GenerationConfig` that were given.

  Returns:
    A `GenerationConfig`.

  Raises:
    UserError: something was given that would change nothing.
  """
  from official_ext.language.modeling import generation  # pylint: disable=g-import-not-at-top

  config = generation.config_of(model, **found)
  idle = [name for name in _FILTERS if name in found]
  if idle and not config.temperature:
    raise errors.UserError(f'--{idle[0]}: changes nothing at temperature 0, the likeliest token; add --temperature=1')
  stops = dict.fromkeys((*config.stop_token_ids, *tokenizer.stop_token_ids))
  return dataclasses.replace(config, stop_token_ids=tuple(stops))


def with_room(
  model: 'decoder.LanguageModel', config: 'token_sampling.GenerationConfig', length: int, is_given: bool
) -> 'token_sampling.GenerationConfig':
  """The configuration, with no more new tokens than the model has positions for.

  Args:
    model: a `LanguageModel`.
    config: a `GenerationConfig`.
    length: of the prompt, in tokens.
    is_given: whether the user set `config.max_new_tokens`.

  Raises:
    UserError: there is no room for one, or for the requested number.
  """
  positions = model.config.max_position_embeddings
  room = positions - length
  if room < 1:
    raise errors.UserError(
      f'--prompt: {length} tokens leave no room for more: the model has {positions} positions (max_position_embeddings)'
    )
  if config.max_new_tokens <= room:
    return config
  if is_given:
    raise errors.UserError(
      f'--max_new_tokens: {config.max_new_tokens} behind a prompt of {length} tokens make '
      f'{length + config.max_new_tokens}, and the model has {positions} positions (max_position_embeddings); '
      f'{room} fit'
    )
  return dataclasses.replace(config, max_new_tokens=room)


def check_tokens(tokens: list[int], model: 'decoder.LanguageModel', folders: model_folders.ModelFolders) -> None:
  """Raises a UserError if one of the tokens is none of the model's."""
  wrong = [token for token in tokens if token >= model.config.vocab_size]
  if wrong:
    file = os.path.join(folders.tokenizer, model_folders.TOKENIZER_FILE)
    raise errors.UserError(
      f'{file}: makes token {wrong[0]} of the text, and the model has {model.config.vocab_size} (vocab_size): '
      "it is another model's"
    )
