"""Runs side by side: the fields in which they differ, their metrics, and their environments."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import math

from official_ext.base import json_types
from official_ext.base.files import regular_files
from official_ext.base.run_folder import better
from official_ext.base.run_folder import standing_events
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import last_events
from official_ext.operations.runs import params as params_lib
from official_ext.operations.runs import run_folder

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
  params: Mapping[str, tuple[json_types.Json, ...]]
  last: Mapping[str, tuple[float | None, ...]]
  best: Mapping[str, tuple[tuple[float, int] | None, ...]]
  origins: Mapping[str, tuple[json_types.Json, ...]]

  def as_dict(self) -> json_types.JsonObject:
    """JSON values; a number that is not finite is a string, as in events.jsonl."""
    return json_types.json_values(dataclasses.asdict(self))


def compare(
  runs: Sequence[run_folder.Run],
  evaluations_of: Callable[[run_folder.Run], Iterable[json_types.JsonObject]] | None = None,
  only_differences: bool = True,
) -> Comparison:
  """Compares runs as they stand now.

  Args:
    runs: the runs.
    evaluations_of: the evaluations of a run that stand, by step; None: see `read_evaluations`.
    only_differences: whether fields that are the same in all of them are left out.
  """
  records = [run.first_record() or {} for run in runs]
  params = [params_lib.read(run) or {} for run in runs]
  find = evaluations_of or (lambda run: read_evaluations(run.file(run_folder.EVENTS)))
  evaluations = [list(find(run)) for run in runs]
  last = [last_events.read(run.file(run_folder.EVENTS)) for run in runs]
  steps = [each.last['step'] if each.last else record.get('step') for each, record in zip(last, records)]
  return Comparison(
    names=tuple(run.name for run in runs),
    statuses=tuple(judged_status.of_run(run).status for run in runs),
    steps=tuple(steps),
    params=_rows(params, only_differences, unset=UNSET),
    last=_rows([_last_metrics(each, found) for each, found in zip(last, evaluations)]),
    best=_rows([_best(found, values) for found, values in zip(evaluations, params)]),
    origins=_rows([_origin(record) for record in records], only_differences=True),
  )


def best_of(run: run_folder.Run) -> tuple[str, float, int] | None:
  """The metric of a run's best checkpoint, its best value and the step of that; None if it has none."""
  params = params_lib.read(run) or {}
  chosen = str(params.get('trainer.best_checkpoint_eval_metric') or '')
  found = _best(list(read_evaluations(run.file(run_folder.EVENTS))), params) if chosen else {}
  return (chosen, *found[chosen]) if chosen in found else None


def best_metrics(run: run_folder.Run) -> dict[str, tuple[float, int]]:
  """The best value and its step of each metric of a run's evaluations, if it is known which values are better."""
  return _best(list(read_evaluations(run.file(run_folder.EVENTS))), params_lib.read(run) or {})


def read_evaluations(path: str) -> Iterator[json_types.JsonObject]:
  """The events 'eval' of a run that stand, by step. The file is read line by line, and hardly parsed."""
  yield from (
    last_events.with_floats(event) for event in standing_events.standing(_of_interest(path)) if event['event'] == 'eval'
  )


def _of_interest(path: str) -> Iterator[dict[str, object]]:
  marks = tuple(b'"event": "%s"' % kind.encode() for kind in ('eval', *standing_events.GO_BACK))
  try:
    with regular_files.open_to_read(path) as file:
      for line in regular_files.lines(file, standing_events.MAX_LINE):
        if any(mark in line for mark in marks):
          event = standing_events.parse(line)
          if event is not None:
            yield event
  except OSError:
    return


def _origin(record: Mapping[str, object]) -> json_types.JsonObject:
  versions = record.get('versions')
  found = {name: record.get(name) for name in _OF_RECORD if record.get(name) is not None}
  named = versions.items() if isinstance(versions, dict) else ()
  return {**found, **{f'versions.{name}': value for name, value in named}}


def _last_metrics(last: last_events.LastEvents, evaluations: Sequence[dict[str, object]]) -> dict[str, float]:
  """The metrics of the last evaluation by their names; those of training too, with a prefix if the name is taken."""
  found = last_events.metrics_of(evaluations[-1]) if evaluations else {}
  training = last_events.metrics_of(last.train)
  return {**found, **{f'training/{name}' if name in found else name: value for name, value in training.items()}}


def _best(evaluations: Sequence[json_types.JsonObject], params: Mapping[str, object]) -> dict[str, tuple[float, int]]:
  """Metric -> (value, step) of the best evaluation."""
  best: dict[str, tuple[float, int]] = {}
  for event in evaluations:
    for name, value in last_events.metrics_of(event).items():
      if math.isnan(json_types.as_float(value)):
        continue
      mode = direction_of(name, params)
      if mode and (name not in best or (value > best[name][0] if mode == 'max' else value < best[name][0])):
        best[name] = value, event['step']
  return best


def direction_of(metric: str, params: Mapping[str, object]) -> str | None:
  """Which values of an evaluation's metric are better, 'max' or 'min': as a configuration or its name says, or None."""
  if metric == params.get('trainer.best_checkpoint_eval_metric'):
    return {'higher': 'max', 'lower': 'min'}.get(str(params.get('trainer.best_checkpoint_metric_comp')))
  try:
    return better.mode_of(metric)
  except ValueError:
    return None


def _rows(
  columns: Sequence[Mapping[str, object]], only_differences: bool = False, unset: object = None
) -> dict[str, tuple]:
  """Name -> its value in each column."""
  names = dict.fromkeys(name for column in columns for name in column)
  rows = {name: tuple(column.get(name, unset) for column in columns) for name in names}
  if not only_differences:
    return rows
  return {name: row for name, row in rows.items() if len(set(map(repr, row))) > 1}  # 1 is not 1.0, and nan is nan.
