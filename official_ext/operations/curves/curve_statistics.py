"""Statistics of curves: one number for a curve, and mean and deviation over groups of runs.

The number is the last, best, least, greatest or mean value. Groups are, for instance, the seeds of one configuration.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math

import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves as curves_lib
from official_ext.operations.curves import decimation
from official_ext.operations.curves import event_columns
from official_ext.operations.runs import run_comparison
from official_ext.operations.runs import run_folders

STATISTICS = ('last', 'best', 'min', 'max', 'mean')
MAX_COUNT = 10_000  # Of the values in a mean.


@dataclasses.dataclass(frozen=True)
class CurveValue:
  """A number for a curve.

  Attributes:
    value: not finite if the last value, or a value in a mean, is not. The best, least and greatest are of finite ones.
    step: of the value; of a mean, the last step.
    count: how many values it was taken from.
    is_coarse: whether these are a sample of a long file that is being read.
  """

  value: float
  step: int
  count: int
  is_coarse: bool = False

  def as_dict(self) -> json_values.JsonObject:
    """JSON values."""
    return dataclasses.asdict(self)


def read_value(
  store: column_store.ColumnStore,
  run: run_folders.Run,
  name: str,
  statistic: str = 'last',
  count: int = 10,
  is_patient: bool = True,
) -> CurveValue | None:
  """The number for a curve of a run; None if it has no such value.

  Args:
    store: keeps the columns read.
    run: the run.
    name: of the curve.
    statistic: one of STATISTICS.
    count: how many of the last values a 'mean' is of.
    is_patient: as of curves.read.

  Raises:
    UserError: an argument is invalid, or it is unknown which values of the metric are better.
  """
  if statistic not in STATISTICS:
    raise errors.UserError(f'value: {statistic}: expected one of {", ".join(STATISTICS)}')
  if not 1 <= count <= MAX_COUNT:
    raise errors.UserError(f'count: {count}: must be from 1 to {MAX_COUNT}')
  mode, kind, metric = curves_lib.parse_name(name)
  if statistic == 'best':
    found = run_comparison.direction_of(metric, run_folders.read_params(run) or {})
    if found is None:
      raise errors.UserError(f'{metric}: unknown whether higher or lower values are better; choose min or max')
    statistic = found
  columns = curves_lib.columns_of(store, run, mode, [metric], is_patient)
  with columns.lock:
    lines, values = columns.metric(metric)
    parts = _standing_parts(columns, kind, lines, values)
    if statistic in ('min', 'max'):
      made = _extreme(parts, statistic)
    else:
      made = _tail_mean(parts, count if statistic == 'mean' else 1)
  return made and dataclasses.replace(made, is_coarse=columns.is_sample)


def _standing_parts(
  columns, kind: int, lines: np.ndarray, values: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Steps and values that stand, some at a time."""
  for at in event_columns.standing_places(columns, kind, lines):
    found = columns.steps[lines[at]], values[at]
    columns.release()
    if len(found[0]):
      yield found


def _tail_mean(parts: Iterator[tuple[np.ndarray, np.ndarray]], count: int) -> CurveValue | None:
  """The mean of the last values."""
  tail: collections.deque[float] = collections.deque(maxlen=count)
  step = None
  for steps, values in parts:
    step = int(steps[-1])
    tail.extend(values[-count:].tolist())
  if step is None:
    return None
  is_finite = all(map(math.isfinite, tail))
  # Of the greatest numbers a sum would be infinite.
  mean = math.fsum(each / len(tail) for each in tail) if is_finite else sum(tail) / len(tail)
  return CurveValue(mean, step, len(tail))


def _extreme(parts: Iterator[tuple[np.ndarray, np.ndarray]], mode: str) -> CurveValue | None:
  """The first of the least or the greatest finite values."""
  found, count = None, 0
  for steps, values in parts:
    is_finite = np.isfinite(values)
    steps, values = steps[is_finite], values[is_finite]
    if not len(values):
      continue
    count += len(values)
    at = int(np.argmax(values) if mode == 'max' else np.argmin(values))
    if found is None or (values[at] > found[0] if mode == 'max' else values[at] < found[0]):
      found = float(values[at]), int(steps[at])
  return found and CurveValue(*found, count)


@dataclasses.dataclass(frozen=True)
class Band:
  """The curve of a group.

  Attributes:
    num_runs: how many runs of the group have the curve.
    x: places, ascending.
    mean: at each place, of the runs whose curves reach over it; NaN if one of them is not finite there,
      or was not at its last point.
    deviation: likewise, the sample standard deviation (with count - 1); 0 for one run.
    marks: as of decimation.Curve, of all runs.
    num_marks: likewise.
  """

  num_runs: int
  x: np.ndarray
  mean: np.ndarray
  deviation: np.ndarray
  marks: dict[str, np.ndarray]
  num_marks: dict[str, int]

  def as_dict(self) -> json_values.JsonObject:
    """Strict JSON values: `y` is the mean, `low` and `high` are one deviation from it; None if not finite."""
    with np.errstate(all='ignore'):
      lines = {'y': self.mean, 'low': self.mean - self.deviation, 'high': self.mean + self.deviation}
    return {
      'num_runs': self.num_runs,
      'num_points': len(self.x),
      'x': self.x.tolist(),
      **{name: [each if np.isfinite(each) else None for each in line.tolist()] for name, line in lines.items()},
      'marks': {name: places.tolist() for name, places in self.marks.items()},
      'num_marks': self.num_marks,
    }


def group_curves(
  found: curves_lib.Curves, groups: Mapping[str, str], view: curves_lib.View
) -> dict[tuple[str, str], Band]:
  """The curves of groups: (group, curve's name) -> the curve, in the order in which they are first seen.

  Runs that log at other places are interpolated linearly between their points.

  Args:
    found: the curves of runs.
    groups: run's name -> its group.
    view: the view with which they were read.
  """
  members: dict[tuple[str, str], list[decimation.Curve]] = {}
  for (run, name), curve in found.curves.items():
    members.setdefault((groups[run], name), []).append(curve)
  return {key: _band(each, found.first, found.last, view) for key, each in members.items()}


def _band(members: Sequence[decimation.Curve], first: float, last: float, view: curves_lib.View) -> Band:
  lines = [_points(curve, first, last, view) for curve in members]
  x = _places([line[0] for line in lines], first, last, view)
  values, reached = map(np.array, zip(*(_values_at(*line, x) for line in lines)))
  counts = reached.sum(0)
  with np.errstate(all='ignore'):  # Sums of the greatest numbers, and of NaN.
    mean = np.sum(values, 0, where=reached) / counts
    squares = np.sum((values - mean) ** 2, 0, where=reached)
    deviation = np.where(counts > 1, np.sqrt(squares / (counts - 1)), 0.0)
  keep = counts > 0
  names = dict.fromkeys(name for curve in members for name in curve.marks)
  marks = {name: np.sort(np.concatenate([curve.marks.get(name, []) for curve in members])) for name in names}
  num_marks = {name: sum(curve.num_marks.get(name, 0) for curve in members) for name in marks}
  return Band(len(members), x[keep], mean[keep], deviation[keep], marks, num_marks)


def _points(curve: decimation.Curve, first: float, last: float, view: curves_lib.View) -> tuple[np.ndarray, np.ndarray]:
  """Places and values of a curve: the means of both in each bucket; NaN in buckets without a finite point."""
  if not curve.is_decimated:
    return curve.x, curve.y
  bucket = lambda x: decimation.bucket_of(x, first, last, view.buckets, view.log)
  gaps = np.concatenate([np.empty(0), *curve.marks.values()])
  gaps = np.sort(gaps[~np.isin(bucket(gaps), bucket(curve.x))]) if len(gaps) else gaps
  x, y = np.append(curve.mean_x, gaps), np.append(curve.mean, np.full(len(gaps), np.nan))
  order = np.argsort(x, kind='stable')
  return x[order], y[order]


def _places(found: Sequence[np.ndarray], first: float, last: float, view: curves_lib.View) -> np.ndarray:
  """The places of all curves; if they are more than the buckets, as many places as buckets at equal distances."""
  x = np.unique(np.concatenate(found))
  if len(x) <= max(view.buckets, *map(len, found)):
    return x
  if not view.log:
    return np.linspace(first, last, view.buckets)
  return np.geomspace(first if first > 0 else x[0], last, view.buckets)


def _values_at(x: np.ndarray, y: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The values of a curve at some places, and whether it reaches over them; one that ends in NaN stays so."""
  if not len(x):
    return np.zeros(len(places)), np.zeros(len(places), bool)
  values = np.interp(places, x, y)
  nearest = np.minimum(np.searchsorted(x, places), len(x) - 1)
  values = np.where(x[nearest] == places, y[nearest], values)  # Next to NaN, interpolation would lose a point.
  return values, (places >= x[0]) & ((places <= x[-1]) | np.isnan(y[-1]))
