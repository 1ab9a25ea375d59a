"""The curves of runs: a metric over steps, time or examples, as many points as a screen shows. No TensorFlow.

A curve is named `train/NAME` or `eval/NAME`, by the event and the metric; `MODE:eval/NAME` is from the file of another
mode, such as an evaluation beside the training: `continuous_eval:eval/accuracy`. Lines that a restore or a rollback has
superseded are not part of a curve.
"""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.run_folder import event_names
from official_ext.operations.curves import column_store
from official_ext.operations.curves import decimation
from official_ext.operations.curves import event_columns
from official_ext.operations.runs import last_events
from official_ext.operations.runs import run_folder

_MAX_KEPT = 1_000_000  # Points of one request in memory; more are made twice.

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
    x: one of AXES.
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
    if self.x not in AXES:
      raise errors.UserError(f'x: {self.x}: no such axis; there are {", ".join(AXES)}')
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
  """

  first: float
  last: float
  curves: dict[tuple[str, str], decimation.Curve]
  lacking: tuple[str, ...] = ()


def names(store: column_store.ColumnStore, run: run_folder.Run) -> list[str]:
  """The names of a run's curves: metrics before values of its progress, training before evaluation."""
  found: list[str] = []
  for mode in _modes(run):
    columns = store.columns(_path(run, mode))
    for kind, event in enumerate(event_columns.KINDS):
      found += [f'{mode}:{event}/{name}' if mode else f'{event}/{name}' for name in columns.names(kind)]
  return sorted(found, key=lambda name: name.partition('/')[2] in event_names.PROGRESS)


def read(
  store: column_store.ColumnStore, runs: Sequence[run_folder.Run], wanted: Sequence[str], view: View = View()
) -> Curves:
  """Curves of runs, on one axis.

  Args:
    store: keeps the columns read.
    runs: the runs.
    wanted: the names of curves; each is read of each run that has it.
    view: the view of them.

  Raises:
    UserError: a name is invalid.
  """
  points: dict[tuple[str, str], tuple[np.ndarray, np.ndarray] | None] = {}
  ends: list[tuple[float, float]] = []
  axes = {run: Axis(store.columns(_path(run, '')), view.x) for run in runs}
  num_kept = 0
  for run in runs:
    for name in wanted if axes[run].is_known else ():
      x, y = _points(store, run, name, axes[run])
      if len(x):
        ends += _ends_of(x, view)
        num_kept += len(x)
        points[run.name, name] = (x, y) if num_kept <= _MAX_KEPT else None
    store.trim()  # After each run: the total may be too much.
  first, last = _ends(ends, view)
  by_name = {run.name: run for run in runs}
  found = {}
  for (run_name, name), kept in points.items():
    run = by_name[run_name]
    x, y = kept or _points(store, run, name, axes[run])
    found[run_name, name] = decimation.decimate(x, y, first, last, view.buckets, view.log)
  return Curves(first, last, found, tuple(run.name for run in runs if not axes[run].is_known))


def _points(
  store: column_store.ColumnStore, run: run_folder.Run, name: str, axis: 'Axis'
) -> tuple[np.ndarray, np.ndarray]:
  """The places and the values of a curve."""
  mode, kind, metric = parse_name(name)
  columns = store.columns(_path(run, mode))
  with columns.lock:
    lines, values = columns.metric(metric)
    keep = (columns.kinds[lines] == kind) & columns.standing[lines]
    lines = lines[keep]
    return axis.places(columns.steps[lines], columns.times[lines]), values[keep]


def evaluations(store: column_store.ColumnStore, run: run_folder.Run) -> list[json_types.JsonObject]:
  """The events 'eval' of a run that stand, in order, with floats; the same as `comparing.read_evaluations`."""
  columns = store.columns(_path(run, ''))
  with columns.lock:
    lines = np.flatnonzero((columns.kinds == event_columns.EVAL) & columns.standing)
    return [last_events.with_floats(event) for event in columns.events(lines)]


def _ends_of(x: np.ndarray, view: View) -> list[tuple[float, float]]:
  """The least and the greatest of the places that are on the axis."""
  x = x[np.isfinite(x) & (x > 0 if view.log else True)]
  return [(float(x.min()), float(x.max()))] if len(x) else []


def _ends(ends: list[tuple[float, float]], view: View) -> tuple[float, float]:
  """The ends of the axis: those of the view, or else of the points."""
  first = view.first if view.first is not None else min((low for low, _ in ends), default=0.0)
  last = view.last if view.last is not None else max((high for _, high in ends), default=1.0)
  return first, last if last > first else first + 1.0


def parse_name(name: str) -> tuple[str, int, str]:
  """The mode ('' for the training), the kind of event and the metric of a curve's name.

  Raises:
    UserError: it is invalid.
  """
  event, slash, metric = name.partition('/')
  mode, _, event = event.rpartition(':')
  if not slash or not metric or event not in event_columns.KINDS or not (mode == '' or mode.isidentifier()):
    raise errors.UserError(f'{name}: no curve; expected train/METRIC or eval/METRIC')
  return mode, event_columns.KINDS.index(event), metric


def _modes(run: run_folder.Run) -> list[str]:
  return ['', *(mode for mode in run.modes() if 'train' not in mode)]


def _path(run: run_folder.Run, mode: str) -> str:
  return run.file_of_mode('events', 'jsonl', mode or 'train')


class Axis:
  """The places of a run's events on an axis: they are reckoned from the events of its training."""

  def __init__(self, columns: event_columns.EventColumns, x: str):
    """Reads the axis.

    Args:
      columns: of the training.
      x: one of AXES.
    """
    self._x = x
    with columns.lock:
      times = columns.times[np.isfinite(columns.times)]
      self._start = float(times[0]) if len(times) else math.nan
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


def _pauses(columns: event_columns.EventColumns) -> tuple[np.ndarray, np.ndarray]:
  """When the run was resumed, and the seconds of all pauses before: one more, as there are none before the first."""
  resumed, pauses = [], [0.0]
  for line, event in columns.of_others('event'):
    if event == 'start' and line > 0 and columns.times[line] > columns.times[line - 1]:
      resumed.append(columns.times[line])
      pauses.append(pauses[-1] + columns.times[line] - columns.times[line - 1])
  return np.array(resumed), np.array(pauses)


def _batches(columns: event_columns.EventColumns) -> tuple[list[int], list[int], list[int]]:
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


def as_dict(found: Curves) -> json_types.JsonObject:
  """JSON values: the ends of the axis, and each curve with its run and name."""
  return {
    'first': found.first,
    'last': found.last,
    'lacking': list(found.lacking),
    'curves': [{'run': run, 'name': name, **curve.as_dict()} for (run, name), curve in found.curves.items()],
  }
