"""JSON values: their types, checks of numbers, timestamps, and files of one value.

Timestamps are UTC in ISO 8601, to the millisecond. Files are read up to a size, and written whole or not at all.
`load_file` raises if a file is missing or damaged, `read_file` takes a damaged one for a missing one, and
`read_required_file` reports both to the user.
"""

from collections.abc import Mapping
import datetime
import json
import math
import os
from typing import Any, TypeGuard
import uuid

from official_ext.base import errors
from official_ext.base.files import local_files
from official_ext.base.files import paths

# A value as `json.loads` returns it. Its shape is not known to a type checker: who reads it checks it.
Json = Any
# A mapping from names to such values.
JsonObject = dict[str, Json]
# The same, only read.
JsonMapping = Mapping[str, Json]

# The strings for numbers that are not finite, which strict JSON lacks.
NOT_FINITE = ('NaN', 'Infinity', '-Infinity')


def is_int(value: Json) -> TypeGuard[int]:
  """Whether a value is a whole number: a bool, which Python counts among them, is not."""
  return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Json) -> TypeGuard[int | float]:
  """Whether a value is a number, finite or not; a bool is not."""
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: Json) -> TypeGuard[int | float]:
  """Whether a value is a finite number; a bool is not."""
  return is_number(value) and math.isfinite(value)


def as_float(value: Json) -> float:
  """A number, or one of NOT_FINITE, as a float. A whole number of JSON has any length: a too large one is infinite."""
  try:
    return float(value)
  except OverflowError:
    return math.inf if value > 0 else -math.inf


def as_strict(values: object) -> Json:
  """Values as strict JSON: numbers that are not finite as the strings "NaN", "Infinity" and "-Infinity"."""
  if isinstance(values, Mapping):
    return {str(key): as_strict(value) for key, value in values.items()}
  if isinstance(values, (list, tuple)):
    return [as_strict(value) for value in values]
  if isinstance(values, float) and not math.isfinite(values):
    return 'NaN' if math.isnan(values) else 'Infinity' if values > 0 else '-Infinity'
  return values if values is None or isinstance(values, (str, int, float)) else str(values)  # YAML has dates.


def check_int(value: Json, name: str, least: int = 1, most: int | None = None) -> int:
  """Returns the value if it is an integer in a range.

  Args:
    value: of JSON, YAML or a request.
    name: of the value, for the message.
    least: the least possible one.
    most: the greatest possible one; None for no limit.

  Raises:
    UserError: it is missing (None), is something else (so is a bool), or is outside the range.
  """
  if is_int(value) and value >= least and (most is None or value <= most):
    return value
  limit = f'{most} or less' if is_int(value) and value >= least else f'{least} or more'
  shown = 'nothing' if value is None else repr(value)[:100]
  raise errors.UserError(f'{name}: expected an integer of {limit}, got {shown}')


def int_from_text(text: str) -> int | str:
  """The integer that a text writes in decimal digits; any other text unchanged, for `check_int` to refuse."""
  return int(text) if text.isascii() and text.isdecimal() and len(text) < 100 else text


def timestamp_now() -> str:
  """The present, such as `2026-01-31T12:00:00.000Z`."""
  return _timestamp(datetime.datetime.now(datetime.UTC))


def timestamp_of(value: float) -> str:
  """A moment as text.

  Args:
    value: in seconds since 1970, of the years 1 to 9999.
  """
  return _timestamp(datetime.datetime.fromtimestamp(value, datetime.UTC))


def _timestamp(moment: datetime.datetime) -> str:
  return moment.isoformat(timespec='milliseconds').replace('+00:00', 'Z')


def timestamp_seconds(text: Json) -> float | None:
  """The seconds from 1970 to a moment; None if that is not the text of one."""
  try:
    moment = datetime.datetime.fromisoformat(text)
  except (TypeError, ValueError):
    return None
  try:
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
  except (OverflowError, ValueError):
    return None


def load_file(path: str, max_bytes: int | None = local_files.MAX_RECORD) -> JsonObject:
  """Reads an object.

  Args:
    path: of the file.
    max_bytes: the size above which it is refused; None: no bound.

  Raises:
    OSError: the file is missing, cannot be read, or is larger.
    ValueError: it is damaged.
  """
  return parse_object(paths.read(path, max_bytes))


def load_list_file(path: str, max_bytes: int | None = local_files.MAX_RECORD) -> list[Json]:
  """Reads a list: see `load_file`."""
  values = _parse(paths.read(path, max_bytes))
  if not isinstance(values, list):
    raise ValueError(f'expected a list, found {type(values).__name__}')
  return values


def read_file(path: str, max_bytes: int | None = local_files.MAX_RECORD) -> JsonObject | None:
  """Reads an object: see `load_file`. None if the file is missing or damaged, or cannot be read."""
  try:
    return load_file(path, max_bytes)
  except (OSError, ValueError):
    return None


def read_required_file(path: str, field: str = '') -> JsonObject:
  """Reads an object of any size from a file that the user names.

  Args:
    path: of the file.
    field: the flag or dotted path that it is from, for messages.

  Raises:
    UserError: the file is missing or damaged, or cannot be read.
  """
  where = f'{field}: {path}' if field else path
  try:
    content = paths.read(path)
  except OSError as error:
    raise errors.UserError(f'{where}: cannot be read: {error.strerror or error}') from error
  return parse_required_object(content, where)


def parse_object(content: bytes) -> JsonObject:
  """The object in the content of a file.

  Raises:
    ValueError: it is damaged.
  """
  values = _parse(content)
  if not isinstance(values, dict):
    raise ValueError(f'expected an object, found {type(values).__name__}')
  return values


def parse_required_object(content: bytes, where: str) -> JsonObject:
  """The object in the content of a file that the user names.

  Args:
    content: of the file.
    where: the start of messages.

  Raises:
    UserError: it is damaged.
  """
  try:
    return parse_object(content)
  except ValueError as error:
    raise errors.UserError(f'{where}: {" ".join(str(error).split())}; replace the file') from error


def _parse(content: bytes) -> Json:
  try:
    return json.loads(content)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'is invalid JSON: {error}') from error


def encode(values: Json, sort_keys: bool = False) -> bytes:
  """A value as the content of a file, for people to read too."""
  return (json.dumps(values, indent=2, sort_keys=sort_keys) + '\n').encode()


def write_file(path: str, values: JsonMapping) -> None:
  """Writes an object to a file of an existing folder, under a temporary name that is then replaced.

  Raises:
    StorageError: it cannot be written.
  """
  folder, name = os.path.split(path)
  temporary = os.path.join(folder, f'.{name}.tmp-{os.getpid()}-{uuid.uuid4().hex[:12]}')  # Threads write too.
  try:
    paths.write_atomically(path, encode(values), temporary)
  except OSError as error:
    raise errors.StorageError(f'{path}: cannot be written: {error.strerror or error}') from error
