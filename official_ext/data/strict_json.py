"""JSON without the parts that parsers read differently: repeated keys, NaN and infinities, numbers beyond float64."""

from collections.abc import Callable, Sequence
import json
import math
import re
from typing import Any, NoReturn

from official_ext.base import json_types

# A number above 1e308 has an exponent of three digits, or at least 200 digits in a row before an exponent below 100.
# Most texts have neither, and need no call of Python per number.
_MAY_OVERFLOW = re.compile(r'[0-9.][eE]\+?[0-9]{3}|[0-9]{200}')


class StrictJsonError(ValueError):
  """Raised for JSON whose meaning depends on who reads it."""


def loads(text: str) -> json_types.Json:
  """Parses a text.

  Raises:
    StrictJsonError: an object has a key twice; a number is NaN, infinite, or too large for a float64.
    ValueError, RecursionError: see json.loads.
  """
  try:
    found = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
  except ValueError:  # What comes first in the text is reported.
    return json.loads(text, **_hooks(text))
  if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
    return found  # The search for numbers takes longer than the rest.
  return json.loads(text, **_hooks(text)) if _MAY_OVERFLOW.search(text) else found


def find_fault(text: str) -> tuple[int, str] | None:
  """Finds the first element of a list that `loads` refuses: (its number, why); None if there is none."""
  decode: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(**_hooks(text)).raw_decode
  place = text.index('[') + 1
  number = 0
  while (place := _skip_blanks(text, place)) < len(text) and text[place] != ']':
    try:
      _, place = decode(text, place)
    except StrictJsonError as error:
      return number, str(error)
    place = _skip_blanks(text, place)
    place += text[place : place + 1] == ','
    number += 1
  return None


def _skip_blanks(text: str, place: int) -> int:
  while place < len(text) and text[place] in ' \t\r\n':
    place += 1
  return place


def _hooks(text: str) -> dict[str, Any]:
  hooks: dict[str, object] = {'object_pairs_hook': _object, 'parse_constant': _refuse}
  return {**hooks, 'parse_float': _float, 'parse_int': _int} if _MAY_OVERFLOW.search(text) else hooks


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
  found = dict(pairs)
  if len(found) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise StrictJsonError(f'has the key {twice!r} more than once')
  return found


def _refuse(name: str) -> NoReturn:
  raise StrictJsonError(f'holds {name}, which is not valid JSON; write null, or a number')


def _int(text: str) -> int:
  _float(text)  # Before `int`, which refuses very long ones for another reason.
  return int(text)


def _float(text: str) -> float:
  value = float(text)
  if math.isinf(value):
    raise StrictJsonError(f'holds the number {text[:20]}, which is too large for a float64')
  return value
