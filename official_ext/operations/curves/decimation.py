"""Curves of any length in as many points as a screen has: the least and the greatest of each column of pixels.

Visible features stay: a spike of one step is the greatest of its bucket, and numbers that are not finite are separate
marks, at their places, and never left out.
"""

import dataclasses

import numpy as np

from official_ext.base import json_types

MAX_BUCKETS = 4000


@dataclasses.dataclass(frozen=True)
class Curve:
  """A curve for a screen.

  Attributes:
    num_points: how many points of the curve are in the range, those that are not finite too.
    x: ascending. Of buckets: that of the last finite point in each that has one.
    low, high, mean: of the finite points of each bucket; empty if `y` has the points themselves.
    rises: whether the least comes before the greatest, for each bucket.
    y: the points themselves, if they are no more than the buckets; NaN if it is not finite.
    marks: 'NaN', 'Infinity', '-Infinity' -> places of such points, one a bucket.
    num_marks: how many there are of each.
  """

  num_points: int
  x: np.ndarray
  low: np.ndarray
  high: np.ndarray
  mean: np.ndarray
  rises: np.ndarray
  y: np.ndarray
  marks: dict[str, np.ndarray]
  num_marks: dict[str, int]

  @property
  def is_decimated(self) -> bool:
    """Whether it has buckets in place of points."""
    return bool(len(self.low))

  def as_dict(self) -> json_types.JsonObject:
    """Strict JSON values; None for a point that is not finite, which has a mark."""
    values: json_types.JsonObject = {
      'num_points': self.num_points,
      'x': self.x.tolist(),
      'marks': {name: places.tolist() for name, places in self.marks.items()},
      'num_marks': self.num_marks,
    }
    if self.is_decimated:
      rises = ''.join(np.where(self.rises, '1', '0'))
      return {
        **values,
        'low': self.low.tolist(),
        'high': self.high.tolist(),
        'mean': self.mean.tolist(),
        'rises': rises,
      }
    return {**values, 'y': [value if np.isfinite(value) else None for value in self.y.tolist()]}


def decimate(x: np.ndarray, y: np.ndarray, first: float, last: float, buckets: int, log: bool = False) -> Curve:
  """A curve between two places, in at most as many buckets. The nearest points outside are part of it.

  Args:
    x: the places; points whose place is not finite, or not on the axis, are left out.
    y: the values.
    first: the left end of the axis.
    last: the right end.
    buckets: how many equal parts the axis has.
    log: whether the axis is logarithmic: the parts are equal there, and only places above 0 are on it.
  """
  buckets = int(min(max(buckets, 1), MAX_BUCKETS))
  good = np.isfinite(x) & (x > 0 if log else True)
  if not good.all():
    x, y = x[good], y[good]
  if len(x) and (x[1:] < x[:-1]).any():
    order = np.argsort(x, kind='stable')
    x, y = x[order], y[order]
  begin, end = np.searchsorted(x, first, 'left'), np.searchsorted(x, last, 'right')
  inside = int(end - begin)
  x, y = x[max(0, begin - 1) : end + 1], y[max(0, begin - 1) : end + 1]
  finite = np.isfinite(y)
  index = bucket_of(x, first, last, buckets, log)
  marks, num_marks = _marks(x, y, index)
  nothing = np.empty(0)
  if len(x) <= buckets:
    return Curve(inside, x, nothing, nothing, nothing, nothing, np.where(finite, y, np.nan), marks, num_marks)
  if not finite.all():
    x, y, index = x[finite], y[finite], index[finite]
  if not len(x):
    return Curve(inside, nothing, nothing, nothing, nothing, nothing, nothing, marks, num_marks)
  starts = np.flatnonzero(np.diff(index, prepend=index[0] - 1))
  ends = np.append(starts[1:], len(x))
  low, high = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
  counts = ends - starts
  places = np.arange(len(x))
  first_low = np.minimum.reduceat(np.where(y == np.repeat(low, counts), places, len(x)), starts)
  first_high = np.minimum.reduceat(np.where(y == np.repeat(high, counts), places, len(x)), starts)
  with np.errstate(over='ignore'):
    mean = np.add.reduceat(y / np.repeat(counts, counts), starts)  # Of the greatest numbers a sum would be infinite.
  mean = np.clip(mean, low, high)
  return Curve(inside, x[ends - 1], low, high, mean, first_low <= first_high, nothing, marks, num_marks)


def bucket_of(x: np.ndarray, first: float, last: float, buckets: int, log: bool = False) -> np.ndarray:
  """The bucket of each place, -1 before the first and `buckets` after the last."""
  if log:
    x = np.log10(x)
    # An axis that begins at 0 begins with the first place on it.
    first = np.log10(first) if first > 0 else (x[0] if len(x) else 0.0)
    last = np.log10(last) if last > 0 else first
  width = (last - first) or 1.0
  found = np.clip(np.floor((x - first) / width * buckets), -1, buckets).astype(np.int64)
  found[(found == buckets) & (x <= last)] = buckets - 1  # The last place is in the last bucket.
  return found


def _marks(x: np.ndarray, y: np.ndarray, index: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, int]]:
  marks, counts = {}, {}
  for name, there in (('NaN', np.isnan(y)), ('Infinity', y == np.inf), ('-Infinity', y == -np.inf)):
    places = np.flatnonzero(there)
    if len(places):
      _, firsts = np.unique(index[places], return_index=True)
      marks[name], counts[name] = x[places[firsts]], len(places)
  return marks, counts
