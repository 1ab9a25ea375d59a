"""Lines of an events.jsonl as `EventsWriter` writes them, looked through with NumPy: no line is parsed as a whole."""

import json
import re
from typing import Any

import numpy as np

from official_ext.base import json_types

TRAIN, EVAL, SYSTEM, OTHER, INVALID = range(5)
KINDS = ('train', 'eval', 'system')
PADDING = 64  # So many zeros are behind the lines that are looked through.


def heads(data: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Kinds, steps and times of lines; INVALID for all but those of KINDS that are written in the usual way.

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
  """Whether a value of JSON is a number, or one of the strings for those that are not finite."""
  return json_types.is_number(value) or value in json_types.NOT_FINITE


def to_float(value: Any) -> float:
  """A value as a number; NaN if it is not a number."""
  try:
    return float(value)
  except (TypeError, ValueError):
    return np.nan
  except OverflowError:
    return np.inf
