"""The flags of commands that let a model write: how tokens are drawn, and how many."""

import argparse

from official_ext.cli import arguments as arguments_lib
from official_ext.language.serving import generation_settings

_HELP = {
  'temperature': "0: the likeliest token; above: sampled; default: generation_config.json's, or else 0",
  'top_k': "sample from the K likeliest tokens; default: generation_config.json's",
  'top_p': 'sample from the likeliest tokens with this probability together',
  'min_p': "sample from tokens with this share of the likeliest one's probability",
  'repetition_penalty': 'as in transformers',
}


def add(parser: arguments_lib.Parser, length: str) -> None:
  """Adds them; `length` is the help of --max_new_tokens."""
  for name, kind in generation_settings.KINDS.items():
    metavar = 'N' if kind is int else 'X'
    parser.add_argument(f'--{name}', type=kind, metavar=metavar, help={'max_new_tokens': length, **_HELP}[name])
  parser.add_argument('--seed', type=int, default=0, metavar='N', help='of the samples; default: 0')
  parser.add_argument('--chat_template_path', metavar='FILE', help="a chat template in Jinja, instead of the folder's")


def given(known: argparse.Namespace) -> dict[str, object]:
  """The values of `GenerationConfig`'s fields that were set.

  Raises:
    UserError: a value that means nothing.
  """
  found = {name: getattr(known, name) for name in generation_settings.KINDS if getattr(known, name) is not None}
  generation_settings.check(found, known.seed)
  return found
