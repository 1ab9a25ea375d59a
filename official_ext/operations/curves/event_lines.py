"""Lines of an events.jsonl as `EventsWriter` writes them, read with NumPy: no line is parsed as a whole.

`EventSample` reads some thousand lines of all parts of a long file in a fraction of a second. It has the attributes of
`EventColumns` that curves need. What only the whole file shows is estimated: a line stands if no later line of the
sample has an earlier step.
"""

import json
import os
import re
import threading
from typing import Any

import numpy as np

from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.run_folder import run_files

TRAIN, EVAL, SYSTEM, OTHER, INVALID = range(5)
KINDS = ('train', 'eval', 'system')
PADDING = 64  # Zero bytes after the lines that are searched.


def line_heads(data: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Kinds, steps and times of lines; INVALID for all except lines of KINDS in the usual form.

  Args:
    data: the bytes, and PADDING zeros.
    starts: where the lines begin.
  """
  kinds = np.full(len(starts), INVALID, np.int8)
  steps, times = np.zeros(len(starts), np.int64), np.full(len(starts), np.nan)
  words = np.ndarray(len(data) - 7, np.uint64, data, strides=(1,))  # Eight bytes from each place on.

  def is_at(places: np.ndarray, text: bytes) -> np.ndarray:
    """Whether these eight bytes are at some places."""
    return words[np.minimum(places, len(words) - 1)] == np.frombuffer(text, np.uint64)[0]

  found = is_at(starts, b'{"time":')
  seconds, place = _decimals(data, starts + 9)
  found &= is_at(place, b', "event') & is_at(place + 2, b'"event":')
  place += 12
  for kind, text in ((TRAIN, b'train", '), (EVAL, b'eval", "'), (SYSTEM, b'system",')):
    lines = np.flatnonzero(found & is_at(place, text))
    at = place[lines] + len(KINDS[kind]) + 3
    good = is_at(at, b'"step": ')
    numbers, end = _decimals(data, at + 8)
    good &= np.isin(data[np.minimum(end, len(data) - 1)], (ord(','), ord('}'))) & (numbers < 2**53)
    good &= numbers == np.floor(numbers)
    lines = lines[good]
    kinds[lines], steps[lines], times[lines] = kind, numbers[good].astype(np.int64), seconds[lines]
  return kinds, steps, times


def _decimals(data: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Reads decimal numbers without sign and exponent, of at most 20 characters. Returns them and where they end."""
  digits = np.zeros(len(places), np.int64)
  scale = np.ones(len(places), np.int64)
  after_point = np.zeros(len(places), bool)
  going = np.ones(len(places), bool)
  end = places.copy()
  for _ in range(20):
    letters = data[np.minimum(end, len(data) - 1)]
    is_digit = going & (letters >= ord('0')) & (letters <= ord('9'))
    is_point = going & (letters == ord('.')) & ~after_point
    going = is_digit | is_point
    if not going.any():
      break
    digits = np.where(is_digit, digits * 10 + letters - ord('0'), digits)
    scale = np.where(is_digit & after_point, scale * 10, scale)
    after_point |= is_point
    end += going
  return digits / scale, end


def numbers_in(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
  """The positions of a name in whole lines, and its numbers; other values are left out."""
  key = re.escape(json.dumps(name).encode())  # First, and as a literal: so the search is fast.
  pattern = re.compile(key + rb': ?(-?[0-9][0-9.eE+-]*|"(?:NaN|-?Infinity)"|NaN|-?Infinity)')
  starts: list[int] = []
  texts: list[bytes] = []  # Two lists: a pair for each would keep the collector of garbage busy.
  for match in pattern.finditer(content):
    starts.append(match.start())
    texts.append(match[1])
  try:
    values = np.fromiter(map(float, texts), np.float64, len(texts))
  except ValueError:  # Quoted values; or invalid numbers, such as 1-2.
    values = np.array([to_float(text.strip(b'"').decode()) for text in texts])
  places = np.array(starts, np.int64)
  good = np.frombuffer(content, np.uint8)[places - 1] != ord('\\')  # Or else it is within a string of JSON.
  return (places, values) if good.all() else (places[good], values[good])


def is_number(value: object) -> bool:
  """Whether a value of JSON is a number, or one of the strings for numbers that are not finite."""
  return json_values.is_number(value) or value in json_values.NOT_FINITE


def to_float(value: Any) -> float:
  """A value as a number; NaN if it is not a number."""
  try:
    return float(value)
  except (TypeError, ValueError):
    return np.nan
  except OverflowError:
    return np.inf


_BLOCKS = 32
_BLOCK = 64 << 10  # Bytes.
_MAX_PARSED = 40  # Lines of a block that are parsed one by one: lines in another form, and evaluations for their names.


class EventSample:
  """The lines of some blocks of a file, read at once. Threads may share it.

  Attributes:
    path: of the file.
    wanted: names whose values are needed of the whole file: see ColumnStore.sample.
    lock: as of EventColumns.
    kinds, steps, times, standing: as of EventColumns, of the lines of the sample.
  """

  is_sample = True

  def __init__(self, path: str):
    """Reads the sample.

    Args:
      path: of the file. One that cannot be read has no lines.
    """
    self.path = path
    self.wanted: dict[str, None] = {}
    self.lock = threading.RLock()
    self._names: tuple[dict[str, None], ...] = tuple({} for _ in KINDS)
    self._contents: list[tuple[bytes, np.ndarray]] = []  # Whole lines, and where they begin.
    heads = [self._parse(content) for content in _blocks(path)]
    self.kinds, self.steps, self.times = (
      np.concatenate(parts) if parts else np.empty(0, dtype)
      for parts, dtype in zip(zip(*heads) if heads else ((), (), ()), (np.int8, np.int64, np.float64))
    )
    is_known = self.kinds != INVALID
    after = np.minimum.accumulate(np.where(is_known, self.steps, np.iinfo(np.int64).max)[::-1])[::-1]
    self.standing = is_known & (self.steps <= after)

  def names(self, kind: int) -> list[str]:
    """The names of the numbers in the parsed lines of a kind."""
    return list(self._names[kind])

  def metric(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of a name: the numbers of their lines in the sample, ascending, and the values."""
    lines, values, before = [np.empty(0, np.int64)], [np.empty(0)], 0
    for content, starts in self._contents:
      places, found = numbers_in(content, name)
      at = np.searchsorted(starts, places, side='right') - 1
      keep = np.append(at[1:] > at[:-1], True) if len(at) else np.empty(0, bool)
      lines.append(at[keep] + before)
      values.append(found[keep])
      before += len(starts)
    return np.concatenate(lines), np.concatenate(values)

  def of_others(self, key: str) -> list[tuple[int, Any]]:
    """No values: the lines of starts are not in every sample."""
    del key
    return []

  def release(self) -> None:
    """Does nothing."""

  def _parse(self, content: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The kinds, steps and times of whole lines."""
    data = np.frombuffer(content + bytes(PADDING), np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(data == ord('\n')) + 1])
    ends, starts = starts[1:] - 1, starts[:-1]
    kinds, steps, times = line_heads(data, starts)
    odd = np.flatnonzero(kinds == INVALID)[:_MAX_PARSED]
    named = np.concatenate([np.flatnonzero(kinds == kind)[:_MAX_PARSED] for kind in range(len(self._names))])
    for line in [*odd, *named]:
      event = run_files.parse_event(content[starts[line] : ends[line]])
      if event is None or event['event'] not in KINDS or abs(event['step']) > 1 << 62:
        continue
      kind = KINDS.index(event['event'])
      kinds[line], steps[line], times[line] = kind, event['step'], to_float(event.get('time'))
      for name, value in event.items():
        if name not in ('time', 'step', 'event') and is_number(value):
          self._names[kind][name] = None
    self._contents.append((content, starts))
    return kinds, steps, times


def _blocks(path: str) -> list[bytes]:
  """Whole lines from evenly spaced places of a file; its first and its last ones are among them."""
  found = []
  try:
    with local_files.open_to_read(path, buffering=0) as file:
      size = os.fstat(file.fileno()).st_size
      for offset in np.unique(np.linspace(0, max(0, size - _BLOCK), _BLOCKS).astype(np.int64)).tolist():
        file.seek(offset)
        content = file.read(_BLOCK)
        first = content.find(b'\n') + 1 if offset else 0
        content = content[first : content.rfind(b'\n') + 1]
        if content:
          found.append(content)
  except OSError:
    pass
  return found
