"""One number for a curve: its last, best, least, greatest or mean value. No TensorFlow."""

import collections
from collections.abc import Iterator
import dataclasses
import math

import numpy as np

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves
from official_ext.operations.curves import event_columns
from official_ext.operations.runs import comparing
from official_ext.operations.runs import params as params_lib
from official_ext.operations.runs import run_folder

STATISTICS = ('last', 'best', 'min', 'max', 'mean')
MAX_COUNT = 10_000  # Of the values in a mean.


@dataclasses.dataclass(frozen=True)
class Value:
  """A number for a curve.

  Attributes:
    value: not finite if the last value is, or one of those in a mean. The best, least and greatest are of finite ones.
    step: of the value; of a mean that of the last one.
    count: how many values it was taken from.
    is_coarse: whether these are a sample of a long file that is being read.
  """

  value: float
  step: int
  count: int
  is_coarse: bool = False

  def as_dict(self) -> json_types.JsonObject:
    """JSON values."""
    return dataclasses.asdict(self)


def read(
  store: column_store.ColumnStore,
  run: run_folder.Run,
  name: str,
  statistic: str = 'last',
  count: int = 10,
  is_patient: bool = True,
) -> Value | None:
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
  mode, kind, metric = curves.parse_name(name)
  if statistic == 'best':
    found = comparing.direction_of(metric, params_lib.read(run) or {})
    if found is None:
      raise errors.UserError(f'{metric}: unknown whether higher or lower values are better; choose min or max')
    statistic = found
  columns = curves.columns_of(store, run, mode, [metric], is_patient)
  with columns.lock:
    lines, values = columns.metric(metric)
    parts = _standing(columns, kind, lines, values)
    if statistic in ('min', 'max'):
      made = _end(parts, statistic)
    else:
      made = _tail(parts, count if statistic == 'mean' else 1)
  return made and dataclasses.replace(made, is_coarse=columns.is_sample)


def _standing(columns, kind: int, lines: np.ndarray, values: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Steps and values that stand, some at a time."""
  for at in event_columns.standing_places(columns, kind, lines):
    found = columns.steps[lines[at]], values[at]
    columns.release()
    if len(found[0]):
      yield found


def _tail(parts: Iterator[tuple[np.ndarray, np.ndarray]], count: int) -> Value | None:
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
  return Value(mean, step, len(tail))


def _end(parts: Iterator[tuple[np.ndarray, np.ndarray]], mode: str) -> Value | None:
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
  return found and Value(*found, count)
