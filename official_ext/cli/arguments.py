"""The arguments of a command of official-ext."""

import argparse
from collections.abc import Callable
import re
from typing import NoReturn

from official_ext.base import errors

_SIZE = re.compile(r'(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?', re.IGNORECASE)


class Parser(argparse.ArgumentParser):
  """A parser that raises its errors; the base class would print several lines, and exit. usage.py has the help."""

  def __init__(self, command: str):
    """Makes a parser without arguments.

    Args:
      command: its name, as in `official-ext COMMAND`.
    """
    super().__init__(prog=f'official-ext {command}', allow_abbrev=False, add_help=False)
    self._command = command

  def error(self, message: str) -> NoReturn:
    """See base class; raises a UserError."""
    raise errors.UserError(f'{self._command}: {message}; `official-ext {self._command} --help` tells more')


def folder(text: str) -> str:
  """The `type` of an argument that names a folder: '' would be the current one, which nobody has named."""
  if not text:
    raise argparse.ArgumentTypeError('is empty; name a folder')
  return text


def size_of(text: str, flag: str) -> int:
  """The number of bytes that a text such as 5GB, 200MB or 4GiB stands for.

  Args:
    text: what was given.
    flag: to whom, for messages.

  Raises:
    UserError: it stands for none.
  """
  match = _SIZE.fullmatch(text.strip())
  size = float(match[1]) * (1024 if match[3] else 1000) ** ' KMGT'.index(match[2].upper() or ' ') if match else 0
  if size < 1:
    raise errors.UserError(f'{flag}={text}: expected a size such as 5GB, 200MB or 4GiB')
  return int(size)


def at_least(least: int) -> Callable[[str], int]:
  """The `type` of an argument that is an integer from `least` on."""

  def integer(text: str) -> int:
    value = int(text)
    if value < least:
      raise ValueError(text)
    return value

  integer.__name__ = f'integer of {least} or more'
  return integer


def add_run_arguments(parser: Parser) -> None:
  """Adds the arguments that say which weights of a run are meant, and what registers its experiment."""
  parser.add_argument('--which')
  parser.add_argument('--ema', choices=['true', 'false'], default='true')
  parser.add_argument('--experiment')
  parser.add_argument('--registry', action='append', default=[])
