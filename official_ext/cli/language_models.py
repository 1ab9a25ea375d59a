"""The arguments of commands that name a language model."""

import argparse
import os

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib

DTYPES = ('float32', 'bfloat16', 'float16')


def add_model_arguments(parser: arguments_lib.Parser) -> None:
  """Adds FOLDER, and how it is loaded."""
  parser.add_argument(
    'folder',
    metavar='FOLDER',
    type=arguments_lib.tensorflow_folder,
    help='a Hugging Face folder, or one of peft with adapters, whose adapter_config.json names their base',
  )
  add_base_model(parser)
  parser.add_argument(
    '--dtype', choices=DTYPES[:2], default='float32', help='of weights and arithmetic; default: float32'
  )
  add_load_in_4bit(parser, 'keep kernels in 4 bits (NF4); default: as the adapters were trained')


def add_base_model(parser: arguments_lib.Parser) -> None:
  """Adds --base_model."""
  parser.add_argument(
    '--base_model',
    metavar='FOLDER',
    type=arguments_lib.tensorflow_folder,
    help='the model of the adapters, if their adapter_config.json does not name it',
  )


def add_adapters(parser: arguments_lib.Parser, text: str) -> None:
  """Adds --adapter, which may be repeated."""
  parser.add_argument(
    '--adapter', action='append', default=[], metavar='[NAME=]FOLDER', help=f'{text}; {arguments_lib.REPEATED}'
  )


def named_adapters(texts: list[str]) -> dict[str, str]:
  """Name -> folder of the values of --adapter; without a name that of the folder, or of a run around it.

  Raises:
    UserError: two have the same name.
  """
  found: dict[str, str] = {}
  for text in texts:
    name, sign, folder = text.partition('=')
    if not sign or '/' in name:
      parts = [part for part in text.split('/') if part not in ('', '.')]
      folder, name = text, parts[-2] if parts[-1:] == ['adapter'] and len(parts) > 1 else parts[-1] if parts else ''
    if not name or not folder:
      raise errors.UserError(f'--adapter={text}: expected [NAME=]FOLDER')
    if name in found:
      raise errors.UserError(f'--adapter={text}: {name} is the name of {found[name]}; write --adapter=NAME={folder}')
    found[name] = os.path.expanduser(folder)
  return found


def add_load_in_4bit(parser: arguments_lib.Parser, text: str) -> None:
  """Adds --load_in_4bit: whether kernels are kept in 4 bits; by default as adapters were trained."""
  parser.add_argument('--load_in_4bit', type=_boolean, metavar='true|false', help=text)


def _boolean(text: str) -> bool:
  if text not in ('true', 'false'):
    raise argparse.ArgumentTypeError(f'{text}: expected true or false')
  return text == 'true'
