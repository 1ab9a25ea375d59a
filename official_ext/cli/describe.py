"""Experiments and their fields as text."""

import ast
from collections.abc import Iterator, Mapping
import functools
import inspect
import io
import itertools
import re
import textwrap
import tokenize
from typing import Any, NamedTuple

from official.modeling.hyperparams import base_config
from official.modeling.hyperparams import oneof

from official_ext.base import config_text
from official_ext.training.config import checks
from official_ext.training.config import overrides
from official_ext.training.config import parser
from official_ext.training.config import ranges
from official_ext.training.config import short_names

_WIDTH = 120
_FAR_RIGHT = 1000
# Comments for linters, notes of the authors, and headings.
_NOT_FOR_USERS = re.compile(r'#\s*(TODO|pylint|pytype|type:|noqa|Settings below)')
_ATTRIBUTE = re.compile(r'(\w+)(?: \([^)]*\))?:\s*(.*)')


def experiment_lines() -> Iterator[str]:
  """Yields the name of each registered experiment, with the first line of its factory's docstring."""
  names = parser.experiment_names()
  width = max(map(len, names), default=0)
  for name in names:
    summary = (inspect.getdoc(parser.factory_of(name)) or '').partition('\n')[0]
    yield f'{name:{width}}  {summary}'.rstrip()


def experiment_documents() -> list[dict[str, str]]:
  """`name` and `summary` of each registered experiment, for --json."""
  return [
    {'name': name, 'summary': (inspect.getdoc(parser.factory_of(name)) or '').partition('\n')[0]}
    for name in parser.experiment_names()
  ]


class Description(NamedTuple):
  """A field and its documentation.

  Attributes:
    field: the field, with its path, value and type.
    short_names: its short names.
    meaning: its purpose; '' if undocumented.
    choices: the values that it takes; () if they are not listed.
    interval: the numbers that it takes; None if any, or if it takes none.
    is_secret: whether no message may show its value.
  """

  field: overrides.Field
  short_names: tuple[str, ...]
  meaning: str
  choices: tuple[Any, ...]
  interval: ranges.Interval | None
  is_secret: bool


def descriptions(params: base_config.Config, experiment: str) -> Iterator[Description]:
  """Yields a description of each field that an experiment reads.

  Alternatives that a OneOfConfig does not select are skipped; the choices of its `type` are their names.

  Args:
    params: the experiment's configuration.
    experiment: the name that it is registered under.
  """
  shorts: dict[str, list[str]] = {}
  for name, paths in short_names.vocabulary(params, experiment).items():
    for path in paths:
      shorts.setdefault(path, []).append(name)
  for field in overrides.read_leaves(params):
    name = field.name
    owner: Any = type(field.owner)
    meaning, choices = attribute_docs(owner).get(name, ''), tuple(checks.choices_of(owner).get(name, ()))
    if isinstance(field.owner, oneof.OneOfConfig) and name == 'type':
      choices = tuple(other for other in overrides.names(field.owner) if other != 'type')
      meaning = f'One of {", ".join(map(str, choices))}.'
    interval = ranges.of_class(owner).get(name)
    yield Description(
      field=field,
      short_names=tuple(shorts.get(field.path, ())),
      meaning=meaning,
      choices=choices,
      interval=ranges.interval(interval) if interval else None,
      is_secret=name in overrides.secret_fields(owner),
    )


def field_documents(params: base_config.Config, experiment: str) -> list[dict[str, Any]]:
  """The fields of an experiment for --json: `path`, `type`, `value`, `short_names`, `meaning`, `choices`."""
  return [
    {
      'path': each.field.path,
      'type': overrides.type_name(each.field.hint),
      'value': None if each.is_secret else _plain(each.field.value),
      'short_names': each.short_names,
      'meaning': each.meaning,
      'choices': each.choices,
    }
    for each in descriptions(params, experiment)
  ]


def _plain(value: object) -> object:
  return value.as_dict() if isinstance(value, base_config.Config) else value


def field_lines(params: base_config.Config, experiment: str) -> Iterator[str]:
  """Yields a description of an experiment: its docstring, then each field that it reads.

  A field is `path: type = value  [short name]`, with its meaning below, from the Attributes section of its class.
  Alternatives that a OneOfConfig does not select are skipped; its `type` lists them.

  Args:
    params: the experiment's configuration.
    experiment: the name that it is registered under.
  """
  yield experiment
  doc = inspect.getdoc(parser.factory_of(experiment))
  if doc:
    yield textwrap.indent(doc, '  ')
  for each in descriptions(params, experiment):
    field, short = each.field, f'  [{", ".join(each.short_names)}]' if each.short_names else ''
    yield ''
    yield f'{field.path}: {overrides.type_name(field.hint)} = {_value(field.value)}{short}'
    yield from textwrap.wrap(each.meaning, _WIDTH, initial_indent='    ', subsequent_indent='    ')


def _value(value: object) -> str:
  """The value as YAML, on one line."""
  if isinstance(value, base_config.Config):
    value = value.as_dict()
  text = config_text.dump({'value': value}).removeprefix('value:').strip()
  return ' '.join(text.split())


def read_classes() -> None:
  """Reads the types and meanings of all configuration classes."""
  pending: list[Any] = [base_config.Config]
  while pending:
    config_class = pending.pop()
    pending += config_class.__subclasses__()
    try:
      overrides.class_hints(config_class)
      attribute_docs(config_class)
    except Exception:  # pylint: disable=broad-except  # Reported when it is used.
      continue


@functools.cache
def attribute_docs(config_class: type) -> Mapping[str, str]:
  """The meanings of a class's fields, from the sections Attributes of it and its bases, or else from comments."""
  docs: dict[str, str] = {}
  for cls in reversed(config_class.__mro__):
    docs.update(_field_comments(cls))
  for cls in reversed(config_class.__mro__):
    docs.update(_attributes_section(inspect.cleandoc(vars(cls).get('__doc__') or '')))
  return docs


@functools.cache
def _field_comments(cls: object) -> Mapping[str, str]:
  """The comments after a class's fields, or right above them."""
  try:
    source = textwrap.dedent(_source_of(cls))
  except (OSError, TypeError, SyntaxError, KeyError):  # The class is built in, or made in a running program.
    return {}
  (definition,) = ast.parse(source).body
  comments = {
    token.start[0]: token
    for token in tokenize.generate_tokens(io.StringIO(source).readline)
    if token.type == tokenize.COMMENT
  }
  found = {}
  for field in definition.body if isinstance(definition, ast.ClassDef) else ():
    if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
      continue
    behind, above = field.end_lineno or field.lineno, field.lineno - 1
    texts = [comments[behind].string] if behind in comments else []
    if texts:  # It may continue below, further to the right than the fields.
      texts += _whole_lines(comments, behind + 1, 1, range(field.col_offset + 1, _FAR_RIGHT))
    else:
      texts = _whole_lines(comments, above, -1, range(field.col_offset, field.col_offset + 1))[::-1]
    for_users = itertools.takewhile(lambda comment: not _NOT_FOR_USERS.match(comment), texts)
    text = ' '.join(comment.lstrip('#').strip() for comment in for_users)
    if behind in comments or len(text.split()) > 2:  # One or two words above a field are a heading of several fields.
      found[field.target.id] = text
  return {name: text for name, text in found.items() if text}


def _source_of(cls: Any) -> str:
  """The source of a class, as inspect.getsource gives it, which reads the whole file for each."""
  lines, places = _classes_in(inspect.getsourcefile(cls) or '')
  first, last = places[cls.__qualname__.replace('<locals>.', '')]
  return ''.join(lines[first - 1 : last])


@functools.cache
def _classes_in(path: str) -> tuple[list[str], Mapping[str, tuple[int, int]]]:
  """The lines of a file, and the first and last line of each class in it, by its qualified name."""
  with tokenize.open(path) as file:
    text = file.read()
  found: dict[str, tuple[int, int]] = {}

  def walk(node, prefix):
    for child in ast.iter_child_nodes(node):
      if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        name = f'{prefix}{child.name}'
        first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
        if isinstance(child, ast.ClassDef):
          found.setdefault(name, (first, child.end_lineno or first))
        walk(child, f'{name}.')
      else:
        walk(child, prefix)

  walk(ast.parse(text), '')
  return text.splitlines(keepends=True), found


def _whole_lines(comments: Mapping[int, tokenize.TokenInfo], line: int, direction: int, columns: range) -> list[str]:
  """The comments that fill whole lines, from `line` on, while there are any and they begin in one of the columns."""
  texts = []
  while line in comments and comments[line].line.lstrip().startswith('#') and comments[line].start[1] in columns:
    texts.append(comments[line].string)
    line += direction
  return texts


def _attributes_section(doc: str) -> dict[str, str]:
  """Splits `Attributes:` followed by `  name: text` lines, which longer indentation continues."""
  found: dict[str, str] = {}
  lines = iter(doc.splitlines())
  for line in lines:
    if line.strip() in ('Attributes:', 'Args:'):
      break
  indent, name = 0, ''
  for line in lines:
    depth = len(line) - len(line.lstrip())
    if line.strip() and depth == 0:
      break
    match = _ATTRIBUTE.fullmatch(line.strip())
    if match and (not indent or depth == indent):
      indent, name = depth, match.group(1)
      found[name] = match.group(2)
    elif name and line.strip():
      found[name] += ' ' + line.strip()
  return found
