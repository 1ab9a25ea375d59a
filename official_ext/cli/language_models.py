"""The arguments of commands that name a language model."""

import argparse

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


def add_load_in_4bit(parser: arguments_lib.Parser, text: str) -> None:
  """Adds --load_in_4bit: whether kernels are kept in 4 bits; by default as adapters were trained."""
  parser.add_argument('--load_in_4bit', type=_boolean, metavar='true|false', help=text)


def _boolean(text: str) -> bool:
  if text not in ('true', 'false'):
    raise argparse.ArgumentTypeError(f'{text}: expected true or false')
  return text == 'true'
