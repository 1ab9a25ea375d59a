"""The check of an integer that a person, a file or a request gives, with one message for all of them."""

from official_ext.base import errors
from official_ext.base import json_types


def check(value: json_types.Json, name: str, least: int = 1, most: int | None = None) -> int:
  """Returns the value if it is an integer in a range.

  Args:
    value: of JSON, YAML or a request.
    name: of the value, for the message.
    least: the least possible one.
    most: the greatest possible one; None for no limit.

  Raises:
    UserError: it is missing (None), is something else (so is a bool), or is outside the range.
  """
  if json_types.is_int(value) and value >= least and (most is None or value <= most):
    return value
  limit = f'{most} or less' if json_types.is_int(value) and value >= least else f'{least} or more'
  shown = 'nothing' if value is None else repr(value)[:100]
  raise errors.UserError(f'{name}: expected an integer of {limit}, got {shown}')


def from_text(text: str) -> int | str:
  """The integer that a text writes in decimal digits; any other text unchanged, for `check` to refuse."""
  return int(text) if text.isascii() and text.isdecimal() and len(text) < 100 else text
