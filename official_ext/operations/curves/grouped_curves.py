"""Mean and deviation of curves over groups of runs, such as the seeds of one configuration. No TensorFlow."""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from official_ext.base import json_types
from official_ext.operations.curves import curves as curves_lib
from official_ext.operations.curves import decimation


@dataclasses.dataclass(frozen=True)
class Band:
  """The curve of a group.

  Attributes:
    num_runs: how many runs of the group have the curve.
    x: places, ascending.
    mean: at each place, of the runs whose curves reach over it; NaN if one of them is not finite there,
      or was not at its last point.
    deviation: likewise, the sample standard deviation (with count - 1); 0 where there is one run.
    marks: as of decimation.Curve, those of all runs.
    num_marks: likewise.
  """

  num_runs: int
  x: np.ndarray
  mean: np.ndarray
  deviation: np.ndarray
  marks: dict[str, np.ndarray]
  num_marks: dict[str, int]

  def as_dict(self) -> json_types.JsonObject:
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


def group(found: curves_lib.Curves, groups: Mapping[str, str], view: curves_lib.View) -> dict[tuple[str, str], Band]:
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
  values, reached = map(np.array, zip(*(_at(*line, x) for line in lines)))
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
  """Places and values of a curve: the mean of each bucket; NaN in buckets without a finite point."""
  if not curve.is_decimated:
    return curve.x, curve.y
  bucket = lambda x: decimation.bucket_of(x, first, last, view.buckets, view.log)
  gaps = np.concatenate([np.empty(0), *curve.marks.values()])
  gaps = np.sort(gaps[~np.isin(bucket(gaps), bucket(curve.x))]) if len(gaps) else gaps
  x, y = np.append(curve.x, gaps), np.append(curve.mean, np.full(len(gaps), np.nan))
  order = np.argsort(x, kind='stable')
  return x[order], y[order]


def _places(found: Sequence[np.ndarray], first: float, last: float, view: curves_lib.View) -> np.ndarray:
  """Those of all curves, or else, if they are more than the buckets, as many at equal distances."""
  x = np.unique(np.concatenate(found))
  if len(x) <= max(view.buckets, *map(len, found)):
    return x
  if not view.log:
    return np.linspace(first, last, view.buckets)
  return np.geomspace(first if first > 0 else x[0], last, view.buckets)


def _at(x: np.ndarray, y: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The values of a curve at some places, and whether it reaches over them; one that ends in NaN stays so."""
  if not len(x):
    return np.zeros(len(places)), np.zeros(len(places), bool)
  values = np.interp(places, x, y)
  nearest = np.minimum(np.searchsorted(x, places), len(x) - 1)
  values = np.where(x[nearest] == places, y[nearest], values)  # Beside NaN interpolation would lose a point.
  return values, (places >= x[0]) & ((places <= x[-1]) | np.isnan(y[-1]))
