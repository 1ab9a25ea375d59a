"""Records from JSON lines and JSON.

The file of JSON lines has an index of where each begins, and lines are read one by one. `loads_strict` refuses JSON
that parsers read differently: repeated keys, NaN and infinities, numbers beyond float64.
"""

from collections.abc import Callable, Sequence
import gzip
import hashlib
import io
import json
import math
import os
import re
import shutil
import tempfile
import threading
from typing import Any, BinaryIO, NoReturn

import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.data import bad_examples
from official_ext.data import numbered_records

# A number above 1e308 has an exponent of three digits, or at least 200 digits in a row before an exponent below 100.
# Most texts have neither, and need no call of Python per number.
_MAY_OVERFLOW = re.compile(r'[0-9.][eE]\+?[0-9]{3}|[0-9]{200}')


class StrictJsonError(ValueError):
  """Raised for JSON that parsers read differently."""


def loads_strict(text: str) -> json_values.Json:
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


def find_json_fault(text: str) -> tuple[int, str] | None:
  """Finds the first element of a list that `loads_strict` refuses: (its number, why); None if it refuses none."""
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


_BLOCK = 2**23
MAX_LINE_BYTES = 2**27


class JsonLines(numbered_records.Records):
  """A file with a JSON object in each line, in UTF-8. Blank lines do not count.

  One that was packed by gzip is unpacked into a temporary file, which is gone when the process is.
  """

  def __init__(self, path: str, at_most: int = -1):
    """Looks for the beginnings of lines.

    Args:
      path: the file.
      at_most: the number of lines that are enough; -1: all.

    Raises:
      OSError: the file cannot be read.
    """
    self._path, self.files = path, [path]
    self._lock = threading.Lock()
    self._file = _opened(path)
    total = hashlib.sha256()
    self._bounds, self._numbers = _lines_of(self._file, at_most, total)
    self._digest = total.hexdigest()[:32]

  def __len__(self) -> int:
    return len(self._numbers)

  def read(self, index: int) -> numbered_records.Record:
    start, end = self._bounds[index].tolist()
    _check_length(end - start, lambda: self.place(index))
    return record_of(self._bytes(start, end), lambda: self.place(index))

  def place(self, index: int) -> str:
    return f'{self._path}, line {int(self._numbers[index]) + 1}'

  @property
  def digest(self) -> str:
    return self._digest

  def _bytes(self, start, end):
    if hasattr(self._file, 'fileno'):  # Without a position, which threads and forked processes would share.
      return os.pread(self._file.fileno(), end - start, start)
    with self._lock:
      self._file.seek(start)
      return self._file.read(end - start)


class JsonLinesPart(numbered_records.Records):
  """The lines of a file of JSON lines that begin in a range of its bytes. They are in memory."""

  def __init__(self, path: str, start: int, end: int):
    """Reads the range, and the rest of its last line.

    Args:
      path: the file, which is not packed.
      start: where the range begins, in bytes.
      end: where it ends.

    Raises:
      OSError: the file cannot be read.
    """
    self._path, self.files = path, [path]
    with open(path, 'rb') as f:
      if start:  # The line that holds the preceding byte belongs to the range before.
        f.seek(start - 1)
        start = _next_line(f, start - 1, end)
      self._content = f.read(max(0, end - start))
      if self._content and not self._content.endswith(b'\n'):  # Reads enough of a line that is too long to detect it.
        begun = len(self._content) - self._content.rfind(b'\n') - 1
        self._content += f.readline(max(0, MAX_LINE_BYTES + 2 - begun))
    self._start = start
    self._bounds, _ = _lines_of(io.BytesIO(self._content), -1, hashlib.sha256())

  def __len__(self) -> int:
    return len(self._bounds)

  def read(self, index: int) -> numbered_records.Record:
    start, end = self._bounds[index].tolist()
    _check_length(end - start, lambda: self.place(index))
    return record_of(self._content[start:end], lambda: self.place(index))

  def place(self, index: int) -> str:
    """The place of a record, for messages; counts the lines before it."""
    left, count = self._start + int(self._bounds[index, 0]), 1
    with open(self._path, 'rb') as f:
      while left > 0 and (block := f.read(min(left, _BLOCK))):
        left, count = left - len(block), count + block.count(b'\n')
    return f'{self._path}, line {count}'

  @property
  def digest(self) -> str:
    return hashlib.sha256(self._content).hexdigest()[:32]


def record_of(line: bytes, place: Callable[[], str]) -> numbered_records.Record:
  """The object that a line holds.

  Args:
    line: in UTF-8.
    place: where it is, for messages.

  Raises:
    BadExampleError: it holds no object.
  """
  bad = lambda what: bad_examples.BadExampleError(f'{place()}: {what}')
  try:
    record = loads_strict(line.removeprefix(b'\xef\xbb\xbf').decode())
  except UnicodeDecodeError as error:
    raise bad(f'is not UTF-8 at byte {error.start}') from error
  except json.JSONDecodeError as error:
    raise bad(f'is invalid JSON: {error.msg} at column {error.colno}') from error
  except StrictJsonError as error:
    raise bad(str(error)) from error
  except (ValueError, RecursionError) as error:  # Of an integer with too many digits; of lists in lists in lists.
    raise bad(f'is invalid JSON: {bad_examples.reason_of_file(error)}') from error
  if not isinstance(record, dict):
    raise bad(f'is {_json_name(record)}; expected a JSON object')
  return record


def _check_length(num_bytes: int, place: Callable[[], str]) -> None:
  """Refuses a line that is too long for a record: it would be read whole."""
  if num_bytes > MAX_LINE_BYTES:
    raise bad_examples.BadExampleError(
      f'{place()}: is longer than {MAX_LINE_BYTES} bytes; a record must fit into that, each on a separate line'
    )


def _next_line(file: BinaryIO, at: int, end: int) -> int:
  """The place after the first end of a line from `at` on, at which the file is left; at most `end`."""
  while at < end and (block := file.read(min(_BLOCK, end - at))):
    found = block.find(b'\n')
    if found >= 0:
      file.seek(at + found + 1)
      return at + found + 1
    at += len(block)
  return end


def json_list(file: str) -> numbered_records.ListRecords:
  """A file that is one list of objects.

  Raises:
    UserError: it is invalid.
  """
  try:
    with _opened(file) as f:
      text = f.read().decode('utf-8-sig')
    records = loads_strict(text)
  except StrictJsonError as error:
    number, what = find_json_fault(text) or (0, str(error))
    raise errors.UserError(f'{file}, element {number}: {what}') from error
  except ValueError as error:
    raise errors.UserError(f'{file}: is invalid JSON: {bad_examples.reason_of_file(error)}') from error
  for number, record in enumerate(records):
    if not isinstance(record, dict):
      raise errors.UserError(f'{file}, element {number}: is {_json_name(record)}; expected a JSON object')
  return _FileRecords(records, file)


class _FileRecords(numbered_records.ListRecords):
  def __init__(self, records, file):
    super().__init__(records, f'{file}, element')
    self.files = [file]


def _opened(path: str) -> BinaryIO:
  """A file to read and to seek in; of a packed one, an unpacked copy without a name."""
  file = _opened_remote(path) if paths.is_remote(path) else open(path, 'rb')
  if not path.endswith('.gz'):
    return file
  with file, gzip.open(file, 'rb') as packed:
    unpacked = tempfile.TemporaryFile()
    shutil.copyfileobj(packed, unpacked, _BLOCK)
    unpacked.seek(0)
    return unpacked


def _opened_remote(path):
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  return tf.io.gfile.GFile(path, 'rb')


def begins_with(path: str, letter: bytes) -> bool:
  """Whether the first character of a text file that is not blank is this one."""
  file = _opened_remote(path) if paths.is_remote(path) else open(path, 'rb')
  with file, gzip.open(file, 'rb') if path.endswith('.gz') else file as f:
    return f.read(4096).removeprefix(b'\xef\xbb\xbf').lstrip()[:1] == letter


def _lines_of(file: BinaryIO, at_most: int, total: Any) -> tuple[np.ndarray, np.ndarray]:
  """The positions of lines that are not empty.

  Args:
    file: open, at its beginning.
    at_most: the number of lines to find; -1: all.
    total: a sum, updated with the bytes read.

  Returns:
    (start and end of each line, int64 `[n, 2]`; their numbers in the file, int64 `[n]`).
  """
  bounds, numbers, count, offset, num_lines, start = [], [], 0, 0, 0, 0
  has_content = False  # Of the line that a block has cut, which may be long: it is not kept.
  while at_most < 0 or count < at_most:
    block = file.read(_BLOCK)
    total.update(block)
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + offset
    if not block and offset > start:
      ends = np.append(ends, offset)
    starts = np.concatenate([[start], ends[:-1] + 1])[: len(ends)].astype(np.int64)
    kept = np.array(
      [_has_content(block[max(0, s - offset) : e - offset]) for s, e in zip(starts.tolist(), ends.tolist())], bool
    )
    if len(ends):
      kept[0] |= has_content
      start, has_content = int(ends[-1]) + 1, False
    bounds.append(np.stack([starts, ends], axis=1)[kept])
    numbers.append(np.flatnonzero(kept) + num_lines)
    count, num_lines = count + int(kept.sum()), num_lines + len(ends)
    if not block:
      break
    has_content = has_content or _has_content(block[max(0, start - offset) :])
    offset += len(block)
  stop = None if at_most < 0 else at_most
  return np.concatenate(bounds)[:stop].astype(np.int64), np.concatenate(numbers)[:stop].astype(np.int64)


def _has_content(text: bytes) -> bool:
  return bool(text) and not text.isspace()


def _json_name(value: object) -> str:
  names = {list: 'a list', str: 'a string', bool: 'a boolean', int: 'a number', float: 'a number', type(None): 'null'}
  return names.get(type(value), type(value).__name__)
