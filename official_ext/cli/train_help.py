"""`--help` of train.py, without TensorFlow."""

import os
import sys

from official_ext.cli import arguments as arguments_lib
from official_ext.cli import train_flags

FULL = '--helpfull'  # It lists all flags of all imported modules.
# Flags of absl.
_LOGGING = {
  'verbosity': ('N', "0: TensorFlow's and Model Garden's messages too, and tracebacks; default: warnings and errors"),
  'pdb_post_mortem': ('', 'starts the debugger at an error'),
}
_DESCRIPTION = (
  'Trains, evaluates or exports an experiment. docs/getting_started/first_run.md is the first page about it, '
  'docs/reference/flags.md has the statuses. --helpfull prints the flags of all imported modules.'
)


def is_wanted(words: list[str]) -> bool:
  """Whether the arguments ask for this help, and not for absl's."""
  return FULL not in words and bool({*arguments_lib.HELP} & set(words))


def text(program: str) -> str:
  """The help.

  Args:
    program: its name, `train.py` or `official-ext train`.
  """
  parser = arguments_lib.Parser(program, _DESCRIPTION)
  parser.usage = f'{program} --experiment=NAME --mode=MODE --model_dir=FOLDER [--set=NAME=VALUE ...] [FLAGS]'
  for title, found in {**train_flags.GROUPS, 'output': {**train_flags.GROUPS['output'], **_LOGGING}}.items():
    group = parser.add_argument_group(title)
    for name, (value, meaning) in found.items():
      if value:
        group.add_argument(f'--{name}', metavar=value, help=meaning)
      else:
        group.add_argument(f'--{name}', action='store_true', help=meaning)
  return parser.format_help()


def print_help(program: str) -> None:
  """Prints the help. A reader that closes the pipe, such as `head`, is no error."""
  try:
    print(text(program), end='', flush=True)
  except BrokenPipeError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end.
