"""Renames a copy of an experiment's code.

It relies on a convention of experiments: every name of an experiment that is known outside of its folder (experiment,
task, data set, modules, classes, constants) begins with the folder's name: `my_task`, `my_task_small`, `MyTask`,
`MyTaskConfig`, `MY_TASK_DIR`. Prose writes the name of the experiment in backticks; the same word without them stays.
Nothing else in the code has exactly that name, but for names of the library behind `ext.`, which stay, as do
the value of `--like=` and the value of `example_format`.
"""

from collections.abc import Sequence
import io
import keyword
import re
import tokenize

_STAYS = r"(?<!\bext\.)(?<!--like=)(?<!\bexample_format=')"  # Behind these.
# The characters around a name that is not a word of a sentence.
_WHOLE = (
  (r'(?<=\bexperiments[./])', r'\b'),
  (r'(?<=--experiment=)', r'\b'),
  (r'(?<=\bruns/)', r'\b'),
  (r'(?<=\bimport )', r'\b'),
  (r'(?<=\bclass )', r'\b'),
  (r'(?<=\bdef )', r'\b'),
  (r'(?<=\bexperiment )', r'\b'),
  (r'(?<=\w\.)', r'(?=\()'),
  (r'(?<![\w.])', r'(?=\.[A-Za-z_])'),
  ('(?<=`)', '(?=`)'),
  ("(?<=')", "(?=['/])"),
  ('(?<=")', '(?=["/])'),
)


def camel_case(name: str) -> str:
  """Converts 'my_task' to the name of a class, 'MyTask'."""
  return ''.join(word.capitalize() for word in name.split('_'))


def renamed(text: str, old: str, new: str, others: Sequence[str] = ()) -> str:
  """Replaces an experiment's name in code, or in a file's name.

  Args:
    text: the code.
    old: the experiment's name.
    new: its new name.
    others: names that stay although they begin with `old`, such as those of other experiments.
  """
  stays = ''.join(rf'(?!{re.escape(other)}\b)' for other in others if other.startswith(f'{old}_'))
  # At the beginning of a name, also after underscores; not inside a name, nor in one of another module.
  begins = rf'{_STAYS}(?<![A-Za-z0-9_])(_*)'
  text = re.sub(rf'{begins}{stays}{old}(?=_\w)', rf'\g<1>{new}', text)
  text = re.sub(rf'{begins}{old.upper()}(?=_\w)', rf'\g<1>{new.upper()}', text)
  text = re.sub(rf'{begins}{camel_case(old)}(?=[A-Z])', rf'\g<1>{camel_case(new)}', text)
  # As a whole name, if it cannot be a word of a sentence; one with an underscore never is.
  for before, after in [(r'(?<!\w)', r'(?!\w)')] if '_' in old else _WHOLE:
    text = re.sub(f'{_STAYS}{before}{old}{after}', new, text)
    text = re.sub(f'{_STAYS}{before}{camel_case(old)}{after}', camel_case(new), text)
  return text


def identifiers(text: str) -> set[str]:
  """Every name that code uses."""
  tokens = tokenize.generate_tokens(io.StringIO(text).readline)
  return {token.string for token in tokens if token.type == tokenize.NAME and not keyword.iskeyword(token.string)}


def as_package(text: str, name: str) -> str:
  """Converts the code of an experiment to that of a package: `experiments.NAME` becomes `NAME`.

  Imports within the experiment are relative, and stay.
  """
  text = re.sub(rf'\bfrom experiments import {name}\b', f'import {name}', text)
  return re.sub(rf'\bexperiments([./]){name}\b', name, text)


def with_long_lines_allowed(text: str, max_length: int) -> str:
  """Lets the linter accept the long lines of code, if it has some: a longer name has made them so."""
  if all(len(line) <= max_length for line in text.splitlines()):
    return text
  return f'# ruff: noqa: E501\n{text}'
