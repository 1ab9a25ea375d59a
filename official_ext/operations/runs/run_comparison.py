"""Runs side by side: differing fields, metrics, environments, and means over groups of runs.

Groups are runs that differ only in some fields, such as the seeds of one configuration.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import math
import re
import statistics

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.run_folder import metric_direction
from official_ext.base.run_folder import run_files
from official_ext.operations.runs import event_log
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.runs import selection
from official_ext.operations.runs import statuses as statuses_lib

UNSET = '-'  # A value that a run lacks.
_OF_RECORD = ('experiment', 'mode', 'seed', 'devices', 'git_commit', 'step_shape')


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Runs side by side; each row has a value for each run, None or UNSET if it has none.

  Attributes:
    names: the runs'.
    statuses: their statuses.
    steps: their last steps.
    params: dotted path -> values, of the fields in which the runs differ.
    last: metric -> values of the last evaluations, and of the last training loops as `training/...` if both have it.
    best: metric -> (value, step) of the best evaluations, if its name or the configuration defines which are better.
    origins: other differences: experiment, mode, seed, devices, git_commit, and versions as `versions.tensorflow`.
  """

  names: tuple[str, ...]
  statuses: tuple[str, ...]
  steps: tuple[int | None, ...]
  params: Mapping[str, tuple[json_values.Json, ...]]
  last: Mapping[str, tuple[float | None, ...]]
  best: Mapping[str, tuple[tuple[float, int] | None, ...]]
  origins: Mapping[str, tuple[json_values.Json, ...]]

  def as_dict(self) -> json_values.JsonObject:
    """JSON values; a number that is not finite is a string, as in events.jsonl."""
    return json_values.as_strict(dataclasses.asdict(self))


def compare_runs(
  runs: Sequence[run_folders.Run],
  evaluations_of: Callable[[run_folders.Run], Iterable[json_values.JsonObject]] | None = None,
  only_differences: bool = True,
) -> Comparison:
  """Compares runs as they stand now.

  Args:
    runs: the runs.
    evaluations_of: the evaluations of a run that stand, by step; None: see `read_evaluations`.
    only_differences: whether fields that are the same in all of them are left out.
  """
  records = [run.first_record() or {} for run in runs]
  params = [run_folders.read_params(run) or {} for run in runs]
  find = evaluations_of or (lambda run: read_evaluations(run.file(run_folders.EVENTS)))
  evaluations = [list(find(run)) for run in runs]
  last = [event_log.read_last(run.file(run_folders.EVENTS)) for run in runs]
  steps = [each.last['step'] if each.last else record.get('step') for each, record in zip(last, records)]
  return Comparison(
    names=tuple(run.name for run in runs),
    statuses=tuple(statuses_lib.of_run(run).status for run in runs),
    steps=tuple(steps),
    params=_rows(params, only_differences, unset=UNSET),
    last=_rows([_last_metrics(each, found) for each, found in zip(last, evaluations)]),
    best=_rows([_best_evaluations(found, values) for found, values in zip(evaluations, params)]),
    origins=_rows([_origin(record) for record in records], only_differences=True),
  )


def best_of(run: run_folders.Run) -> tuple[str, float, int] | None:
  """The metric of a run's best checkpoint, its best value and the step of that; None if it has none."""
  params = run_folders.read_params(run) or {}
  chosen = str(params.get('trainer.best_checkpoint_eval_metric') or '')
  found = _best_evaluations(list(read_evaluations(run.file(run_folders.EVENTS))), params) if chosen else {}
  return (chosen, *found[chosen]) if chosen in found else None


def best_metrics(run: run_folders.Run) -> dict[str, tuple[float, int]]:
  """The best value and its step of each metric of a run's evaluations, if it is known which values are better."""
  return _best_evaluations(list(read_evaluations(run.file(run_folders.EVENTS))), run_folders.read_params(run) or {})


def read_evaluations(path: str) -> Iterator[json_values.JsonObject]:
  """The events 'eval' of a run that stand, by step. The file is read line by line, and hardly parsed."""
  yield from (
    event_log.with_floats(event) for event in run_files.standing_events(_of_interest(path)) if event['event'] == 'eval'
  )


def _of_interest(path: str) -> Iterator[dict[str, object]]:
  marks = tuple(b'"event": "%s"' % kind.encode() for kind in ('eval', *run_files.GO_BACK))
  try:
    with local_files.open_to_read(path) as file:
      for line in local_files.read_lines(file, run_files.MAX_EVENT_BYTES):
        if any(mark in line for mark in marks):
          event = run_files.parse_event(line)
          if event is not None:
            yield event
  except OSError:
    return


def _origin(record: Mapping[str, object]) -> json_values.JsonObject:
  versions = record.get('versions')
  found = {name: record.get(name) for name in _OF_RECORD if record.get(name) is not None}
  named = versions.items() if isinstance(versions, dict) else ()
  return {**found, **{f'versions.{name}': value for name, value in named}}


def _last_metrics(last: event_log.LastEvents, evaluations: Sequence[dict[str, object]]) -> dict[str, float]:
  """The metrics of the last evaluation by their names; and of training, with a prefix if the name is taken."""
  found = event_log.metrics_of(evaluations[-1]) if evaluations else {}
  training = event_log.metrics_of(last.train)
  return {**found, **{f'training/{name}' if name in found else name: value for name, value in training.items()}}


def _best_evaluations(
  evaluations: Sequence[json_values.JsonObject], params: Mapping[str, object]
) -> dict[str, tuple[float, int]]:
  """Metric -> (value, step) of the best evaluation."""
  best: dict[str, tuple[float, int]] = {}
  for event in evaluations:
    for name, value in event_log.metrics_of(event).items():
      if math.isnan(json_values.as_float(value)):
        continue
      mode = direction_of(name, params)
      if mode and (name not in best or _is_better(value, best[name][0], mode)):
        best[name] = value, event['step']
  return best


def _is_better(value: float, other: float, mode: str) -> bool:
  """Whether a value is better than another one. A finite one is better than an infinite one."""
  is_finite = math.isfinite(json_values.as_float(value))
  if is_finite != math.isfinite(json_values.as_float(other)):
    return is_finite
  return value > other if mode == 'max' else value < other


def direction_of(metric: str, params: Mapping[str, object]) -> str | None:
  """Which values of an evaluation's metric are better, 'max' or 'min': as a configuration or its name says, or None.

  A configuration written before 'auto', or by Model Garden, has 'higher' as its default: it need not be a choice.
  """
  found = metric_direction.direction(metric)
  given = str(params.get('trainer.best_checkpoint_metric_comp'))
  if metric == params.get('trainer.best_checkpoint_eval_metric') and (given == 'lower' or not found):
    return metric_direction.COMPARISONS.get(given)
  return found


def _rows(
  columns: Sequence[Mapping[str, object]], only_differences: bool = False, unset: object = None
) -> dict[str, tuple]:
  """Name -> its value in each column."""
  names = dict.fromkeys(name for column in columns for name in column)
  rows = {name: tuple(column.get(name, unset) for column in columns) for name in names}
  if not only_differences:
    return rows
  return {name: row for name, row in rows.items() if len(set(map(repr, row))) > 1}  # 1 is not 1.0, and nan is nan.


_SEED = re.compile(r'(^|[._])seed$')
_ENDS = (':min', ':max')


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric of a table.

  Attributes:
    name: its name.
    mode: 'max' or 'min': which values are better; '' if that is unknown, and none is marked as the best.
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

  values: tuple[json_values.Json, ...]
  names: tuple[str, ...]
  spreads: tuple[Spread | None, ...]


def parse_metric(text: str) -> Metric:
  """The metric of `NAME`, `NAME:min` or `NAME:max`; without an end, the name implies which values are better."""
  for end in _ENDS:
    if text.endswith(end):
      return Metric(text.removesuffix(end), end[1:])
  return Metric(text, metric_direction.direction(text) or '')


def fields_that_differ(params: Mapping[str, json_values.JsonMapping]) -> list[str]:
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


def group_runs(
  runs: Sequence[run_index.RunSummary], by: Sequence[str], metrics: Sequence[Metric], params: selection.Params
) -> list[Group]:
  """Groups runs, in the order in which the groups are first seen.

  Args:
    runs: the runs.
    by: fields in which the runs of a group agree: 'tag' (all tags of a run), 'folder' (the sweep's folder for
      its points), or a name as `selection.values_of` takes it.
    metrics: the metrics to summarize: of the last evaluations, or else, if no run has evaluated it, of the last
      training loops.
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
  groups: dict[str, list[run_index.RunSummary]] = {}
  for run in runs:
    groups.setdefault(repr([column[run.name] for column in columns]), []).append(run)
  rows = [[_spread([found.get(run.name) for run in members]) for found in values] for members in groups.values()]
  best = [_best_mean([row[number] for row in rows], metric.mode) for number, metric in enumerate(metrics)]
  return [
    Group(
      tuple(column[members[0].name] for column in columns),
      tuple(run.name for run in members),
      tuple(each and dataclasses.replace(each, is_best=each.mean == mean) for each, mean in zip(row, best)),
    )
    for members, row in zip(groups.values(), rows)
  ]


def _column(name: str, runs: Sequence[run_index.RunSummary], params: selection.Params) -> dict[str, json_values.Json]:
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


def _values(runs: Sequence[run_index.RunSummary], metric: str) -> dict[str, float]:
  """Name of a run -> its value. Values of evaluations and of training are not mixed."""
  evaluated = {run.name: run.evaluation_metric(metric) for run in runs}
  if all(value is None for value in evaluated.values()):
    evaluated = {run.name: run.train.get(metric) for run in runs}
  return {name: json_values.as_float(value) for name, value in evaluated.items() if value is not None}


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


def _best_mean(spreads: Sequence[Spread | None], mode: str) -> float | None:
  means = [each.mean for each in spreads if each is not None and math.isfinite(each.mean)]
  if len(spreads) < 2 or not means or not mode:
    return None
  return max(means) if mode == 'max' else min(means)
