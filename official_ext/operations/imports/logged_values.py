"""Values that a tracker has logged, and the events.jsonl that says the same. No TensorFlow.

The first part of a name says which event a value belongs to: `train/loss` is `loss` of an event 'train', `eval/loss` is
that of an event 'eval'.
"""

import array
from collections.abc import Iterator
import json
import math

import numpy as np

from official_ext.base import json_types

EVENTS = ('train', 'eval')
# The first parts of names, and of folders of TensorBoard, that stand for an event. `test/` stays in the name: a run may
# have both.
TRAIN_PARTS, EVAL_PARTS = ('train', 'training'), ('validation', 'val', 'valid', 'eval', 'evaluation')
_TEST = 'test'
_OWN_KEYS = ('time', 'event', 'step')
_MAX_STEP = 2**53  # Readers of events.jsonl, JavaScript among them, take no larger ones.
MAX_TIME = 1e11  # Seconds: a greater number is invalid, or counts milliseconds.
_CHUNK = 1 << 16  # Values that are Python objects at a time.


class _Series:
  """The values of one name, in the order in which they were logged."""

  def __init__(self, event: int, name: str):
    self.event, self.name = event, name
    self.steps, self.times, self.values = array.array('q'), array.array('d'), array.array('d')
    self.part: object = None  # The file of the last value.
    self.has_steps = False  # Whether a step is not zero.

  def pop(self) -> None:
    for column in (self.steps, self.times, self.values):
      column.pop()


class LoggedValues:
  """The values of a run. A value takes 24 bytes."""

  def __init__(self) -> None:
    self._series: dict[str, _Series] = {}
    self._names: set[tuple[int, str]] = set()

  def __len__(self) -> int:
    return sum(len(each.values) for each in self._series.values())

  def add(self, name: str, step: int, time: float, value: float) -> None:
    """Adds a value. A step that occurs again is another value.

    Args:
      name: the tracker's.
      step: values without a possible one are left out.
      time: in seconds since 1970; NaN if it is not known.
      value: any float.
    """
    if -_MAX_STEP < step < _MAX_STEP:
      self._put(self._of(name), step, time, value)

  def replace(self, name: str, step: int, time: float, value: float, part: object) -> None:
    """Adds a value as TensorBoard does: one at an earlier step, or at the same, supersedes those from there on.

    A writer that is given no steps writes only zeros; such values are counted.

    Args:
      name: see `add`.
      step: likewise.
      time: likewise.
      value: likewise.
      part: tells the file of the value from others.
    """
    if not -_MAX_STEP < step < _MAX_STEP:
      return
    series = self._of(name)
    steps = series.steps
    if step:
      series.has_steps = True
    elif steps and not series.has_steps and series.part == part:
      step = len(steps)
    while steps and steps[-1] >= step:
      series.pop()
    series.part = part
    self._put(series, step, time, value)

  def _put(self, series: _Series, step: int, time: float, value: float) -> None:
    series.steps.append(step)
    series.times.append(time if 0 <= time < MAX_TIME else math.nan)
    series.values.append(value)

  def _of(self, name: str) -> _Series:
    found = self._series.get(name)
    if found is None:
      event, short = _place(name)
      if (event, short) in self._names:  # Such as that of val/loss beside eval/loss.
        short = name
      while (event, short) in self._names:
        short += '_'
      self._names.add((event, short))
      found = self._series[name] = _Series(event, short)
    return found

  def ends(self) -> tuple[float, float] | None:
    """The first and the last time in seconds since 1970; None if no time is known."""
    times = [np.frombuffer(each.times) for each in self._series.values() if len(each.times)]
    known = [found for found in (each[np.isfinite(each)] for each in times) if len(found)]
    if not known:
      return None
    return float(min(each.min() for each in known)), float(max(each.max() for each in known))

  def last_step(self) -> int:
    """The greatest step; 0 if there are no values."""
    return max((max(each.steps) for each in self._series.values() if each.steps), default=0)

  def events(self, time: float) -> Iterator[json_types.JsonObject]:
    """The events by step: one for all values of a kind at a step, with the time of the first.

    A second value of a name at a step is in another event.

    Args:
      time: of events before the first known time, in seconds since 1970.
    """
    series = [each for each in self._series.values() if each.steps]
    if not series:
      return
    lengths = [len(each.steps) for each in series]
    numbers = np.repeat(np.arange(len(series)), lengths)
    steps = np.concatenate([np.frombuffer(each.steps, np.int64) for each in series])
    times = np.concatenate([np.frombuffer(each.times) for each in series])
    values = np.concatenate([np.frombuffer(each.values) for each in series])
    kinds = np.array([each.event for each in series])[numbers]
    repeats = _repeats(numbers, steps)
    order = np.lexsort((numbers, kinds, repeats, steps))
    event: json_types.JsonObject | None = None
    key: tuple[int, int, int] | None = None
    for first in range(0, len(order), _CHUNK):
      part = order[first : first + _CHUNK]
      columns = (steps, repeats, kinds, numbers, times, values)
      for step, repeat, kind, number, moment, value in zip(*(column[part].tolist() for column in columns)):
        time = time if math.isnan(moment) else moment
        if key != (step, repeat, kind):
          if event is not None:
            yield event
          key, event = (step, repeat, kind), {'time': round(time, 3), 'event': EVENTS[kind], 'step': step}
        assert event is not None
        event[series[number].name] = value
    if event is not None:
      yield event


def _place(name: str) -> tuple[int, str]:
  """The event of a value by its name, as a number in EVENTS, and its name there."""
  first, slash, rest = name.partition('/')
  event = int(first in (*EVAL_PARTS, _TEST))
  short = rest if slash and rest and first in (*TRAIN_PARTS, *EVAL_PARTS) else name
  return event, f'{short}_' if short in _OWN_KEYS else short


def _repeats(numbers: np.ndarray, steps: np.ndarray) -> np.ndarray:
  """How often the step of each value occurs before it in its series."""
  order = np.lexsort((np.arange(len(steps)), steps, numbers))  # By series, then step, then in the order of logging.
  is_first = np.ones(len(order), bool)
  is_first[1:] = (np.diff(numbers[order]) != 0) | (np.diff(steps[order]) != 0)
  places = np.arange(len(order))
  found = np.empty(len(order), np.int64)
  found[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
  return found


def line_of(event: json_types.JsonMapping) -> bytes:
  """An event as a line of events.jsonl: strict JSON, in which a number that is not finite is a string."""
  return json.dumps(json_types.json_values(event), allow_nan=False).encode() + b'\n'
