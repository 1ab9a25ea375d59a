"""The timeline of a run: all events but the many of training. No TensorFlow."""

from collections.abc import Mapping
import dataclasses
import heapq
import itertools

import numpy as np

from official_ext.base import json_types
from official_ext.operations.curves import column_store
from official_ext.operations.curves import event_columns
from official_ext.operations.runs import run_folder

_MAX_VALUES = 30
_MAX_TEXT = 500


@dataclasses.dataclass(frozen=True)
class TimelineEvent:
  """An event, or several of one kind without another in between.

  Attributes:
    time: of the last, in seconds since 1970; None if it has none.
    event: its name, see base/run_folder/event_names.py.
    step: of the last.
    first_step: of the first.
    count: how many they are.
    is_superseded: whether the run has gone back to before it.
    mode: '' of the training, or the mode whose file it is from.
    values: the other values of the last one.
  """

  time: float | None
  event: str
  step: int
  first_step: int
  count: int
  is_superseded: bool
  mode: str
  values: json_types.JsonMapping

  def as_dict(self) -> json_types.JsonObject:
    """Strict JSON values."""
    return json_types.json_values(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Timeline:
  """The events of a run, by time; those of a file in its order.

  Attributes:
    events: the last ones.
    num_left_out: how many lines before them are left out.
  """

  events: tuple[TimelineEvent, ...]
  num_left_out: int


def read(store: column_store.ColumnStore, run: run_folder.Run, limit: int = 1000) -> Timeline:
  """The last events of a run, and of evaluations beside it.

  Args:
    store: keeps the columns read.
    run: the run.
    limit: how many lines of each file are read.
  """
  files: list[list[tuple[float, TimelineEvent]]] = []
  left_out = 0
  for mode in ('', *(mode for mode in run.modes() if 'train' not in mode)):
    columns = store.columns(run.file_of_mode('events', 'jsonl', mode or 'train'))
    with columns.lock:
      lines = np.flatnonzero((columns.kinds == event_columns.OTHER) | (columns.kinds == event_columns.EVAL))
      left_out += max(0, len(lines) - limit)
      lines = lines[max(0, len(lines) - limit) :]
      standing = columns.standing[lines]
      parsed = columns.events(lines)
    files.append(_ordered(_grouped(parsed, standing, mode)))
  return Timeline(tuple(event for _, event in heapq.merge(*files, key=lambda each: each[0])), left_out)


def _ordered(events: list[TimelineEvent]) -> list[tuple[float, TimelineEvent]]:
  """The events of a file with times that never decrease: a clock that is set back does not change their order."""
  times = itertools.accumulate((each.time or 0.0 for each in events), max)
  return list(zip(times, events))


def _grouped(parsed: list[json_types.JsonObject], standing: np.ndarray, mode: str) -> list[TimelineEvent]:
  """Events that follow another of their name count with it, but for evaluations, whose numbers matter."""
  found: list[TimelineEvent] = []
  for event, stands in zip(parsed, standing):
    before = found[-1] if found else None
    same = before is not None and event['event'] != 'eval' and before.event == event['event']
    same = same and before is not None and before.is_superseded == (not stands)
    first, count = (before.first_step, before.count + 1) if same and before is not None else (event['step'], 1)
    if same:
      found.pop()
    time = event.get('time')
    found.append(
      TimelineEvent(
        time if isinstance(time, (int, float)) else None,
        event['event'],
        event['step'],
        first,
        count,
        not stands,
        mode,
        _values(event),
      )
    )
  return found


def _values(event: Mapping[str, object]) -> json_types.JsonObject:
  """A short text of an event."""
  values = {key: value for key, value in event.items() if key not in ('time', 'event', 'step')}
  shown = dict(list(values.items())[:_MAX_VALUES])
  short = {key: value[:_MAX_TEXT] if isinstance(value, str) else value for key, value in shown.items()}
  return {
    key: value if isinstance(value, (str, int, float, type(None))) else str(value)[:_MAX_TEXT]
    for key, value in short.items()
  }
