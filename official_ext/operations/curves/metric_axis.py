"""A metric of a run, such as the tokens seen, as the axis of its curves: the place of a step is the value there.

Points are joined by step. A step at which the metric was not logged, or was not finite, has no place.
"""

from collections.abc import Callable

import numpy as np

from official_ext.operations.curves import event_columns
from official_ext.operations.curves import event_sample

_CHUNK = 1 << 16  # Values that are looked at together.


class MetricAxis:
  """The values of a metric by step.

  Attributes:
    is_known: whether the run has the metric.
    is_ordered: whether its values never fall from one step to a later one.
  """

  def __init__(self, columns: event_columns.EventColumns | event_sample.EventSample, kind: int, metric: str):
    """Looks at all values once.

    Args:
      columns: of the file that has the metric.
      kind: of its events, see event_columns.KINDS.
      metric: its name.
    """
    with columns.lock:
      # The arrays of this moment: a file may be begun anew between two calls of `places`.
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
    """Whether a value is less than one before it. Those that are not finite do not count."""
    before = -np.inf
    for begin in range(0, len(self._at), _CHUNK):
      values = values_of(self._at[begin : begin + _CHUNK])
      values = values[np.isfinite(values)]
      if len(values):
        if values[0] < before or (values[1:] < values[:-1]).any():
          return True
        before = values[-1]
    return False
