"""The results of a sweep: its best points, the importance of parameters, the spread by seeds. No TensorFlow."""

from collections.abc import Sequence
import dataclasses
import math
import statistics
import zlib

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.operations.sweeps import optuna_study
from official_ext.operations.sweeps import points as points_lib
from official_ext.operations.sweeps import proposals
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder

_SEEDS = ('seed', 'runtime.seed')


@dataclasses.dataclass(frozen=True)
class SeedGroup:
  """Points that differ in their seed alone.

  Attributes:
    parameters: the common ones.
    points: their numbers.
    mean: of the metric.
    deviation: of a sample: divided by one less than its size.
  """

  parameters: json_types.JsonMapping
  points: tuple[int, ...]
  mean: float
  deviation: float


def status_of(folder: sweep_folder.SweepFolder, sweep: sweep_file.SweepFile, found: Sequence[points_lib.Point]) -> str:
  """How a sweep stands: running, stopped, finished, or interrupted, if the same command has to be given again."""
  if folder.controller() is not None:
    return 'running'
  if folder.stopped() is not None:
    return 'stopped'
  metric = sweep.metric
  has_reached = metric is not None and any(
    point.value is not None and metric.has_reached_target(point.value) for point in found
  )
  is_done = bool(found) and all(point.is_over for point in found)
  return 'finished' if is_done and (has_reached or len(found) >= sweep.num_points) else 'interrupted'


def in_order(found: Sequence[points_lib.Point], sweep: sweep_file.SweepFile) -> list[points_lib.Point]:
  """Points, the best that have finished first, then others with a value, then the rest; by number without a metric."""
  metric = sweep.metric
  if metric is None:
    return list(found)
  sign = -1.0 if metric.goal == 'maximize' else 1.0
  return sorted(
    found,
    key=lambda point: (
      point.value is None,
      point.status != 'finished',
      0.0 if point.value is None else sign * point.value,
      point.number,
    ),
  )


def seed_groups(found: Sequence[points_lib.Point], sweep: sweep_file.SweepFile) -> list[SeedGroup]:
  """The finished points that differ in their seed alone, together, the best mean first; not those that are alone."""
  seeds = [each.name for each in sweep.parameters if each.name in _SEEDS and not each.is_constant]
  if not seeds or sweep.metric is None:
    return []
  groups: dict[str, list[points_lib.Point]] = {}
  for point in found:
    if point.status == 'finished' and point.value is not None:
      groups.setdefault(repr(_others(point, seeds)), []).append(point)
  sign = -1.0 if sweep.metric.goal == 'maximize' else 1.0
  rows = [
    SeedGroup(
      parameters=_others(points[0], seeds),
      points=tuple(point.number for point in points),
      mean=statistics.fmean(values),
      deviation=statistics.stdev(values),
    )
    for points in groups.values()
    if len(points) > 1
    for values in [[point.value for point in points if point.value is not None]]
  ]
  return sorted(rows, key=lambda row: sign * row.mean)


def importances(found: Sequence[points_lib.Point], sweep: sweep_file.SweepFile) -> dict[str, float] | str:
  """How much each parameter matters for the metric: see optuna_study.py; or why that is not known.

  Seeds are parameters like others: their effect is noise.
  """
  if sweep.metric is None:
    return 'the sweep has no metric'
  values = {point.number: point.value for point in found if point.status == 'finished' and point.value is not None}
  positions = {point.number: _positions(point.record.proposal, sweep) for point in found if point.number in values}
  known = {number: each for number, each in positions.items() if None not in each.values()}
  try:
    shares = optuna_study.importances(sweep, known, {number: values[number] for number in known})
  except errors.UserError:
    return "it needs Optuna: pip install 'official-ext[sweeps]'"
  return shares or 'too few points have finished, or all have the same value'


def as_dict(
  folder: sweep_folder.SweepFolder,
  sweep: sweep_file.SweepFile,
  found: Sequence[points_lib.Point],
  with_histories: bool = False,
) -> json_types.JsonObject:
  """A sweep as JSON values; parameters and metrics that are not finite stay floats."""
  best = points_lib.best_of(found, sweep)
  counts = {status: sum(point.status == status for point in found) for status in points_lib.STATUSES}
  process = folder.controller()
  return {
    'name': folder.name,
    'description': sweep.description,
    'status': status_of(folder, sweep, found),
    'controller': None if process is None else str(process),
    'method': sweep.method,
    'experiment': sweep.experiment,
    'program': sweep.program,
    'metric': None if sweep.metric is None else dataclasses.asdict(sweep.metric),
    'num_points': None if math.isinf(sweep.num_points) else int(sweep.num_points),
    'counts': {status: count for status, count in counts.items() if count},
    'best': None if best is None else best.number,
    'parameters': [
      {'name': each.name, 'distribution': each.distribution, 'is_constant': each.is_constant}
      for each in sweep.parameters
    ],
    'points': [_entry(folder, point, with_histories) for point in found],
    'seed_groups': [dataclasses.asdict(group) for group in seed_groups(found, sweep)],
  }


def describe(folder: sweep_folder.SweepFolder, reader: points_lib.PointReader | None = None) -> json_types.JsonObject:
  """A sweep in a line, as JSON values: `as_dict`, but for its points, with the best; one that cannot be read says why.

  Args:
    folder: the sweep.
    reader: of its points, if it was read before.
  """
  try:
    sweep = folder.load()
    values = as_dict(folder, sweep, (reader or points_lib.PointReader(folder)).read(sweep))
  except errors.UserError as error:
    return {'name': folder.name, 'status': 'unreadable', 'reason': errors.lines_of(error)[0], 'revision': 0}
  points, best = values.pop('points'), values['best']
  values.pop('seed_groups')
  revision = zlib.crc32(repr(points).encode('utf-8', 'surrogatepass'))  # Another one whenever a point has changed.
  return {**values, 'best': next((point for point in points if point['point'] == best), None), 'revision': revision}


def _entry(folder: sweep_folder.SweepFolder, point: points_lib.Point, with_history: bool) -> json_types.JsonObject:
  values = {
    'point': point.number,
    'run': f'{folder.name}/{point.record.name}' if point.status != 'deleted' else None,
    'status': point.status,
    'reason': point.reason,
    'value': point.value,
    'step': point.history.last_step,
    'parameters': dict(point.record.proposal.parameters),
    'job': point.job.number if point.job else None,
  }
  return {**values, 'history': list(zip(point.history.steps, point.history.values))} if with_history else values


def _others(point: points_lib.Point, seeds: Sequence[str]) -> json_types.JsonObject:
  return {name: value for name, value in point.record.proposal.parameters.items() if name not in seeds}


def _positions(proposal: proposals.Proposal, sweep: sweep_file.SweepFile) -> json_types.JsonObject:
  """The key of a point's parameters; None for one that the sweep's file does not have any more."""
  found = {}
  for each in sweep.parameters:
    if not each.is_constant:
      search = each.search_of(proposal.parameters.get(each.name))
      found[each.name] = proposal.positions.get(each.name) if search is None else search
  return found
