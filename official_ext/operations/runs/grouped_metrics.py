"""Mean and deviation of metrics over groups of runs, such as the seeds of one configuration."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import re
import statistics

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.run_folder import better
from official_ext.operations.runs import selection
from official_ext.operations.runs import summaries

_SEED = re.compile(r'(^|[._])seed$')
_ENDS = (':min', ':max')


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric of a table.

  Attributes:
    name: its name.
    mode: 'max' or 'min': which values are better; '' if that is not known, and none is marked as the best.
  """

  name: str
  mode: str


@dataclasses.dataclass(frozen=True)
class Spread:
  """The values of a metric in a group.

  Attributes:
    count: the number of runs that have the metric.
    mean: their mean.
    deviation: their sample standard deviation (with count - 1); None for one run.
    is_best: whether it is one of several groups, and no other has a better mean.
  """

  count: int
  mean: float
  deviation: float | None
  is_best: bool = False


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs that agree in some fields.

  Attributes:
    values: the value of each field.
    names: of the runs.
    spreads: of each metric; None if no run of the group has it.
  """

  values: tuple[json_types.Json, ...]
  names: tuple[str, ...]
  spreads: tuple[Spread | None, ...]


def parse_metric(text: str) -> Metric:
  """The metric of `NAME`, `NAME:min` or `NAME:max`; without an end, words in the name imply which values are better."""
  for end in _ENDS:
    if text.endswith(end):
      return Metric(text.removesuffix(end), end[1:])
  try:
    return Metric(text, better.mode_of(text))
  except ValueError:
    return Metric(text, '')


def fields_that_differ(params: Mapping[str, json_types.JsonMapping]) -> list[str]:
  """The fields in which configurations differ, without seeds. Of fields with equal values, as a short name and its path
  have, the first.

  Args:
    params: name of a run -> name of a field -> value.
  """
  names = dict.fromkeys(name for values in params.values() for name in values if not _SEED.search(name))
  found: dict[tuple[str, ...], str] = {}
  for name in names:
    found.setdefault(tuple(repr(values.get(name)) for values in params.values()), name)
  return [name for column, name in found.items() if len(set(column)) > 1]


def group(
  runs: Sequence[summaries.RunSummary], by: Sequence[str], metrics: Sequence[Metric], params: selection.Params
) -> list[Group]:
  """Groups runs, in the order in which the groups are first seen.

  Args:
    runs: the runs.
    by: fields in which the runs of a group agree: 'tag' (all tags of a run), 'folder' (which is that of a sweep for its
      points), or a name as `selection.values_of` takes it.
    metrics: those to summarize: of the last evaluations, or else, if no run has evaluated it, of the last training
      loops.
    params: the configurations.

  Raises:
    UserError: no run has a field or a metric.
  """
  columns = [_column(name, runs, params) for name in by]
  for metric in metrics:
    if runs and all(run.metric(metric.name) is None for run in runs):
      raise errors.UserError(
        f'--metric={metric.name}: no run has it; `official-ext runs show` lists the metrics of one'
      )
  values = [_values(runs, metric.name) for metric in metrics]
  groups: dict[str, list[summaries.RunSummary]] = {}
  for run in runs:
    groups.setdefault(repr([column[run.name] for column in columns]), []).append(run)
  rows = [[_spread([found.get(run.name) for run in members]) for found in values] for members in groups.values()]
  best = [_best([row[number] for row in rows], metric.mode) for number, metric in enumerate(metrics)]
  return [
    Group(
      tuple(column[members[0].name] for column in columns),
      tuple(run.name for run in members),
      tuple(each and dataclasses.replace(each, is_best=each.mean == mean) for each, mean in zip(row, best)),
    )
    for members, row in zip(groups.values(), rows)
  ]


def _column(name: str, runs: Sequence[summaries.RunSummary], params: selection.Params) -> dict[str, json_types.Json]:
  """The value of a field in each run."""
  if name == 'tag':
    return {run.name: ','.join(sorted(run.tags)) for run in runs}
  if name == 'folder':
    return {run.name: run.name.rpartition('/')[0] for run in runs}
  found = selection.values_of(name, runs, params, f'--group={name}')
  ambiguous = next((run for run in runs if len(found[run.name]) > 1), None)
  if ambiguous is not None:
    raise errors.UserError(
      f'--group={name}: {ambiguous.name} has several fields of that name; name one by its path, see '
      '`official-ext runs config`'
    )
  return {run.name: values[0] if (values := found[run.name]) else None for run in runs}


def _values(runs: Sequence[summaries.RunSummary], metric: str) -> dict[str, float]:
  """Name of a run -> its value. Values of evaluations and of training are not mixed."""
  evaluated = {run.name: run.evaluation_metric(metric) for run in runs}
  if all(value is None for value in evaluated.values()):
    evaluated = {run.name: run.train.get(metric) for run in runs}
  return {name: json_types.as_float(value) for name, value in evaluated.items() if value is not None}


def _spread(found: Sequence[float | None]) -> Spread | None:
  values = [value for value in found if value is not None]
  if not values:
    return None
  if not all(map(math.isfinite, values)):  # A run that diverged is part of the result: the mean is not finite.
    return Spread(len(values), sum(values) / len(values), None)
  try:
    return Spread(len(values), statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)
  except OverflowError:  # Of the sum.
    return Spread(len(values), math.inf, None)


def _best(spreads: Sequence[Spread | None], mode: str) -> float | None:
  means = [each.mean for each in spreads if each is not None and not math.isnan(each.mean)]
  if len(spreads) < 2 or not means or not mode:
    return None
  return max(means) if mode == 'max' else min(means)
