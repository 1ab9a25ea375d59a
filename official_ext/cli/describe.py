"""Experiments and their fields as text."""

import inspect
import re
import textwrap
from typing import Dict, Iterator, List, Type

from official.modeling.hyperparams import base_config
from official.modeling.hyperparams import oneof
from official_ext.core import config_overrides
from official_ext.core import config_parser
from official_ext.core import short_names
from official_ext.core import yaml_text

_WIDTH = 120
_ATTRIBUTE = re.compile(r'(\w+)(?: \([^)]*\))?:\s*(.*)')


def experiment_lines() -> Iterator[str]:
  """Yields each registered experiment's name with the first line of its factory's docstring."""
  names = config_parser.experiment_names()
  width = max(map(len, names), default=0)
  for name in names:
    summary = (inspect.getdoc(config_parser.factory_of(name)) or '').partition('\n')[0]
    yield f'{name:{width}}  {summary}'.rstrip()


def field_lines(params: base_config.Config, experiment: str) -> Iterator[str]:
  """Yields what is known about an experiment: its docstring, then each field that it reads.

  A field is `path: type = value  [short name]` with its meaning below, as the Attributes section of its class has it.
  What a OneOfConfig does not select is left out; its `type` lists the choices.

  Args:
    params: the experiment's configuration.
    experiment: the name that it is registered under.
  """
  shorts: Dict[str, List[str]] = {}
  for name, path in short_names.vocabulary(params, experiment).items():
    shorts.setdefault(path, []).append(name)
  yield experiment
  doc = inspect.getdoc(config_parser.factory_of(experiment))
  if doc:
    yield textwrap.indent(doc, '  ')
  for field in config_overrides.leaves(params):
    name = field.path.rsplit('.', 1)[-1]
    owner = type(field.owner)
    if name in getattr(owner, 'UNREAD_FIELDS', {}):
      continue
    short = f'  [{", ".join(shorts[field.path])}]' if field.path in shorts else ''
    yield ''
    yield f'{field.path}: {config_overrides.type_name(field.hint)} = {_value(field.value)}{short}'
    meaning = attribute_docs(owner).get(name, '')
    if isinstance(field.owner, oneof.OneOfConfig) and name == 'type':
      choices = ', '.join(other for other in config_overrides.names(field.owner) if other != 'type')
      meaning = f'One of {choices}.'
    yield from textwrap.wrap(meaning, _WIDTH, initial_indent='    ', subsequent_indent='    ')


def _value(value: object) -> str:
  """The value as YAML, on one line."""
  if isinstance(value, base_config.Config):
    value = value.as_dict()
  text = yaml_text.dump({'value': value}).removeprefix('value:').strip()
  return ' '.join(text.split())


def attribute_docs(config_class: Type[base_config.Config]) -> Dict[str, str]:
  """The meanings of a class's fields, from the Attributes sections of its docstring and its bases'."""
  docs: Dict[str, str] = {}
  for cls in reversed(config_class.__mro__):
    docs.update(_attributes_section(inspect.cleandoc(vars(cls).get('__doc__') or '')))
  return docs


def _attributes_section(doc: str) -> Dict[str, str]:
  """Splits `Attributes:` followed by `  name: text` lines, which longer indentation continues."""
  found: Dict[str, str] = {}
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
