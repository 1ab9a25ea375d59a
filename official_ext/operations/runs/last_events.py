"""The last event, training metrics and evaluation of a run, read from the end of its events.jsonl.

Files of events grow for weeks, and lists are looked at every few seconds: at most the last two megabytes are read, and
only the lines that are needed are parsed. Events superseded by a restore or a rollback do not count
(base/run_folder/standing_events.py).
"""

from collections.abc import Iterator, Mapping
import dataclasses
import math
import os

from official_ext.base import json_types
from official_ext.base.files import regular_files
from official_ext.base.run_folder import event_names
from official_ext.base.run_folder import standing_events

# One after the other, as long as something is missing.
_BLOCKS = (1 << 14, 1 << 17, 1 << 21)
_KINDS = ('train', 'eval', *standing_events.GO_BACK)


@dataclasses.dataclass
class LastEvents:
  """The last events that stand.

  Attributes:
    last: the last line of all; None if there is none.
    train: the last event 'train'; None if there is none in the part read. As all of them, with numbers that are not
      finite as floats.
    evaluation: the last event 'eval'; likewise.
  """

  last: json_types.JsonObject | None = None
  train: json_types.JsonObject | None = None
  evaluation: json_types.JsonObject | None = None


def read(path: str) -> LastEvents:
  """The last events of a file; none of a file that is missing or cannot be read."""
  found = LastEvents()
  try:
    with regular_files.open_to_read(path, buffering=0) as file:
      size = os.fstat(file.fileno()).st_size
      for length in _BLOCKS:
        start = max(0, size - length)
        file.seek(start)
        block = file.read(min(size, length))
        found = _last_of(block, start == 0)
        if start == 0 or (found.train and found.evaluation):
          break
  except OSError:
    pass
  return found


def _last_of(block: bytes, is_whole: bool) -> LastEvents:
  """The last events in the end of a file.

  Args:
    block: the end of the file.
    is_whole: whether that is all of it; if not, it may begin within a line.
  """
  found = LastEvents()
  for event in _lines_backwards(block, is_whole):
    found.last = with_floats(event)
    break
  if found.last is None:
    return found
  highest, pending = math.inf, set()
  # The position of the last line of each kind that is not looked at yet.
  places = {kind: block.rfind(_mark(kind)) for kind in _KINDS}
  while found.train is None or found.evaluation is None:
    kind = max(places, key=lambda name: places[name])
    place = places[kind]
    if place < 0:
      break
    places[kind] = block.rfind(_mark(kind), 0, place)
    found_event = _event_at(block, place, is_whole)
    if found_event is None or found_event['event'] != kind:
      continue
    event = found_event
    if kind in standing_events.GO_BACK:
      if event.get('evaluation_pending'):
        pending.add(event['step'])
      highest = min(highest, event['step'])
    elif event['step'] <= highest and kind == 'train':
      found.train = with_floats(event)
      places[kind] = -1
    elif event['step'] <= highest and event['step'] not in pending:
      found.evaluation = with_floats(event)
      places[kind] = -1
  return found


def _mark(kind: str) -> bytes:
  """The text in the line of such an event, and in no string of JSON, which would escape the quotes."""
  return b'"event": "%s"' % kind.encode()


def _event_at(block: bytes, place: int, is_whole: bool) -> json_types.JsonObject | None:
  start = block.rfind(b'\n', 0, place) + 1
  if not start and not is_whole:
    return None
  end = block.find(b'\n', place)
  return standing_events.parse(block[start : len(block) if end < 0 else end])


def _lines_backwards(block: bytes, is_whole: bool) -> Iterator[json_types.JsonObject]:
  end = len(block)
  while end > 0:
    start = block.rfind(b'\n', 0, end) + 1
    if not start and not is_whole:
      return
    event = standing_events.parse(block[start:end]) if end > start else None
    if event is not None:
      yield event
    end = start - 1


def with_floats(event: Mapping[str, object]) -> json_types.JsonObject:
  """An event with the floats that its strings "NaN", "Infinity" and "-Infinity" mean."""
  return {key: float(value) if value in json_types.NOT_FINITE else value for key, value in event.items()}


def metrics_of(event: Mapping[str, object] | None) -> dict[str, float]:
  """The numbers in an event that are metrics of the model, by name, and not of the run's progress."""
  others = {*event_names.PROGRESS, 'time', 'step'}
  return {key: value for key, value in (event or {}).items() if json_types.is_number(value) and key not in others}
