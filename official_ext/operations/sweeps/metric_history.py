"""The values of a metric that a run has reported, read from its events.jsonl. No TensorFlow."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import math
import os
from typing import Any

from official_ext.base import json_types
from official_ext.base.files import regular_files
from official_ext.base.run_folder import standing_events
from official_ext.operations.runs import last_events
from official_ext.operations.runs import run_folder

_PREFIX = 'validation_'  # The evaluation's metric of the training's name.


@dataclasses.dataclass(frozen=True)
class History:
  """The values of a metric in a run.

  Attributes:
    steps: at which there is one, ascending: of evaluations, or of training loops if no evaluation has the metric.
    values: the metric's, one for each step; they may be NaN or infinite.
    names: the metrics that the run has reported, if this one is not among them.
    last_step: of its last event; None if there is none.
  """

  steps: tuple[int, ...] = ()
  values: tuple[float, ...] = ()
  names: tuple[str, ...] = ()
  last_step: int | None = None

  def finite(self) -> tuple[float, ...]:
    """The values that are numbers."""
    return tuple(value for value in self.values if math.isfinite(value))


class Histories:
  """Histories of runs; one whose file has not changed is not read again."""

  def __init__(self) -> None:
    self._known: dict[tuple[str, str], tuple[Any, History]] = {}

  def read(self, folder: str, metric: str) -> History:
    """The history of a metric in the run in a folder; an empty one if there are no events."""
    path = os.path.join(folder, run_folder.EVENTS)
    try:
      found = os.stat(path)
    except OSError:
      return History()
    key = found.st_size, found.st_mtime_ns, found.st_ino
    known = self._known.get((folder, metric))
    if known is None or known[0] != key:
      known = self._known[folder, metric] = key, read(path, metric)
    return known[1]


def read(path: str, metric: str) -> History:
  """The history of a metric in a file of events; '' for none, of which only the last step is reported."""
  last = last_events.read(path)
  last_step = last.last['step'] if last.last else None
  if not metric:
    return History(last_step=last_step)
  for kind in ('eval', 'train'):
    told = [
      (event['step'], value)
      for event in standing_events.standing(_lines(path, kind))
      if event['event'] == kind and (value := _value(event, metric)) is not None
    ]
    if told:
      return History(tuple(step for step, _ in told), tuple(value for _, value in told), last_step=last_step)
  names = {**last_events.metrics_of(last.evaluation), **last_events.metrics_of(last.train)}
  return History(names=tuple(names), last_step=last_step)


def _value(event: Mapping[str, object], metric: str) -> float | None:
  values = last_events.metrics_of(last_events.with_floats(event))
  if event['event'] == 'eval' and metric not in values:
    metric = metric.removeprefix(_PREFIX)
  return None if metric not in values else float(values[metric])


def _lines(path: str, kind: str) -> Iterator[json_types.JsonObject]:
  marks = tuple(b'"event": "%s"' % name.encode() for name in (kind, *standing_events.GO_BACK))
  try:
    with regular_files.open_to_read(path) as file:
      yield from _parsed(regular_files.lines(file, standing_events.MAX_LINE), marks)
  except OSError:
    return


def _parsed(lines: Iterable[bytes], marks: Sequence[bytes]) -> Iterator[json_types.JsonObject]:
  for line in lines:
    if any(mark in line for mark in marks):
      event = standing_events.parse(line)
      if event is not None:
        yield event
