"""Values as the command line takes them: the text behind `--set=NAME=` that the driver reads as exactly that value."""

from collections.abc import Mapping
import math
import re

from official_ext.base import errors
from official_ext.base import yaml_text

# Words that are the same in any place of a list or mapping; all others are quoted there.
_PLAIN_IN_BRACKETS = re.compile(r'[A-Za-z_/][\w./*+-]*', re.ASCII)
# The characters that a YAML document may hold unescaped, and those that a quoted text would fold or lose.
_ESCAPED = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]')
_SURROGATE = re.compile('[\ud800-\udfff]')
_SHORT_ESCAPES = {'"': '\\"', '\\': '\\\\', '\n': '\\n', '\t': '\\t', '\r': '\\r'}


def of_value(value: object) -> str:
  """The text that `yaml_text.load_value` reads as `value`, for a field whose type has a place for it.

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
    return yaml_text.load_value(text, '') == text
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
    is_plain = _PLAIN_IN_BRACKETS.fullmatch(value) and yaml_text.load(value, '') == value
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
    raise errors.UserError(f'{yaml_text.shortened(text)}: is not valid Unicode: it has half of a surrogate pair')
  return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(match: re.Match) -> str:
  character = match[0]
  code = ord(character)
  return _SHORT_ESCAPES.get(character) or (f'\\x{code:02x}' if code < 0x100 else f'\\u{code:04x}')
