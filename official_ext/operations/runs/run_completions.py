"""The completions that a run has logged: answers to the same prompts, step by step. No TensorFlow."""

from collections.abc import Sequence

from official_ext.base import json_types
from official_ext.base.files import regular_files
from official_ext.base.run_folder import standing_events
from official_ext.operations.runs import last_events
from official_ext.operations.runs import run_folder

EVENT = 'completions'
_MAX_LOGS = 200
_NOT_COLUMNS = ('time', 'event', 'step')


def read(run: run_folder.Run, limit: int = _MAX_LOGS) -> list[json_types.JsonObject]:
  """The logs of completions that stand, by step.

  Args:
    run: the run.
    limit: how many logs, the last ones.

  Returns:
    `{"step", "time", "columns": {NAME: [value, ...]}}` each; the columns of a log have one length.
  """
  marks = tuple(b'"event": "%s"' % kind.encode() for kind in (EVENT, *standing_events.GO_BACK))
  events = []
  try:
    with regular_files.open_to_read(run.file(run_folder.EVENTS)) as file:
      for line in regular_files.lines(file, standing_events.MAX_LINE):
        event = standing_events.parse(line) if any(mark in line for mark in marks) else None
        if event is not None:
          events.append(event)
  except OSError:
    return []
  found = [event for event in standing_events.standing(events) if event['event'] == EVENT]
  return [_log(event) for event in found[-limit:]]


def _log(event: json_types.JsonObject) -> json_types.JsonObject:
  lists = {name: value for name, value in event.items() if name not in _NOT_COLUMNS and isinstance(value, list)}
  length = min(map(len, lists.values()), default=0)
  columns = {name: _plain(value[:length]) for name, value in lists.items()}
  return {'step': event['step'], 'time': event.get('time'), 'columns': columns}


def _plain(values: Sequence[object]) -> list[object]:
  """Floats for "NaN" and similar strings of numbers; texts are unchanged."""
  if all(not isinstance(value, str) or value in json_types.NOT_FINITE for value in values):
    return list(last_events.with_floats(dict(enumerate(values))).values())  # type: ignore[arg-type]
  return list(values)
