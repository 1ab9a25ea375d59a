"""The program of a run: train.py of the current folder, the installed driver, or another file. No TensorFlow."""

import os

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.base.files import regular_files

DEFAULT = 'train.py'
INSTALLED = 'official_ext.cli.train'  # The module; it finds modules of the current folder, as train.py those beside it.


def find(name: str = DEFAULT) -> str:
  """Returns the program of a run: the absolute path of a file, or `INSTALLED`.

  Args:
    name: the value of --program. The installed driver replaces a train.py that does not exist.

  Raises:
    UserError: there is no such file.
  """
  path = paths.expand_home(name, '--program')
  if name != INSTALLED and os.path.isfile(path):
    return os.path.abspath(path)
  if name in (DEFAULT, INSTALLED):
    return INSTALLED
  raise errors.UserError(f'--program={name}: no such file')


def reads_flag(program: str, name: str) -> bool:
  """Whether a program may read a flag: its text names it, or it is a driver of this library."""
  return is_driver(program) or name in _text(program)


def is_driver(program: str) -> bool:
  """Whether a program is the installed driver, or a file that uses this library."""
  return program == INSTALLED or 'official_ext' in _text(program)


def _text(program: str) -> str:
  try:
    return paths.read(program, regular_files.MAX_RECORD).decode('utf-8', 'replace')
  except OSError:
    return ''


def words(program: str) -> tuple[str, ...]:
  """Returns the words between `python` and the flags of a run."""
  return ('-u', '-m', program) if program == INSTALLED else ('-u', program)
