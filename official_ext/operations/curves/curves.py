"""The curves of runs: a metric over steps, time, examples or another metric, as many points as a screen shows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import math
import os

import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.run_folder import run_files
from official_ext.operations.curves import column_store
from official_ext.operations.curves import decimation
from official_ext.operations.curves import event_columns
from official_ext.operations.curves import event_lines
from official_ext.operations.runs import event_log
from official_ext.operations.runs import run_folders

_AXIS_CHUNK = 1 << 16  # Values that are looked at together.


class MetricAxis:
  """The values of a metric by step.

  Attributes:
    is_known: whether the run has the metric.
    is_ordered: whether its values never fall from one step to a later one.
  """

  def __init__(self, columns: event_columns.EventColumns | event_lines.EventSample, kind: int, metric: str):
    """Looks at all values once.

    Args:
      columns: of the file that has the metric.
      kind: of its events, see event_columns.KINDS.
      metric: its name.
    """
    with columns.lock:
      # The arrays of this moment: a file may be replaced between two calls of `places`.
      self._lines, self._values = columns.metric(metric)
      self._steps = columns.steps
      kept = [np.empty(0, np.int32)]
      kept += [at.astype(np.int32) for at in event_columns.standing_places(columns, kind, self._lines)]
      self._at = np.concatenate(kept)
      if self._falls(lambda at: self._steps[self._lines[at]]):  # No training of this library writes such a file.
        self._at = self._at[np.argsort(self._steps[self._lines[self._at]], kind='stable')]
      self.is_known = bool(len(self._at))
      self.is_ordered = not self._falls(lambda at: self._values[at])
      columns.release()

  def places(self, steps: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The value at each step, of several the last; NaN at a step without one. The times do not count."""
    del times
    if not self.is_known:
      return np.full(len(steps), np.nan)
    low, high = np.zeros(len(steps), np.int64), np.full(len(steps), len(self._at))
    # A binary search, since the steps lie in a mapped file: a copy of ten million takes 80 MB.
    while (low < high).any():
      middle = (low + high) // 2
      is_before = self._step_of(np.minimum(middle, len(self._at) - 1)) <= steps
      is_open = low < high
      low = np.where(is_open & is_before, middle + 1, low)
      high = np.where(is_open & ~is_before, middle, high)
    found = np.maximum(low - 1, 0)
    return np.where(self._step_of(found) == steps, self._values[self._at[found]], np.nan)

  def _step_of(self, places: np.ndarray) -> np.ndarray:
    return self._steps[self._lines[self._at[places]]]

  def _falls(self, values_of: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether a value is less than one before it. Values that are not finite do not count."""
    before = -np.inf
    for begin in range(0, len(self._at), _AXIS_CHUNK):
      values = values_of(self._at[begin : begin + _AXIS_CHUNK])
      values = values[np.isfinite(values)]
      if len(values):
        if values[0] < before or (values[1:] < values[:-1]).any():
          return True
        before = values[-1]
    return False


_MAX_KEPT = 500_000  # Points of one request in memory; more are made twice.
_CHUNK = 1 << 16  # Points that are read together.

AXES = {
  'step': 'steps',
  'time': 'seconds since the run was first started',
  'active': 'seconds of running: pauses between attempts are left out',
  'wall': 'seconds since 1970',
  'examples': 'examples: steps times the effective batch size',
}


@dataclasses.dataclass(frozen=True)
class View:
  """The view of curves.

  Attributes:
    x: one of AXES; or the name of a curve, whose value at the same step is the place of a point.
    first: the left end of the axis; None: where the first curve begins.
    last: the right end; None: where the last curve ends.
    buckets: the parts of the axis, see decimation.py.
    log: whether the axis is logarithmic.
  """

  x: str = 'step'
  first: float | None = None
  last: float | None = None
  buckets: int = 500
  log: bool = False

  def __post_init__(self):
    if '/' in self.x:
      parse_name(self.x)
    elif self.x not in AXES:
      raise errors.UserError(f'x: {self.x}: no such axis; there are {", ".join(AXES)}, and names of curves')
    ends = [end for end in (self.first, self.last) if end is not None]
    if not all(map(math.isfinite, ends)) or (len(ends) == 2 and ends[0] >= ends[1]):
      raise errors.UserError(
        f'first, last: {self.first}, {self.last}: expected two numbers, the less before the greater'
      )
    if not 1 <= self.buckets <= decimation.MAX_BUCKETS:
      raise errors.UserError(f'buckets: {self.buckets}: must be from 1 to {decimation.MAX_BUCKETS}')


@dataclasses.dataclass(frozen=True)
class Curves:
  """Curves on one axis.

  Attributes:
    first: the left end of the axis.
    last: the right end.
    curves: (run's name, curve's name) -> the curve; a run that does not have it has none.
    lacking: runs that do not record the axis.
    is_coarse: whether a curve is of a sample of its file.
    unplaced: likewise as `curves`: how many points are left out, since the metric that is the axis has no finite value
      at their step.
    unordered: runs in which the metric that is the axis falls from one step to a later one.
  """

  first: float
  last: float
  curves: dict[tuple[str, str], decimation.Curve]
  lacking: tuple[str, ...] = ()
  is_coarse: bool = False
  unplaced: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)
  unordered: tuple[str, ...] = ()


def names(store: column_store.ColumnStore, run: run_folders.Run, is_patient: bool = True) -> list[str]:
  """The names of a run's curves: metrics before values of its progress, training before evaluation.

  Args:
    store: keeps the columns read.
    run: the run.
    is_patient: whether to read a long file first; otherwise the names are from a sample until a thread has read it.
  """
  found: list[str] = []
  for mode in _modes(run):
    columns = columns_of(store, run, mode, (), is_patient)
    for kind, event in enumerate(event_columns.KINDS):
      found += [_name(mode, event, metric) for metric in columns.names(kind)]
  return sorted(found, key=lambda name: name.partition('/')[2] in run_files.PROGRESS)


@dataclasses.dataclass(frozen=True)
class Values:
  """All values of a curve that stand.

  Attributes:
    name: the curve's name.
    steps: of each value: int64 [n].
    times: likewise, in seconds since 1970; NaN if unknown: float64 [n].
    values: float64 [n].
  """

  name: str
  steps: np.ndarray
  times: np.ndarray
  values: np.ndarray


def all_values(store: column_store.ColumnStore, run: run_folders.Run) -> Iterator[Values]:
  """Every value of every curve of a run."""
  for mode in _modes(run):
    columns = store.columns(_path(run, mode))
    with columns.lock:
      for kind, event in enumerate(event_columns.KINDS):
        for metric in columns.names(kind):
          lines, values = columns.metric(metric)
          keep = (columns.kinds[lines] == kind) & columns.standing[lines]
          found = lines[keep]
          yield Values(_name(mode, event, metric), columns.steps[found], columns.times[found], values[keep])
  store.trim()


def read(
  store: column_store.ColumnStore,
  runs: Sequence[run_folders.Run],
  wanted: Sequence[str],
  view: View = View(),
  is_patient: bool = True,
) -> Curves:
  """Curves of runs, on one axis.

  Args:
    store: keeps the columns read.
    runs: the runs.
    wanted: the names of curves; each is read of each run that has it.
    view: the view of them.
    is_patient: whether to read long files first; otherwise their curves are from a sample until a thread has read
      them, and the result `is_coarse`.

  Raises:
    UserError: a name is invalid.
  """
  parsed = {name: parse_name(name) for name in wanted}
  across = parse_name(view.x) if '/' in view.x else None
  curves: dict[tuple[str, str], _Points] = {}
  lacking: list[str] = []
  unordered: list[str] = []
  is_coarse, num_kept = False, 0
  for run in runs:

    def of_mode(mode: str, run: run_folders.Run = run) -> event_columns.EventColumns | event_lines.EventSample:
      return columns_of(store, run, mode, _metrics_of([*parsed.values(), across], mode), is_patient)

    own = of_mode('')
    source = of_mode(across[0]) if across and across[0] else own
    axis = MetricAxis(source, *across[1:]) if across else Axis(own, view.x)
    is_coarse |= own.is_sample or source.is_sample
    if not axis.is_known and not source.is_sample:
      lacking.append(run.name)
    if isinstance(axis, MetricAxis) and not axis.is_ordered:
      unordered.append(run.name)
    for name, (mode, kind, metric) in parsed.items() if axis.is_known else ():
      columns = of_mode(mode) if mode else own
      is_coarse |= columns.is_sample
      points = _Points(columns, axis, kind, metric, view.log)
      num_kept += points.count
      if points.count:
        curves[run.name, name] = points
      if num_kept > _MAX_KEPT:
        points.forget()
    store.trim()  # After each run: the total may be too much.
  first, last = _ends([points.ends for points in curves.values() if points.ends], view)
  found = {key: points.decimated(first, last, view) for key, points in curves.items()}
  unplaced = {key: points.unplaced for key, points in curves.items() if across and points.unplaced}
  return Curves(first, last, found, tuple(lacking), is_coarse, unplaced, tuple(unordered))


def columns_of(
  store: column_store.ColumnStore, run: run_folders.Run, mode: str, metrics: Iterable[str] = (), is_patient: bool = True
) -> event_columns.EventColumns | event_lines.EventSample:
  """The columns of the events of a run's mode ('' for the training).

  Args:
    store: keeps the columns read.
    run: the run.
    mode: as in the name of a curve.
    metrics: names of the metrics whose values are needed.
    is_patient: whether to read a long file first; otherwise they are from a sample until a thread has read it.
  """
  path = _path(run, mode)
  return (None if is_patient else store.sample(path, metrics)) or store.columns(path)


def _metrics_of(parsed: Iterable[tuple[str, int, str] | None], wanted: str) -> list[str]:
  return [each[2] for each in parsed if each is not None and each[0] == wanted]


class _Points:
  """The points of a curve: kept if they are few, and read again if they are many.

  Attributes:
    count: how many there are.
    unplaced: how many of these have no place on the axis.
    ends: the least and the greatest place on the axis; None if no place is on it.
  """

  def __init__(
    self,
    columns: event_columns.EventColumns | event_lines.EventSample,
    axis: 'Axis | MetricAxis',
    kind: int,
    metric: str,
    log: bool,
  ):
    """Looks at all of them once.

    Args:
      columns: of their file.
      axis: gives their places.
      kind: of their events.
      metric: its name.
      log: whether only places above 0 are on the axis.
    """
    self._source = columns, axis, kind, metric
    self._kept: list[tuple[np.ndarray, np.ndarray]] | None = []
    self.count, self.unplaced, self.ends = 0, 0, None
    for x, y in self._read():
      self.count += len(x)
      self.unplaced += int(np.count_nonzero(~np.isfinite(x)))
      if self._kept is not None:
        self._kept.append((x, y))
        if self.count > _MAX_KEPT:
          self.forget()
      on_axis = x[np.isfinite(x) & (x > 0 if log else True)]
      if len(on_axis):
        low, high = self.ends or (math.inf, -math.inf)
        self.ends = min(low, float(on_axis.min())), max(high, float(on_axis.max()))

  def forget(self) -> None:
    """Keeps nothing."""
    self._kept = None

  def decimated(self, first: float, last: float, view: View) -> decimation.Curve:
    """The curve between two places."""
    made = decimation.Decimation(first, last, view.buckets, view.log, self.ends[0] if self.ends else None)
    for x, y in self._read() if self._kept is None else self._kept:
      made.add(x, y)
    return made.curve()

  def _read(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places and values, some at a time."""
    columns, axis, kind, metric = self._source
    with columns.lock:
      lines, values = columns.metric(metric)
      for at in event_columns.standing_places(columns, kind, lines):
        part = lines[at]
        found = axis.places(columns.steps[part], columns.times[part]), values[at]
        columns.release()
        yield found


def evaluations(store: column_store.ColumnStore, run: run_folders.Run) -> list[json_values.JsonObject]:
  """The events 'eval' of a run that stand, in order, with floats; the same as `run_comparison.read_evaluations`."""
  columns = store.columns(_path(run, ''))
  with columns.lock:
    lines = np.flatnonzero((columns.kinds == event_columns.EVAL) & columns.standing)
    return [event_log.with_floats(event) for event in columns.events(lines)]


def _ends(ends: list[tuple[float, float]], view: View) -> tuple[float, float]:
  """The ends of the axis: from the view, or else from the points."""
  first = view.first if view.first is not None else min((low for low, _ in ends), default=0.0)
  last = view.last if view.last is not None else max((high for _, high in ends), default=1.0)
  return first, last if last > first else first + 1.0


def _name(mode: str, event: str, metric: str) -> str:
  """A curve's name, which `parse_name` takes apart."""
  return f'{mode}:{event}/{metric}' if mode else f'{event}/{metric}'


def parse_name(name: str) -> tuple[str, int, str]:
  """The mode ('' for the training), the kind of event and the metric of a curve's name.

  Raises:
    UserError: it is invalid.
  """
  event, slash, metric = name.partition('/')
  mode, _, event = event.rpartition(':')
  if not slash or event not in event_columns.KINDS or not (mode == '' or mode.isidentifier()):
    raise errors.UserError(f'{name}: no curve; expected train/METRIC, eval/METRIC or system:system/METRIC')
  return mode, event_columns.KINDS.index(event), metric


def _modes(run: run_folders.Run) -> list[str]:
  system = [run_files.SYSTEM_EVENT] if os.path.exists(_path(run, run_files.SYSTEM_EVENT)) else []
  return ['', *(mode for mode in run.modes() if 'train' not in mode), *system]


def _path(run: run_folders.Run, mode: str) -> str:
  return run.file_of_mode('events', 'jsonl', mode or 'train')


class Axis:
  """The places of a run's events on an axis: they are reckoned from the events of its training."""

  def __init__(self, columns: event_columns.EventColumns | event_lines.EventSample, x: str):
    """Reads the axis.

    Args:
      columns: of the training.
      x: one of AXES.
    """
    self._x = x
    with columns.lock:
      self._start = _first_finite(columns.times)
      self._resumed: np.ndarray = np.empty(0)
      self._pauses: np.ndarray = np.zeros(1)
      if x == 'active':
        self._resumed, self._pauses = _pauses(columns)
      self._steps, self._examples, self._batches = _batches(columns) if x == 'examples' else ([], [], [])

  @property
  def is_known(self) -> bool:
    """Whether the run records the axis."""
    return bool(len(self._batches)) if self._x == 'examples' else self._x in ('step', 'wall') or self._start > 0

  def places(self, steps: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The places of events with these steps and times."""
    if self._x == 'step':
      return steps.astype(np.float64)
    if self._x == 'wall':
      return times
    if self._x == 'time':
      return times - self._start
    if self._x == 'active':
      return times - self._start - self._pauses[np.searchsorted(self._resumed, times, 'right')]
    part = np.maximum(0, np.searchsorted(self._steps, steps, 'right') - 1)
    return np.asarray(self._examples)[part] + (steps - np.asarray(self._steps)[part]) * np.asarray(self._batches)[part]


def _first_finite(times: np.ndarray) -> float:
  """The first of some times that is known; NaN for none."""
  for begin in range(0, len(times), _CHUNK):
    part = times[begin : begin + _CHUNK]
    known = part[np.isfinite(part)]
    if len(known):
      return float(known[0])
  return math.nan


def _pauses(columns: event_columns.EventColumns | event_lines.EventSample) -> tuple[np.ndarray, np.ndarray]:
  """When the run was resumed, and the seconds of all pauses before: one entry more, for the time before the first."""
  resumed, pauses = [], [0.0]
  for line, event in columns.of_others('event'):
    if event == 'start' and line > 0 and columns.times[line] > columns.times[line - 1]:
      resumed.append(columns.times[line])
      pauses.append(pauses[-1] + columns.times[line] - columns.times[line - 1])
  return np.array(resumed), np.array(pauses)


def _batches(
  columns: event_columns.EventColumns | event_lines.EventSample,
) -> tuple[list[int], list[int], list[int]]:
  """From which steps on a run had which effective batch size, and how many examples it had seen by then."""
  restored = {line: int(columns.steps[line]) for line, event in columns.of_others('event') if event == 'restored'}
  steps: list[int] = []
  batches: list[int] = []
  for line, batch in columns.of_others('effective_batch_size'):
    if not isinstance(batch, int) or batch <= 0:
      continue
    # A start is noted before its checkpoint is restored, and the step is only known then.
    step = restored.get(line + 1, int(columns.steps[line])) if steps else 0
    while steps and steps[-1] >= step:
      steps.pop()
      batches.pop()
    if not batches or batches[-1] != batch:
      steps.append(step)
      batches.append(batch)
  examples = [0] * bool(steps)
  for number in range(1, len(steps)):
    examples.append(examples[-1] + (steps[number] - steps[number - 1]) * batches[number - 1])
  return steps, examples, batches


def as_dict(found: Curves) -> json_values.JsonObject:
  """JSON values: the ends of the axis, and each curve with its run and name."""
  return {
    'first': found.first,
    'last': found.last,
    'lacking': list(found.lacking),
    'is_coarse': found.is_coarse,
    'unordered': list(found.unordered),
    'curves': [
      {'run': run, 'name': name, 'num_unplaced': found.unplaced.get((run, name), 0), **curve.as_dict()}
      for (run, name), curve in found.curves.items()
    ],
  }
