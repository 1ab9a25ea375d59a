"""What a check has found: what is wrong, where, and what to do about it."""

import dataclasses
import functools
from importlib import metadata
import inspect
import os
import re
import sysconfig
from typing import Any, Tuple

_INSTALLED = re.compile(r'/(?:site|dist)-packages/(\w+)')  # Of whatever environment.
_STDLIB = os.path.realpath(sysconfig.get_path('stdlib'))
_OWN = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


@dataclasses.dataclass(frozen=True)
class Finding:
  """One mistake.

  Attributes:
    level: 'error': training cannot be right; 'warning': it may be meant.
    where: a dotted path of the configuration, or file, line and function.
    what: what is wrong.
    remedy: how to mend it.
  """

  level: str
  where: str
  what: str
  remedy: str

  def __str__(self) -> str:
    return f'{self.where}: {self.what}; {self.remedy}'


@functools.lru_cache(maxsize=None)
def is_users(filename: str) -> bool:
  """Whether a file is code of the user's: none of Python's, of this library's, or of what else is installed."""
  if filename.startswith('<') or '__autograph_generated_file' in filename:
    return False
  path = os.path.realpath(filename)
  installed = _INSTALLED.search(path)
  if installed:
    return installed.group(1) in _packages_with_experiments()
  return path.endswith('.py') and not path.startswith((_STDLIB + os.sep, _OWN + os.sep))


@functools.lru_cache(maxsize=None)
def _packages_with_experiments() -> Tuple[str, ...]:
  """The installed packages that register experiments: their code is a user's."""
  points = metadata.entry_points(group='official_ext.experiments')
  return ('experiments', *(point.value.split(':')[0].split('.')[0] for point in points))


def at_line(filename: str, line: int, function: str = '') -> str:
  """A place in a file, relative to the current folder where it is below that."""
  relative = os.path.relpath(filename)
  path = filename if relative.startswith(os.pardir) else relative
  return f'{path}:{line}' + (f' ({function})' if function else '')


def of_function(function: Any) -> str:
  """The place of a function or method."""
  function = inspect.unwrap(getattr(function, '__func__', function))
  code = getattr(function, '__code__', None)
  if code is None:
    return getattr(function, '__qualname__', repr(function))
  return at_line(code.co_filename, code.co_firstlineno, function.__qualname__.rpartition('<locals>.')[2])
