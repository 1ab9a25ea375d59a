"""The command that trains a point of a sweep. No TensorFlow."""

from collections.abc import Mapping, Sequence
import json
import math
import os
import re
import sys

from official_ext.base import errors
from official_ext.base import yaml_text
from official_ext.operations.runs import programs
from official_ext.operations.sweeps import sweep_file

_MACRO = re.compile(r'\$\{([^}]*)\}')
_WHOLE = ('args', 'args_no_hyphens', 'args_no_boolean_flags', 'set')  # Each is replaced by any number of words.
_MACROS = (*_WHOLE, 'env', 'interpreter', 'program', 'args_json', 'model_dir', 'envvar:NAME')


def words(
  sweep: sweep_file.SweepFile, program: str, model_dir: str, parameters: Mapping[str, object], executable: str = ''
) -> list[str]:
  """The program and its arguments.

  Args:
    sweep: the sweep.
    program: its program: a path, or the installed driver.
    model_dir: the run's folder.
    parameters: name -> value.
    executable: the Python that runs it; '' for this one.

  Raises:
    UserError: a macro of `command` is unknown.
  """
  executable = executable or sys.executable
  if sweep.command:
    return _expand(sweep.command, program, model_dir, parameters, executable)
  flags = [f'--experiment={sweep.experiment}'] if sweep.experiment else []
  return [
    *(executable, *programs.words(program), *flags, f'--mode={sweep.mode}', f'--model_dir={model_dir}'),
    *(*sweep.flags, *settings(parameters)),
  ]


def settings(parameters: Mapping[str, object]) -> list[str]:
  """Parameters as flags of the driver: `--set=learning_rate=0.001`."""
  return [f'--set={name}={text_of(value)}' for name, value in parameters.items()]


def text_of(value: object) -> str:
  """A value as --set reads it back: the same number to the last bit; text in quotes if YAML would read another type."""
  if isinstance(value, str):
    is_plain = value and value == value.strip() and value.isprintable() and value[0] not in '[{'
    return value if is_plain and yaml_text.load_value(value, '') == value else json.dumps(value)
  if isinstance(value, float) and not math.isfinite(value):
    return '.nan' if math.isnan(value) else '.inf' if value > 0 else '-.inf'
  if isinstance(value, list):
    return f'[{", ".join(map(_inside, value))}]'
  if isinstance(value, Mapping):
    return f'{{{", ".join(f"{json.dumps(str(name))}: {_inside(each)}" for name, each in value.items())}}}'
  return json.dumps(value)


def _inside(value: object) -> str:
  """A value in brackets, where a text may hold a comma."""
  return json.dumps(value) if isinstance(value, str) else text_of(value)


def _expand(
  command: Sequence[str], program: str, model_dir: str, parameters: Mapping[str, object], executable: str
) -> list[str]:
  single = {
    'env': '/usr/bin/env',
    'interpreter': executable,
    'program': program,
    'model_dir': model_dir,
    'args_json': json.dumps(dict(parameters)),
  }
  several = {
    'args': [f'--{name}={_plain(value)}' for name, value in parameters.items()],
    'args_no_hyphens': [f'{name}={_plain(value)}' for name, value in parameters.items()],
    'args_no_boolean_flags': [
      f'--{name}' if value is True else f'--{name}={_plain(value)}'
      for name, value in parameters.items()
      if value is not False
    ],
    'set': settings(parameters),
    'program': list(programs.words(program)[1:]),  # The module of the installed driver is two words.
  }

  def one(match: re.Match) -> str:
    name = match[1]
    if name.startswith('envvar:'):
      return os.environ.get(name.removeprefix('envvar:'), '')
    if name not in single:
      where = 'must be a separate word' if name in _WHOLE else f'is not known; there are {", ".join(_MACROS)}'
      raise errors.UserError(f'command: ${{{name}}}: {where}')
    return single[name]

  found: list[str] = []
  for word in command:
    match = _MACRO.fullmatch(word)
    found += several[match[1]] if match and match[1] in several else [_MACRO.sub(one, word)]
  return found


def _plain(value: object) -> str:
  return value if isinstance(value, str) else text_of(value)
