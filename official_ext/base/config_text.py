"""Configuration as text: YAML 1.2, overrides such as `a.b=1,c=2`, dotted paths, and values of the command line.

PyYAML reads YAML 1.1, where `yes` is a bool, `010` is eight and `1e3` is a string. The classes here follow the core
schema of YAML 1.2, of which JSON is a part, and the merge key `<<` of YAML 1.1, which configurations for Model Garden
have. Documents in which an integer begins with 0 are refused: the versions read different numbers. The classes leave
PyYAML's unchanged.

`flatten` makes dotted paths of a nested configuration. `argument_of` writes a value as the text after `--set=NAME=`
that `load_value` reads as exactly that value.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import json
import math
import re
from typing import Any, NamedTuple

import yaml

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths

_MERGE_TAG = 'tag:yaml.org,2002:merge'  # https://yaml.org/type/merge.html
_KEY = re.compile(r'\s*([A-Za-z_][\w.-]*)(?:\[(\d+)\])?\s*=')
# https://yaml.org/spec/1.2.2/#103-core-schema
_CORE_SCHEMA = (
  ('null', r'(?:~|null|Null|NULL|)', ['~', 'n', 'N', '']),
  ('bool', r'(?:true|True|TRUE|false|False|FALSE)', list('tTfF')),
  ('int', r'(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)', list('-+0123456789')),
  (
    'float',
    r'(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))',
    list('-+.0123456789'),
  ),
)


# Far above the needs of a configuration, far below the limits of memory and the stack.
_MAX_CHARACTERS = 10_000_000
_MAX_VALUES = 1_000_000
_MAX_DEPTH = 100
_MAX_DIGITS = 1000  # Python converts no integer of more than 4300.


class Literal(NamedTuple):
  """A null, bool or number of the command line, and how it was written: its meaning depends on the field's type.

  Attributes:
    value: the meaning of the text in YAML.
    text: the text.
  """

  value: Any
  text: str


class _Loader(yaml.SafeLoader):
  """Reads the core schema of YAML 1.2 and merge keys; refuses a key that occurs twice in one mapping.

  It also refuses documents that are nested too deeply, or whose aliases expand to too many values: they would fill
  memory or the stack.
  """

  yaml_implicit_resolvers: dict[str, list[object]] = {}
  yaml_constructors: dict[object, object] = {
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or str(tag).rpartition(':')[2] in ('str', 'seq', 'map')
  }
  _depth = 0

  def compose_node(self, parent, index):
    self._depth += 1
    if self._depth > _MAX_DEPTH:
      raise yaml.MarkedYAMLError(
        problem=f'nested more than {_MAX_DEPTH} deep', problem_mark=self.peek_event().start_mark
      )
    node = super().compose_node(parent, index)
    self._depth -= 1
    return node

  def get_single_node(self):
    node = super().get_single_node()
    if node is not None and _num_values(node, {}) > _MAX_VALUES:
      raise yaml.MarkedYAMLError(problem=f'aliases make more than {_MAX_VALUES} values of it')
    return node

  def compose_mapping_node(self, anchor):
    node = super().compose_mapping_node(anchor)
    lines: dict[str, int] = {}
    for key_node, _ in node.value:
      key, line = key_node.value, key_node.start_mark.line + 1
      if isinstance(key_node, yaml.ScalarNode):
        if key in lines:
          raise yaml.MarkedYAMLError(problem=f'the key {key} stands twice, in lines {lines[key]} and {line}')
        lines[key] = line
    return node


class _DocumentLoader(_Loader):
  """Refuses integers such as 010, which are other numbers in YAML 1.1."""


class _Dumper(yaml.SafeDumper):
  """Writes YAML that `_Loader` reads back: tuples as lists, every list on one line, no aliases.

  It also quotes strings that YAML 1.1 would read as something else, for other readers of the file.
  """

  def ignore_aliases(self, data):
    return True


def _num_values(node: yaml.Node, known: dict[int, int]) -> int:
  """The number of values in a node with its aliases expanded."""
  if id(node) not in known:
    known[id(node)] = 0  # While it is being counted.
    children: Iterable[yaml.Node] = ()
    if isinstance(node, yaml.MappingNode):
      children = [child for pair in node.value for child in pair]
    elif isinstance(node, yaml.SequenceNode):
      children = node.value
    known[id(node)] = 1 + sum(_num_values(child, known) for child in children)
  elif not known[id(node)]:
    raise yaml.MarkedYAMLError(problem='an alias is inside its own anchor')
  return known[id(node)]


def _to_int(text: str) -> int:
  if len(text) > _MAX_DIGITS:
    raise ValueError(f'an integer of {len(text)} digits, and integers have 64 bits')
  return int(text, {'0o': 8, '0x': 16}.get(text[:2], 10))


def _to_float(text: str) -> float:
  return float(text.lower().replace('.inf', 'inf').replace('.nan', 'nan'))


_CONVERTERS: Mapping[str, Callable[[str], object]] = {
  'null': lambda text: None,
  'bool': lambda text: text.lower() == 'true',
  'int': _to_int,
  'float': _to_float,
}


def _constructor(name: str, pattern: str) -> Callable[[yaml.SafeLoader, yaml.ScalarNode], object]:
  """Makes a constructor for scalars of one type, tagged (`!!bool`) or not."""

  def construct(loader, node):
    text = loader.construct_scalar(node)
    if not re.fullmatch(pattern, text):
      raise yaml.MarkedYAMLError(problem=f'{shortened(text)} is not a valid {name}', problem_mark=node.start_mark)
    try:
      return _CONVERTERS[name](text)
    except ValueError as error:
      raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error

  return construct


_construct_int = _constructor('int', next(pattern for name, pattern, _ in _CORE_SCHEMA if name == 'int'))


def _construct_plain_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> object:
  """An integer of a document."""
  if re.fullmatch(r'[-+]?0[0-7]+', node.value):
    meanings = f'{int(node.value, 8)} in YAML 1.1 and {int(node.value)} in YAML 1.2'
    raise yaml.MarkedYAMLError(problem=f'{node.value} is {meanings}', problem_mark=node.start_mark)
  return _construct_int(loader, node)


def shortened(value: object, length: int = 100) -> str:
  """A value as an error message shows it: its repr, without the middle if it is long."""
  if isinstance(value, int) and abs(value) >= 1 << 256:  # Python writes no more than 4300 digits.
    return f'an integer of {value.bit_length()} bits'
  text = repr(value)
  return text if len(text) <= length else f'{text[: length - 20]}...{text[-17:]}'


def _set_up_classes() -> None:
  for name, pattern, first_characters in _CORE_SCHEMA:
    for yaml_class in (_Loader, _Dumper):
      yaml_class.add_implicit_resolver(f'tag:yaml.org,2002:{name}', re.compile(f'^{pattern}$'), first_characters)
    _Loader.add_constructor(f'tag:yaml.org,2002:{name}', _constructor(name, pattern))
  _Loader.add_implicit_resolver(_MERGE_TAG, re.compile('^<<$'), ['<'])
  _Loader.add_constructor(_MERGE_TAG, yaml.SafeLoader.construct_yaml_str)  # As a value, it is a text.
  # Model Garden writes this tag into its params.yaml.
  _Loader.add_constructor('tag:yaml.org,2002:python/tuple', yaml.SafeLoader.construct_yaml_seq)
  for sequence_type in (list, tuple):
    _Dumper.add_representer(
      sequence_type, lambda dumper, data: dumper.represent_sequence('tag:yaml.org,2002:seq', data, flow_style=True)
    )
  _DocumentLoader.add_constructor('tag:yaml.org,2002:int', _construct_plain_int)  # Copies the constructors of _Loader.


_set_up_classes()


def dump(values: Mapping[str, object]) -> str:
  """Writes nested mappings, sequences and scalars as YAML that `load` reads back to equal values, tuples as lists."""
  return yaml.dump(
    dict(values), Dumper=_Dumper, default_flow_style=False, sort_keys=False, allow_unicode=True, width=1 << 20
  )


def load(text: str, source: str) -> json_values.Json:
  """Reads one YAML 1.2 or JSON document.

  Args:
    text: the document.
    source: where it comes from, for the error message.

  Returns:
    Nested dicts, lists and scalars.

  Raises:
    UserError: the text is not YAML, has a key twice in one mapping or an integer that begins with 0, is nested too
      deeply, or expands to too much.
  """
  return _load(text, source, _DocumentLoader)


def _load(text: str, source: str, loader: type[_Loader]) -> json_values.Json:
  try:
    return yaml.load(text, Loader=loader)
  except yaml.YAMLError as error:
    raise errors.UserError(f'{source}: {_one_line(error)}') from error


def _one_line(error: yaml.YAMLError) -> str:
  marked = error if isinstance(error, yaml.MarkedYAMLError) else yaml.MarkedYAMLError()
  problem, mark = marked.problem or ' '.join(str(error).split()), marked.problem_mark
  where = f' in line {mark.line + 1}, column {mark.column + 1}' if mark else ''
  is_sentence = problem.startswith(('the key', 'an alias', 'aliases'))
  return problem if is_sentence else f'malformed YAML: {problem}{where}'


def load_file(path: str, source: str) -> json_values.JsonObject:
  """Reads a YAML or JSON file that holds one mapping.

  Args:
    path: local, or one that `tf.io.gfile` knows.
    source: the flag that names the file, for the error message.

  Raises:
    UserError: the file cannot be read, or holds something else.
  """
  source = f'{source}={path}'
  try:
    text = paths.read(path, 4 * _MAX_CHARACTERS, pipes=True).decode()
  except FileNotFoundError as error:
    raise errors.UserError(f'{source}: no such file') from error
  except local_files.UnreadableError as error:
    raise errors.UserError(f'{source}: {error.strerror}; expected a YAML file') from error
  except (OSError, UnicodeDecodeError) as error:
    reason = 'it is a directory' if isinstance(error, IsADirectoryError) else ' '.join(str(error).split())
    raise errors.UserError(f'{source}: cannot be read: {reason}') from error
  if len(text) > _MAX_CHARACTERS:
    raise errors.UserError(f'{source}: more than {_MAX_CHARACTERS} characters; expected a YAML file')
  return _mapping(load(text, source), source)


def _mapping(value: object, source: str) -> json_values.JsonObject:
  if value is None:
    return {}
  if not isinstance(value, dict):
    raise errors.UserError(f'{source}: expected a mapping from fields to values, got {shortened(value)}')
  return value


def load_overrides(text: str, source: str) -> json_values.JsonObject:
  """Reads overrides as Model Garden's --params_override takes them.

  Args:
    text: `a.b=1,c=[2, 3]`, a YAML or JSON mapping, or the path of a file that holds one.
    source: the flag, for the error message.

  Returns:
    Nested dicts. In the first form the leaves that are not strings or lists are `Literal`.

  Raises:
    UserError: it is invalid.
  """
  if _KEY.match(text):
    return nest(_assignments(text, source), source)
  value = load(text, source)
  if isinstance(value, str):
    if not paths.exists(value):
      raise errors.UserError(f'{source}={value}: neither a.b=1,c.d=2 nor a YAML mapping, and no such file')
    return load_file(value, source)
  return _mapping(value, source)


def load_value(text: str, source: str) -> object:
  """The value of one assignment on the command line: a `Literal`, a string, a list or a dict.

  Lists and dicts are in brackets. Anything else that is not YAML, such as `*.tfrecord`, is a string.
  """
  text = text.strip()
  if text.startswith(('[', '{')):
    return load(text, source)
  try:
    value = _load(text, source, _Loader)
  except errors.UserError:
    return text
  if isinstance(value, (dict, list)) or (value is None and text.startswith('#')):
    return text
  return value if isinstance(value, str) else Literal(value, text)


def nest(assignments: Iterable[tuple[Sequence[str], object]], source: str) -> json_values.JsonObject:
  """Turns [(('a', 'b'), 1), (('a', 'c'), 2)] into {'a': {'b': 1, 'c': 2}}.

  Raises:
    UserError: a path is given twice, or together with a value for something that it is a part of.
  """
  nested: json_values.JsonObject = {}
  for path, value in assignments:
    if len(path) > _MAX_DEPTH:
      raise errors.UserError(f'{source}: {shortened(".".join(path))} is a path of {len(path)} names')
    level = nested
    for name in path[:-1]:
      level = level.setdefault(name, {})
      if not isinstance(level, dict):
        raise errors.UserError(f'{".".join(path)}: given twice in {source}')
    if path[-1] in level:
      raise errors.UserError(f'{".".join(path)}: given twice in {source}')
    level[path[-1]] = value
  return nested


def _assignments(text: str, source: str) -> list[tuple[Sequence[str], object]]:
  """Splits `a.b=1,c[0]=2,c[1]=3` into [(('a', 'b'), Literal(1)), (('c',), [2, 3])]."""
  assignments: list[tuple[Sequence[str], object]] = []
  elements: dict[str, dict[int, object]] = {}
  for part in _split(text):
    match = _KEY.match(part)
    if match is None:
      raise errors.UserError(f'{source}: expected name=value, got {part.strip()!r}')
    name, index = match.groups()
    value = load_value(part[match.end() :], f'{source}: {name}')
    if index is None:
      assignments.append((name.split('.'), value))
      continue
    if name not in elements:
      elements[name] = {}
    if int(index) in elements[name]:
      raise errors.UserError(f'{name}[{index}]: given twice in {source}')
    elements[name][int(index)] = value.value if isinstance(value, Literal) else value
  for name, values in elements.items():
    if sorted(values) != list(range(len(values))):
      raise errors.UserError(f'{name}: all elements from [0] on must be given, got {sorted(values)}')
    assignments.append((name.split('.'), [values[index] for index in range(len(values))]))
  return assignments


def _split(text: str) -> list[str]:
  """Splits at the commas outside of brackets and quotes; there may be one at the end."""
  parts, depth, quote = [''], 0, ''
  for character in text:
    if quote:
      quote = '' if character == quote else quote
    elif character in '"\'':
      quote = character
    elif character in '[{':
      depth += 1
    elif character in ']}':
      depth -= 1
    elif character == ',' and depth == 0:
      parts.append('')
      continue
    parts[-1] += character
  return parts if parts[-1].strip() else parts[:-1]


def flatten(values: object, prefix: str = '') -> json_values.JsonObject:
  """Flattens nested dictionaries, and lists of them, to one with dotted paths: `{'task.losses[0].weight': 1.0}`."""
  if isinstance(values, dict) and values:
    items = [(f'{prefix}.{key}' if prefix else str(key), value) for key, value in values.items()]
  elif isinstance(values, list) and any(isinstance(value, (dict, list)) for value in values):
    items = [(f'{prefix}[{i}]', value) for i, value in enumerate(values)]
  else:
    return {prefix: values}
  return {key: value for name, item in items for key, value in flatten(item, name).items()}


def text_differences(old_text: str, new_text: str) -> list[str]:
  """The fields in which two YAML documents differ, as `path: old -> new`; [] if they are equal."""
  if old_text == new_text:
    return []
  try:
    old = flatten(load(old_text, 'the old file cannot be read'))
  except errors.UserError as e:
    return [str(e)]
  new = flatten(load(new_text, 'params.yaml'))
  # Compared as text: 1 is not 1.0, and nan is nan.
  shown = {
    key: (repr(old[key]) if key in old else 'unset', repr(new[key]) if key in new else 'unset')
    for key in {**old, **new}
  }
  return [f'{key}: {before} -> {after}' for key, (before, after) in shown.items() if before != after]


# Words that are the same in any place of a list or mapping; all others are quoted there.
_PLAIN_IN_BRACKETS = re.compile(r'[A-Za-z_/][\w./*+-]*', re.ASCII)
# The characters that a YAML document may hold unescaped, and the characters that a quoted text would fold or lose.
_ESCAPED = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]')
_SURROGATE = re.compile('[\ud800-\udfff]')
_SHORT_ESCAPES = {'"': '\\"', '\\': '\\\\', '\n': '\\n', '\t': '\\t', '\r': '\\r'}


def argument_of(value: object) -> str:
  """The text that `load_value` reads as `value`, for a field whose type has a place for it.

  Strings are unquoted if YAML reads them as themselves, and are quoted otherwise: '10', 'true', ' a', two lines.

  Args:
    value: None, a bool, a number, a string, or nested lists and mappings of these.

  Raises:
    UserError: a string that is not valid Unicode: half of a surrogate pair, which no file and no command can hold.
    TypeError: it is of another type.
  """
  if isinstance(value, str):
    return value if _means_itself(value) else _quoted(value)
  return _in_brackets(value)


def _means_itself(text: str) -> bool:
  if _ESCAPED.search(text) or _SURROGATE.search(text):
    return False
  try:
    return load_value(text, '') == text
  except errors.UserError:
    return False


def _in_brackets(value: object) -> str:
  if value is None:
    return 'null'
  if isinstance(value, bool):
    return 'true' if value else 'false'
  if isinstance(value, int):
    return str(value)
  if isinstance(value, float):
    return _float(value)
  if isinstance(value, str):
    is_plain = _PLAIN_IN_BRACKETS.fullmatch(value) and load(value, '') == value
    return value if is_plain else _quoted(value)
  if isinstance(value, Mapping):
    return '{' + ', '.join(f'{_in_brackets(str(key))}: {_in_brackets(each)}' for key, each in value.items()) + '}'
  if isinstance(value, (list, tuple)):
    return '[' + ', '.join(map(_in_brackets, value)) + ']'
  raise TypeError(f'{type(value).__name__} has no form on the command line')


def _float(value: float) -> str:
  if math.isfinite(value):
    return repr(value)
  return '.nan' if math.isnan(value) else '.inf' if value > 0 else '-.inf'


def _quoted(text: str) -> str:
  if _SURROGATE.search(text):
    raise errors.UserError(f'{shortened(text)}: is not valid Unicode: it has half of a surrogate pair')
  return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(match: re.Match) -> str:
  character = match[0]
  code = ord(character)
  return _SHORT_ESCAPES.get(character) or (f'\\x{code:02x}' if code < 0x100 else f'\\u{code:04x}')


def setting_text(value: object) -> str:
  """A value as --set reads it back: the same number to the last bit; text in quotes if YAML would read another type."""
  if isinstance(value, str):
    is_plain = value and value == value.strip() and value.isprintable() and value[0] not in '[{'
    return value if is_plain and load_value(value, '') == value else json.dumps(value)
  if isinstance(value, float) and not math.isfinite(value):
    return '.nan' if math.isnan(value) else '.inf' if value > 0 else '-.inf'
  if isinstance(value, list):
    return f'[{", ".join(map(_text_in_brackets, value))}]'
  if isinstance(value, Mapping):
    return f'{{{", ".join(f"{json.dumps(str(name))}: {_text_in_brackets(each)}" for name, each in value.items())}}}'
  return json.dumps(value)


def _text_in_brackets(value: object) -> str:
  """A value in brackets, where a text may hold a comma."""
  return json.dumps(value) if isinstance(value, str) else setting_text(value)
