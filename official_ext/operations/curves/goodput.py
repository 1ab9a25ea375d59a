"""How a run has spent its wall time: the share of training that counts, its goodput. No TensorFlow.

Goodput is productive time over wall time, as in Google's ML Productivity Goodput
(https://cloud.google.com/blog/products/ai-machine-learning/goodput-metric-as-measure-of-ml-productivity).
"""

import dataclasses

import numpy as np

from official_ext.operations.curves import column_store
from official_ext.operations.curves import event_columns
from official_ext.operations.runs import run_folder

_MAX_TIME = 1e11  # Seconds since 1970: no clock shows more.
PARTS = ('training', 'input', 'compilation', 'evaluation', 'saving', 'repeated', 'stopped', 'other')


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


def read(store: column_store.ColumnStore, run: run_folder.Run) -> Goodput | None:
  """The goodput of a run's training up to its last event; None if it has no start, or no time has passed.

  Args:
    store: keeps the columns read.
    run: the run.
  """
  columns = store.columns(run.file(run_folder.EVENTS))
  with columns.lock:
    marks = columns.of_others('event')
    starts = np.array([line for line, event in marks if event == 'start'], np.int64)
    if not len(starts):
      return None
    times = _times(columns)
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


def _times(columns: event_columns.EventColumns) -> np.ndarray:
  """The times of the lines, never decreasing: a clock that is set back takes no time, and later time counts."""
  known = np.isfinite(columns.times) & (np.abs(columns.times) < _MAX_TIME)
  places = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
  first = int(np.argmax(known)) if known.any() else 0
  filled = np.where(known.any(), columns.times[np.where(places < 0, first, places)], 0.0)
  return np.concatenate([[0.0], np.cumsum(np.maximum(0.0, np.diff(filled)))])


class _Beside:
  """Time beside the steps, by the line that reports it.

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
    """The seconds of compilation reported behind some lines and before others."""
    lines, seconds = self._compiled
    sums = np.concatenate([[0.0], np.cumsum(seconds)])
    return sums[np.searchsorted(lines, last)] - sums[np.searchsorted(lines, first, side='right')]

  def between(self, first: int, last: int) -> float:
    """The seconds of all kinds reported behind a line and before another."""
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
  """Seconds of the steps of training loops: that stand, of waits in these, and of those that do not stand.

  The steps of a loop, over its speed, are its time. It counts at most the time since the line before it that training
  or a start has written, less compilation.

  Args:
    columns: of the events.
    times: of the lines, never decreasing.
    anchors: the lines of training loops, starts, restores and rollbacks.
    beside: the time beside the steps.
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
  return _sum((spent * (1 - waits))[stands]), _sum((spent * waits)[stands]), _sum(spent[~stands])


def _sum(values: np.ndarray) -> float:
  return float(values[np.isfinite(values)].sum())
