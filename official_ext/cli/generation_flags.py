"""The flags of commands that let a model write: how tokens are drawn, and how many."""

import argparse
from collections.abc import Mapping
import dataclasses
from typing import TYPE_CHECKING

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib

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


_HELP = {
  'temperature': "0: the likeliest token; above: sampled; default: generation_config.json's, or else 0",
  'top_k': "sample from the K likeliest tokens; default: generation_config.json's",
  'top_p': 'sample from the likeliest tokens with this probability together',
  'min_p': "sample from tokens with this share of the likeliest one's probability",
  'repetition_penalty': 'as in transformers',
}


def add(parser: arguments_lib.Parser, length: str) -> None:
  """Adds them; `length` is the help of --max_new_tokens."""
  for name, kind in KINDS.items():
    metavar = 'N' if kind is int else 'X'
    parser.add_argument(f'--{name}', type=kind, metavar=metavar, help={'max_new_tokens': length, **_HELP}[name])
  parser.add_argument('--seed', type=int, default=0, metavar='N', help='of the samples; default: 0')
  parser.add_argument('--chat_template_path', metavar='FILE', help="a chat template in Jinja, instead of the folder's")


def given(known: argparse.Namespace) -> dict[str, object]:
  """The values of `GenerationConfig`'s fields that were set.

  Raises:
    UserError: a value that means nothing.
  """
  from official_ext.language.modeling import token_sampling  # pylint: disable=g-import-not-at-top  # TensorFlow.

  found = {name: getattr(known, name) for name in KINDS if getattr(known, name) is not None}
  try:
    token_sampling.check(token_sampling.GenerationConfig(**found))
  except errors.UserError as error:
    raise errors.UserErrors([f'--{line}' for line in errors.lines_of(error)]) from error
  if not -(2**63) <= known.seed < 2**63:
    raise errors.UserError(f'--seed: {known.seed} has more than 64 bits')
  return found


def config_of(
  model: 'decoder.LanguageModel', tokenizer: 'tokenizer_lib.Tokenizer', found: Mapping[str, object]
) -> 'token_sampling.GenerationConfig':
  """How the model continues texts: the settings of its folder, overridden by the flags.

  Args:
    model: a `LanguageModel`.
    tokenizer: its `Tokenizer`, whose stop tokens end a text as well.
    found: the result of `given`.

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
