"""Curves of any length in as many points as a screen has: the least and the greatest of each column of pixels.

Visible features stay: a spike of one step is the greatest of its bucket. Numbers that are not finite are separate
marks, at their places, and never left out.
"""

import dataclasses

import numpy as np

from official_ext.base import json_values

MAX_BUCKETS = 4000


@dataclasses.dataclass(frozen=True)
class Curve:
  """A curve for a screen.

  Attributes:
    num_points: how many points of the curve are in the range, also ones that are not finite.
    x: ascending. Of buckets: the place of the last finite point in each that has one.
    low, high, mean: of the finite points of each bucket; empty if `y` has the points themselves.
    mean_x: the mean place of these points.
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
  mean_x: np.ndarray
  rises: np.ndarray
  y: np.ndarray
  marks: dict[str, np.ndarray]
  num_marks: dict[str, int]

  @property
  def is_decimated(self) -> bool:
    """Whether it has buckets in place of points."""
    return bool(len(self.low))

  def as_dict(self) -> json_values.JsonObject:
    """Strict JSON values; None for a point that is not finite, which has a mark."""
    values: json_values.JsonObject = {
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


class Decimation:
  """A curve between two places that is made of points some at a time, with the memory of its buckets.

  The nearest points outside are part of it. Points whose place is not finite, or not on the axis, are left out.
  """

  def __init__(self, first: float, last: float, buckets: int, log: bool = False, least: float | None = None):
    """Has no points yet.

    Args:
      first: the left end of the axis.
      last: the right end.
      buckets: how many equal parts the axis has at most.
      log: whether the axis is logarithmic: the parts are equal there, and only places above 0 are on it.
      least: the least place of all points; a logarithmic axis that begins at 0 begins there.
    """
    self._buckets = int(min(max(buckets, 1), MAX_BUCKETS))
    self._first, self._last, self._log = first, last, log
    self._origin = least if log and first <= 0 and least is not None else first
    size = self._buckets + 2  # One for the point before the axis, and one for the point after it.
    self._low, self._high = np.full(size, np.inf), np.full(size, -np.inf)
    self._low_at, self._high_at = np.full((size, 2), np.inf), np.full((size, 2), np.inf)  # Place, and number.
    self._mean, self._counts, self._x = np.zeros(size), np.zeros(size, np.int64), np.full(size, -np.inf)
    self._mean_x = np.zeros(size)
    self._marks: dict[str, np.ndarray] = {}
    self._num_marks: dict[str, int] = {}
    self._few: list[tuple[np.ndarray, np.ndarray]] | None = []  # All points, while they are no more than the buckets.
    self._num_few = self._num_seen = self._inside = 0
    self._before: tuple[np.ndarray, np.ndarray] | None = None
    self._after: tuple[np.ndarray, np.ndarray] | None = None

  def add(self, x: np.ndarray, y: np.ndarray) -> None:
    """Adds points: places and values."""
    good = np.isfinite(x) & (x > 0 if self._log else True)
    if not good.all():
      x, y = x[good], y[good]
    if len(x) and (x[1:] < x[:-1]).any():
      order = np.argsort(x, kind='stable')
      x, y = x[order], y[order]
    begin, end = int(np.searchsorted(x, self._first, 'left')), int(np.searchsorted(x, self._last, 'right'))
    if begin > 0 and (self._before is None or x[begin - 1] >= self._before[0][0]):
      self._before = x[begin - 1 : begin], y[begin - 1 : begin]
    if end < len(x) and (self._after is None or x[end] < self._after[0][0]):
      self._after = x[end : end + 1], y[end : end + 1]
    if end > begin:
      self._inside += end - begin
      self._add(x[begin:end], y[begin:end])

  def curve(self) -> Curve:
    """The curve of all points that were added. Nothing can be added after it."""
    for outside in (self._before, self._after):
      if outside is not None:
        self._add(*outside)
    nothing = np.empty(0)
    marks = {name: places[np.isfinite(places)] for name, places in self._marks.items()}
    if self._few is not None:
      x = np.concatenate([nothing, *(part[0] for part in self._few)])
      y = np.concatenate([nothing, *(part[1] for part in self._few)])
      order = np.argsort(x, kind='stable')
      y = np.where(np.isfinite(y), y, np.nan)[order]
      return Curve(self._inside, x[order], nothing, nothing, nothing, nothing, nothing, y, marks, self._num_marks)
    used = np.flatnonzero(self._counts)
    low, high = self._low[used], self._high[used]
    (low_x, low_number), (high_x, high_number) = self._low_at[used].T, self._high_at[used].T
    rises = (low_x < high_x) | ((low_x == high_x) & (low_number <= high_number))
    mean = np.clip(self._mean[used], low, high)
    mean_x = np.minimum(self._mean_x[used], self._x[used])
    return Curve(self._inside, self._x[used], low, high, mean, mean_x, rises, nothing, marks, self._num_marks)

  def _add(self, x: np.ndarray, y: np.ndarray) -> None:
    """Adds points in order, one at least."""
    self._num_few += len(x)
    if self._few is not None:
      self._few = [*self._few, (x, y)] if self._num_few <= self._buckets else None
    index = bucket_of(x, self._origin, self._last, self._buckets, self._log) + 1
    self._note_marks(x, y, index)
    finite = np.isfinite(y)
    if not finite.all():
      x, y, index = x[finite], y[finite], index[finite]
    if len(x):
      self._merge(x, y, index)

  def _merge(self, x: np.ndarray, y: np.ndarray, index: np.ndarray) -> None:
    """Adds finite points to their buckets."""
    starts = np.flatnonzero(np.diff(index, prepend=index[0] - 1))
    ends, at = np.append(starts[1:], len(x)), index[starts]
    counts, places = ends - starts, np.arange(len(x))
    low, high = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
    for values, found, where, is_better in (
      (low, self._low, self._low_at, np.less),
      (high, self._high, self._high_at, np.greater),
    ):
      first = np.minimum.reduceat(np.where(y == np.repeat(values, counts), places, len(x)), starts)
      own = x[first]
      new = is_better(values, found[at]) | ((values == found[at]) & (own < where[at, 0]))
      found[at[new]] = values[new]
      where[at[new], 0], where[at[new], 1] = own[new], first[new] + self._num_seen
    with np.errstate(over='ignore'):
      mean = np.add.reduceat(y / np.repeat(counts, counts), starts)  # Of the greatest numbers a sum would be infinite.
    mean = np.clip(mean, low, high)
    share = counts / (self._counts[at] + counts)
    self._mean[at] = self._mean[at] * (1 - share) + mean * share
    self._mean_x[at] = self._mean_x[at] * (1 - share) + np.add.reduceat(x / np.repeat(counts, counts), starts) * share
    self._counts[at] += counts
    self._x[at] = np.maximum(self._x[at], x[ends - 1])
    self._num_seen += len(x)

  def _note_marks(self, x: np.ndarray, y: np.ndarray, index: np.ndarray) -> None:
    """Notes the first point of each bucket that is not finite."""
    for name, there in (('NaN', np.isnan(y)), ('Infinity', y == np.inf), ('-Infinity', y == -np.inf)):
      places = np.flatnonzero(there)
      if len(places):
        first = self._marks.setdefault(name, np.full(self._buckets + 2, np.inf))
        np.minimum.at(first, index[places], x[places])
        self._num_marks[name] = self._num_marks.get(name, 0) + len(places)


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
