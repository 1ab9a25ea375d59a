"""A run's events.jsonl: its last events, the logged completions, and all events as a CSV table.

Files of events grow for weeks, and lists are refreshed every few seconds: `read_last` reads at most the last two
megabytes, and parses only the lines that are needed. Events superseded by a restore or a rollback do not count
(`standing_events` of base/run_folder/run_files.py).

The table of `export_csv` has a row for each event that counts, and a column for each name that any event has: `time`
(seconds since 1970), `event`, `step`, then the others in order of appearance. A cell is empty if the event has no such
value; numbers that are not finite are nan, inf and -inf; lists are JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
import csv
import dataclasses
import io
import itertools
import math
import os
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import run_files
from official_ext.base.run_folder import tracker_logs
from official_ext.operations.runs import run_folders

# Tried in this order, as long as something is missing.
_BLOCKS = (1 << 14, 1 << 17, 1 << 21)
_KINDS = ('train', 'eval', *run_files.GO_BACK)


@dataclasses.dataclass
class LastEvents:
  """The last events that stand.

  Attributes:
    last: the last line of all; None without lines.
    train: the last event 'train'; None without one in the part read. As all of them, with numbers that are not
      finite as floats.
    evaluation: the last event 'eval'; likewise.
  """

  last: json_values.JsonObject | None = None
  train: json_values.JsonObject | None = None
  evaluation: json_values.JsonObject | None = None


def read_last(path: str) -> LastEvents:
  """The last events of a file; none of a file that is missing or cannot be read."""
  found = LastEvents()
  try:
    with local_files.open_to_read(path, buffering=0) as file:
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


def newest_events(run: run_folders.Run, limit: int) -> list[json_values.JsonObject]:
  """The last events of a run, also of one that only evaluates, in order; at most those of the last two megabytes.

  Args:
    run: the run.
    limit: how many, at most.
  """
  for mode in run.modes() or ['train']:
    try:
      with local_files.open_to_read(run.file_of_mode('events', 'jsonl', mode), buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size - _BLOCKS[-1])
        file.seek(start)
        block = file.read(min(size, _BLOCKS[-1]))
    except OSError:
      continue
    found = list(itertools.islice(_lines_backwards(block, start == 0), limit))
    return [with_floats(event) for event in run_files.standing_events(reversed(found))]
  return []


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
    if kind in run_files.GO_BACK:
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


def _event_at(block: bytes, place: int, is_whole: bool) -> json_values.JsonObject | None:
  start = block.rfind(b'\n', 0, place) + 1
  if not start and not is_whole:
    return None
  end = block.find(b'\n', place)
  return run_files.parse_event(block[start : len(block) if end < 0 else end])


def _lines_backwards(block: bytes, is_whole: bool) -> Iterator[json_values.JsonObject]:
  end = len(block)
  while end > 0:
    start = block.rfind(b'\n', 0, end) + 1
    if not start and not is_whole:
      return
    event = run_files.parse_event(block[start:end]) if end > start else None
    if event is not None:
      yield event
    end = start - 1


def with_floats(event: Mapping[str, object]) -> json_values.JsonObject:
  """An event with the floats that its strings "NaN", "Infinity" and "-Infinity" mean."""
  return {key: float(value) if value in json_values.NOT_FINITE else value for key, value in event.items()}


def metrics_of(event: Mapping[str, object] | None) -> dict[str, float]:
  """The numbers in an event that are metrics of the model, by name, and not of the run's progress."""
  others = {*run_files.PROGRESS, 'time', 'step'}
  return {key: value for key, value in (event or {}).items() if json_values.is_number(value) and key not in others}


CSV_FILE = 'events.csv'
_FIRST_COLUMNS = ('time', 'event', 'step')


def export_csv(run: run_folders.Run, output_dir: str | None = None) -> tuple[int, str]:
  """Writes the table, whole, in the place of an earlier one.

  Args:
    run: the run.
    output_dir: a folder for NAME.csv; None: the run's own, for events.csv.

  Returns:
    The number of events, and the path of the file.

  Raises:
    UserError: the run has no events yet.
    StorageError: it cannot be written.
  """
  events = standing_events(run)
  if not events:
    raise errors.UserError(f'{run.name}: has no events yet; nothing can be exported')
  name = os.path.basename(run.path) if run.name == '.' else run.name
  path = run.file(CSV_FILE) if output_dir is None else os.path.join(output_dir, f'{name}.csv')
  columns = list(dict.fromkeys([*_FIRST_COLUMNS, *(name for event in events for name in event)]))
  text = io.StringIO()
  writer = csv.DictWriter(text, columns, restval='', lineterminator='\n')
  writer.writeheader()
  writer.writerows({name: tracker_logs.csv_cell(value) for name, value in event.items()} for event in events)
  try:
    paths.make_folder(os.path.dirname(path))
    paths.write_atomically(path, text.getvalue().encode('utf-8', 'surrogatepass'))
  except OSError as error:
    raise errors.StorageError(f'{path}: cannot be written: {error.strerror or error}') from error
  return len(events), path


def standing_events(run: run_folders.Run) -> list[dict[str, Any]]:
  """The events that no restore or rollback has superseded, in order; numbers that are not finite are floats."""
  try:
    with local_files.open_to_read(run.file(run_folders.EVENTS)) as file:
      lines = local_files.read_lines(file, run_files.MAX_EVENT_BYTES)
      parsed = [event for line in lines if (event := run_files.parse_event(line)) is not None]
  except OSError:
    return []
  return [with_floats(event) for event in run_files.standing_events(parsed)]


COMPLETIONS = 'completions'
_MAX_LOGS = 200
_NOT_COLUMNS = ('time', 'event', 'step')


def read_completions(run: run_folders.Run, limit: int = _MAX_LOGS) -> list[json_values.JsonObject]:
  """The logs of completions that stand, by step.

  Args:
    run: the run.
    limit: how many logs, the last ones.

  Returns:
    `{"step", "time", "columns": {NAME: [value, ...]}}` each; the columns of a log have one length.
  """
  marks = tuple(b'"event": "%s"' % kind.encode() for kind in (COMPLETIONS, *run_files.GO_BACK))
  events = []
  try:
    with local_files.open_to_read(run.file(run_folders.EVENTS)) as file:
      for line in local_files.read_lines(file, run_files.MAX_EVENT_BYTES):
        event = run_files.parse_event(line) if any(mark in line for mark in marks) else None
        if event is not None:
          events.append(event)
  except OSError:
    return []
  found = [event for event in run_files.standing_events(events) if event['event'] == COMPLETIONS]
  return [_completions_of(event) for event in found[-limit:]]


def _completions_of(event: json_values.JsonObject) -> json_values.JsonObject:
  lists = {name: value for name, value in event.items() if name not in _NOT_COLUMNS and isinstance(value, list)}
  length = min(map(len, lists.values()), default=0)
  columns = {name: _plain_values(value[:length]) for name, value in lists.items()}
  return {'step': event['step'], 'time': event.get('time'), 'columns': columns}


def _plain_values(values: Sequence[object]) -> list[object]:
  """Floats for "NaN" and similar strings of numbers; texts are unchanged."""
  if all(not isinstance(value, str) or value in json_values.NOT_FINITE for value in values):
    return list(with_floats(dict(enumerate(values))).values())  # type: ignore[arg-type]
  return list(values)
