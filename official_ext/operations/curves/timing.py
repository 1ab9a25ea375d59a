"""How a run has spent its time: its goodput, its timeline, and the table of its last profile.

Goodput is productive time over wall time, as in Google's ML Productivity Goodput
(https://cloud.google.com/blog/products/ai-machine-learning/goodput-metric-as-measure-of-ml-productivity). The timeline
has all events except training, of which there are many. The profile shows where the time of some steps went.
"""

from collections.abc import Mapping
import dataclasses
import heapq
import itertools

import numpy as np

from official_ext.base import json_values
from official_ext.operations.curves import column_store
from official_ext.operations.curves import event_columns
from official_ext.operations.runs import run_folders

_MAX_TIME = 1e11  # Seconds since 1970: no clock shows more.
GOODPUT_PARTS = ('training', 'input', 'compilation', 'evaluation', 'saving', 'repeated', 'stopped', 'other')


@dataclasses.dataclass(frozen=True)
class Goodput:
  """The wall time of a run by purpose, in seconds.

  Attributes:
    seconds: from the first start to the last event, without pauses after which a finished run was extended.
    training: steps that stand, without waits for input.
    input: waits for input in steps that stand.
    compilation: of the programs of steps.
    evaluation: evaluations.
    saving: the training loop waited for a save.
    repeated: loops that the run has gone back from, and has done again or will do again.
    stopped: between the last event of an attempt and the start of the next. For a killed process this has the time
      after its last event too.
    other: all else, such as starts, callbacks, and logging.
  """

  seconds: float
  training: float
  input: float
  compilation: float
  evaluation: float
  saving: float
  repeated: float
  stopped: float
  other: float


def read_goodput(store: column_store.ColumnStore, run: run_folders.Run) -> Goodput | None:
  """The goodput of a run's training up to its last event; None if it has no start, or no time has passed.

  Args:
    store: keeps the columns read.
    run: the run.
  """
  columns = store.columns(run.file(run_folders.EVENTS))
  with columns.lock:
    marks = columns.of_others('event')
    starts = np.array([line for line, event in marks if event == 'start'], np.int64)
    if not len(starts):
      return None
    times = _event_times(columns)
    # Who extends a run that has finished has lost no time before.
    pauses = {int(line): float(times[line] - times[line - 1]) for line in starts[1:]}
    extended = sum(seconds for line, seconds in pauses.items() if _is_end(columns, line - 1))
    total = float(times[-1] - times[starts[0]]) - extended
    if total <= 0:
      return None
    spent = _Beside(columns)
    # The lines that say at which step and time the next loop begins.
    marked = np.array([line for line, _ in marks], np.int64)
    anchors = np.union1d(np.flatnonzero(columns.kinds == event_columns.TRAIN), marked)
    rollbacks = [line for line, event in marks if event == 'rollback']
    training, wait, repeated = _steps(columns, times, anchors, spent)
    parts = {
      'training': training,
      'input': wait,
      'compilation': spent.compilation,
      'evaluation': spent.evaluation,
      'saving': spent.saving,
      'repeated': repeated + _rolled_back(rollbacks, times, anchors, spent),
      'stopped': sum(pauses.values()) - extended,
    }
  return Goodput(seconds=total, other=max(0.0, total - sum(parts.values())), **parts)


def _is_end(columns: event_columns.EventColumns, line: int) -> bool:
  return any(event['event'] == 'finished' for event in columns.events(np.array([line])))


def _event_times(columns: event_columns.EventColumns) -> np.ndarray:
  """The times of the lines, never decreasing: a clock that is set back takes no time, and later time counts."""
  known = np.isfinite(columns.times) & (np.abs(columns.times) < _MAX_TIME)
  places = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
  first = int(np.argmax(known)) if known.any() else 0
  filled = np.where(known.any(), columns.times[np.where(places < 0, first, places)], 0.0)
  return np.concatenate([[0.0], np.cumsum(np.maximum(0.0, np.diff(filled)))])


class _Beside:
  """Time outside the steps, by the line that reports it.

  Attributes:
    compilation: seconds in all.
    evaluation: likewise.
    saving: likewise.
  """

  def __init__(self, columns: event_columns.EventColumns):
    """Reads all events that have seconds.

    Args:
      columns: of the events.
    """
    lines, seconds = columns.metric('seconds')
    seconds = np.where(np.isfinite(seconds), np.maximum(0.0, seconds), 0.0)
    kinds = columns.kinds[lines]
    others = np.flatnonzero(kinds == event_columns.OTHER)
    events = columns.events(lines[others])
    compiled = others[[number for number, event in enumerate(events) if event['event'] == 'compiled']]
    is_evaluation = kinds == event_columns.EVAL
    saved, stalls = columns.metric('stall_seconds')
    stalls = np.where(np.isfinite(stalls), np.maximum(0.0, stalls), 0.0)
    self.compilation, self.evaluation = float(seconds[compiled].sum()), float(seconds[is_evaluation].sum())
    self.saving = float(stalls.sum())
    self._compiled = lines[compiled], seconds[compiled]
    self._all = [self._compiled, (lines[is_evaluation], seconds[is_evaluation]), (saved, stalls)]

  def compiled_between(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The seconds of compilation reported after some lines and before others."""
    lines, seconds = self._compiled
    sums = np.concatenate([[0.0], np.cumsum(seconds)])
    return sums[np.searchsorted(lines, last)] - sums[np.searchsorted(lines, first, side='right')]

  def between(self, first: int, last: int) -> float:
    """The seconds of all kinds reported after a line and before another."""
    return float(sum(seconds[(first < lines) & (lines < last)].sum() for lines, seconds in self._all))


def _rolled_back(rollbacks: list[int], times: np.ndarray, anchors: np.ndarray, beside: _Beside) -> float:
  """The seconds of loops that ended in a rollback, which have no line 'train'."""
  total = 0.0
  for line in rollbacks:
    before = int(anchors[max(0, int(np.searchsorted(anchors, line)) - 1)])
    total += max(0.0, float(times[line] - times[before]) - beside.between(before, line))
  return total


def _steps(
  columns: event_columns.EventColumns, times: np.ndarray, anchors: np.ndarray, beside: _Beside
) -> tuple[float, float, float]:
  """Seconds of the steps of training loops: that stand, of waits in these, and of steps that do not stand.

  The steps of a loop, over its speed, are its time. It counts at most the time since the line before it that training
  or a start has written, less compilation.

  Args:
    columns: of the events.
    times: of the lines, never decreasing.
    anchors: the lines of training loops, starts, restores and rollbacks.
    beside: the time outside the steps.
  """
  lines, rates = columns.metric('steps_per_second')
  usable = (columns.kinds[lines] == event_columns.TRAIN) & (rates > 0) & np.isfinite(rates)
  lines, rates = lines[usable], rates[usable]
  if not len(lines):
    return 0.0, 0.0, 0.0
  before = anchors[np.maximum(0, np.searchsorted(anchors, lines) - 1)]
  limit = times[lines] - times[before] - beside.compiled_between(before, lines)
  spent = np.clip((columns.steps[lines] - columns.steps[before]) / rates, 0, np.maximum(0, limit))
  waits = np.zeros(len(lines))
  wait_lines, shares = columns.metric('data_wait')
  _, own, others = np.intersect1d(lines, wait_lines, assume_unique=True, return_indices=True)
  waits[own] = np.clip(np.nan_to_num(shares[others]), 0, 1)
  stands = columns.standing[lines]
  return (
    _sum_of_seconds((spent * (1 - waits))[stands]),
    _sum_of_seconds((spent * waits)[stands]),
    _sum_of_seconds(spent[~stands]),
  )


def _sum_of_seconds(values: np.ndarray) -> float:
  return float(values[np.isfinite(values)].sum())


_MAX_VALUES = 30
_MAX_TEXT = 500


@dataclasses.dataclass(frozen=True)
class TimelineEvent:
  """An event, or several of one kind without another in between.

  Attributes:
    time: of the last, in seconds since 1970; None if it has none.
    event: its name, see base/run_folder/run_files.py.
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
  values: json_values.JsonMapping

  def as_dict(self) -> json_values.JsonObject:
    """Strict JSON values."""
    return json_values.as_strict(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Timeline:
  """The events of a run, by time; the events of a file in its order.

  Attributes:
    events: the last ones.
    num_left_out: how many lines before them are left out.
  """

  events: tuple[TimelineEvent, ...]
  num_left_out: int


def read_timeline(store: column_store.ColumnStore, run: run_folders.Run, limit: int = 1000) -> Timeline:
  """The last events of a run, and of its separate evaluations.

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


def _grouped(parsed: list[json_values.JsonObject], standing: np.ndarray, mode: str) -> list[TimelineEvent]:
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
        _shown_values(event),
      )
    )
  return found


def _shown_values(event: Mapping[str, object]) -> json_values.JsonObject:
  """A short text of an event."""
  values = {key: value for key, value in event.items() if key not in ('time', 'event', 'step')}
  shown = dict(list(values.items())[:_MAX_VALUES])
  short = {key: value[:_MAX_TEXT] if isinstance(value, str) else value for key, value in shown.items()}
  return {
    key: value if isinstance(value, (str, int, float, type(None))) else str(value)[:_MAX_TEXT]
    for key, value in short.items()
  }


PROFILE = 'profile.json'


def read_profile(run: run_folders.Run) -> json_values.JsonObject | None:
  """The table: `first` and `last` step, `programs`, `seconds` of all, and `rows`, the seconds of each kind of work.

  None if it is missing or cannot be read.
  """
  found = json_values.read_file(run.file(PROFILE))
  rows = (found or {}).get('rows')
  if found is None or not isinstance(rows, dict) or not json_values.is_finite(found.get('seconds')):
    return None
  if not all(json_values.is_finite(value) for value in rows.values()):
    return None
  return {**{key: found.get(key) for key in ('first', 'last', 'programs', 'seconds')}, 'rows': rows}
