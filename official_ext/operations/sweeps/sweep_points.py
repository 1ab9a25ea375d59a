"""The points of a sweep: their states, their metrics, and the results.

States come from the folders of the points, their jobs and their runs, the values of the metric from their events.jsonl.
Results are the best points, the importance of parameters, and the spread by seeds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import math
import os
import statistics
from typing import Any
import zlib

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import run_files
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import child_process
from official_ext.operations.runs import event_log
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses
from official_ext.operations.sweeps import samplers
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder

_EVALUATION_PREFIX = 'validation_'  # The evaluation's metric of the training's name.


@dataclasses.dataclass(frozen=True)
class History:
  """The values of a metric in a run.

  Attributes:
    steps: at which there is one, ascending: of evaluations, or of training loops if no evaluation has the metric.
    values: the metric's, one for each step; they may be NaN or infinite.
    names: the metrics that the run has reported, if this one is not among them.
    last_step: of its last event; None without events.
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
    path = os.path.join(folder, run_folders.EVENTS)
    try:
      found = os.stat(path)
    except OSError:
      return History()
    key = found.st_size, found.st_mtime_ns, found.st_ino
    known = self._known.get((folder, metric))
    if known is None or known[0] != key:
      known = self._known[folder, metric] = key, read_history(path, metric)
    return known[1]


def read_history(path: str, metric: str) -> History:
  """The history of a metric in a file of events; '' for none, of which only the last step is reported."""
  last = event_log.read_last(path)
  last_step = last.last['step'] if last.last else None
  if not metric:
    return History(last_step=last_step)
  for kind in ('eval', 'train'):
    steps, values = list[int](), list[float]()
    for event in run_files.standing_events(_event_lines(path, kind)):
      value = _metric_value(event, metric) if event['event'] == kind else None
      if value is None:
        continue
      while steps and steps[-1] >= event['step']:  # A program with its own loop may report no restart.
        del steps[-1], values[-1]
      steps.append(event['step'])
      values.append(value)
    if steps:
      return History(tuple(steps), tuple(values), last_step=last_step)
  names = {**event_log.metrics_of(last.evaluation), **event_log.metrics_of(last.train)}
  return History(names=tuple(names), last_step=last_step)


def _metric_value(event: Mapping[str, object], metric: str) -> float | None:
  values = event_log.metrics_of(event_log.with_floats(event))
  if event['event'] == 'eval' and metric not in values:
    metric = metric.removeprefix(_EVALUATION_PREFIX)
  return None if metric not in values else float(values[metric])


def _event_lines(path: str, kind: str) -> Iterator[json_values.JsonObject]:
  marks = tuple(b'"event": "%s"' % name.encode() for name in (kind, *run_files.GO_BACK))
  try:
    with local_files.open_to_read(path) as file:
      yield from _parsed_lines(local_files.read_lines(file, run_files.MAX_EVENT_BYTES), marks)
  except OSError:
    return


def _parsed_lines(lines: Iterable[bytes], marks: Sequence[bytes]) -> Iterator[json_values.JsonObject]:
  for line in lines:
    if any(mark in line for mark in marks):
      event = run_files.parse_event(line)
      if event is not None:
        yield event


NEW = 'new'  # It was proposed, and has no job yet.
UNDER_WAY = (*queued_jobs.WAITING, *queued_jobs.HOLDING)
OVER = ('finished', 'failed', 'diverged', 'pruned', 'stopped')
STATUSES = (NEW, *UNDER_WAY, *OVER, 'unreadable', 'deleted')
_OF_RECORD = {'finished': 'finished', 'failed': 'failed', 'diverged': 'diverged'}
_DIVERGED = 3


@dataclasses.dataclass(frozen=True)
class Point:
  """A point of a sweep as it stands.

  Attributes:
    record: its number, parameters and folder.
    status: one of STATUSES.
    reason: why, for people; '' if the status says it all.
    value: of the metric, as the sweep's file says: the last or the best; None without a number.
    history: all values of the metric.
    job: its newest one; None if it has none.
    was_resumed: whether it was resumed after an early end: it is not ended early again.
  """

  record: sweep_folder.PointRecord
  status: str
  reason: str = ''
  value: float | None = None
  history: History = History()
  job: queued_jobs.JobState | None = None
  was_resumed: bool = False

  @property
  def number(self) -> int:
    """From 1."""
    return self.record.number

  @property
  def is_over(self) -> bool:
    """Whether it cannot change by itself any more."""
    return self.status in OVER or self.status == 'deleted'

  def as_outcome(self) -> samplers.PointOutcome:
    """The sampler's input about it."""
    values = self.history.finite()
    if self.status == 'finished' and self.value is not None:
      return samplers.PointOutcome(self.number, samplers.FINISHED, self.value)
    if self.status in ('pruned', 'stopped') and values:
      return samplers.PointOutcome(self.number, samplers.PRUNED, values[-1], len(self.history.values) - 1)
    is_running = self.status in (NEW, *UNDER_WAY)
    return samplers.PointOutcome(self.number, samplers.RUNNING if is_running else samplers.FAILED)


class PointReader:
  """Reads the points of a sweep, again and again; unchanged files are not read twice."""

  def __init__(self, folder: sweep_folder.SweepFolder):
    """Reads nothing yet."""
    self._folder = folder
    self._histories = Histories()
    self._over: dict[int, tuple[object, tuple[str, str]]] = {}  # The stamp of the status of a point that is over.

  def read(self, sweep: sweep_file.SweepFile) -> list[Point]:
    """All points as they stand now, by number; deleted ones too.

    Raises:
      UserError: a file is damaged.
      StorageError: something cannot be read.
    """
    jobs = newest_jobs(self._folder.queue.states())
    return [self._point(record, jobs.get(os.path.realpath(record.folder)), sweep) for record in self._folder.records()]

  def _point(
    self, record: sweep_folder.PointRecord, job: queued_jobs.JobState | None, sweep: sweep_file.SweepFile
  ) -> Point:
    if record.is_deleted:
      return Point(record, 'deleted')
    run = run_folders.Run(record.folder, record.name)
    pruned = self._folder.pruned(record)
    status, reason = self._status(record, job, run, pruned)
    metric = sweep.metric
    history = self._histories.read(record.folder, metric.name if metric else '')
    value = summarise(history.values, metric) if metric else None
    if status == 'finished' and metric and value is None:
      reason = reason or why_no_value(metric, history)
    was_resumed = pruned is None and os.path.exists(os.path.join(record.folder, sweep_folder.PRUNED))
    return Point(record, status, reason, value, history, job, was_resumed)

  def _status(self, record, job, run, pruned) -> tuple[str, str]:
    """See `point_status`. Of a point that is over it is the same until one of its files has changed."""
    files = [_key_of_file(path) for path in (run.file('run.json'), run.file('started.json'), run.log_path())]
    key = (job and (job.number, job.status), files, pruned)
    known = self._over.get(record.number)
    if known is not None and known[0] == key:
      return known[1]
    found = point_status(job, run, pruned)
    if found[0] == 'failed' and (lines := run_processes.log_tail(run, 1)):
      line = child_process.reason_of(lines[0])
      if line not in found[1]:
        found = found[0], ': '.join(filter(None, [found[1], line]))
    if found[0] in OVER:
      self._over[record.number] = key, found
    return found


def _key_of_file(path: str) -> tuple[int, int, int] | None:
  try:
    found = os.stat(path)
  except OSError:
    return None
  return found.st_size, found.st_mtime_ns, found.st_ino


def newest_jobs(states: Sequence[queued_jobs.JobState]) -> dict[str, queued_jobs.JobState]:
  """The newest job that trains in each folder of a run."""
  found = {}
  for state in states:
    if state.job and state.job.model_dir and state.job.mode == 'train' and not paths.is_remote(state.job.model_dir):
      found[state.job.model_dir] = state
  return found


def point_status(
  job: queued_jobs.JobState | None, run: run_folders.Run, pruned: Mapping[str, object] | None
) -> tuple[str, str]:
  """How a point stands, and why.

  Args:
    job: its newest job.
    run: its run, which may have been started by hand too.
    pruned: why it was ended early.
  """
  why = str(pruned.get('reason', '')) if pruned else ''
  if job is not None and job.status not in queued_jobs.OVER:
    return job.status, why if job.status == 'stopping' and pruned else job.reason
  found = statuses.of_run(run, mode='train') if run.exists() else None
  if found is not None and found.may_be_alive and found.status != 'unknown':
    return ('running' if found.status == 'hung' else found.status), found.reason
  if found is not None and found.status == 'submitted' and job is None:  # To an engine, not to the queue.
    return 'queued', found.reason
  if (
    pruned and (job is None or job.status in ('failed', 'cancelled')) and (found is None or found.status != 'finished')
  ):
    return 'pruned', why  # However its program ended: it was asked to.
  if found is not None and found.status in _OF_RECORD and (job is None or job.status != 'failed'):
    return _OF_RECORD[found.status], '' if found.status == 'finished' else found.reason
  if job is None:
    if found is None or found.status == 'unknown':
      return NEW, ''
    return 'stopped', found.reason
  if job.status == 'failed':
    return ('diverged' if job.exit_status == _DIVERGED else 'failed'), job.reason
  if job.status == 'cancelled':
    return 'stopped', job.reason
  return job.status, job.reason


def summarise(values: Sequence[float], metric: sweep_file.Metric) -> float | None:
  """The value of a run: of its last evaluation, or of its best; None without a number."""
  if metric.summary == 'last':
    return values[-1] if values and math.isfinite(values[-1]) else None
  finite = [value for value in values if math.isfinite(value)]
  if not finite:
    return None
  return max(finite) if metric.goal == 'maximize' else min(finite)


def why_no_value(metric: sweep_file.Metric, history: History) -> str:
  """Why a run that has finished has no value."""
  if history.values:
    return f'{metric.name} is {history.values[-1]:g}'
  there = f'there are {", ".join(history.names)}' if history.names else 'it has reported no metrics'
  return f'it has no metric {metric.name}; {there}'


def best_point(found: Sequence[Point], sweep: sweep_file.SweepFile) -> Point | None:
  """The finished point with the best value; None if none has one."""
  known = [(point.value, point) for point in found if point.status == 'finished' and point.value is not None]
  if sweep.metric is None or not known:
    return None
  sign = -1.0 if sweep.metric.goal == 'maximize' else 1.0
  return min(known, key=lambda pair: (sign * pair[0], pair[1].number))[1]


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

  parameters: json_values.JsonMapping
  points: tuple[int, ...]
  mean: float
  deviation: float


def sweep_status(folder: sweep_folder.SweepFolder, sweep: sweep_file.SweepFile, found: Sequence[Point]) -> str:
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


def best_first(found: Sequence[Point], sweep: sweep_file.SweepFile) -> list[Point]:
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


def seed_groups(found: Sequence[Point], sweep: sweep_file.SweepFile) -> list[SeedGroup]:
  """The finished points that differ in their seed alone, together, the best mean first; without single points."""
  seeds = [each.name for each in sweep.parameters if each.name in _SEEDS and not each.is_constant]
  if not seeds or sweep.metric is None:
    return []
  groups: dict[str, list[Point]] = {}
  for point in found:
    if point.status == 'finished' and point.value is not None:
      groups.setdefault(repr(_other_parameters(point, seeds)), []).append(point)
  sign = -1.0 if sweep.metric.goal == 'maximize' else 1.0
  rows = [
    SeedGroup(
      parameters=_other_parameters(points[0], seeds),
      points=tuple(point.number for point in points),
      mean=statistics.fmean(values),
      deviation=statistics.stdev(values),
    )
    for points in groups.values()
    if len(points) > 1
    for values in [[point.value for point in points if point.value is not None]]
  ]
  return sorted(rows, key=lambda row: sign * row.mean)


def importance_of_parameters(found: Sequence[Point], sweep: sweep_file.SweepFile) -> dict[str, float] | str:
  """How much each parameter matters for the metric: see samplers.py; or why that is not known.

  Seeds are parameters like others: their effect is noise.
  """
  if sweep.metric is None:
    return 'the sweep has no metric'
  values = {point.number: point.value for point in found if point.status == 'finished' and point.value is not None}
  positions = {point.number: _positions(point.record.proposal, sweep) for point in found if point.number in values}
  known = {number: each for number, each in positions.items() if None not in each.values()}
  try:
    shares = samplers.parameter_importances(sweep, known, {number: values[number] for number in known})
  except errors.UserError:
    return "it needs Optuna: pip install 'official-ext[sweeps]'"
  return shares or 'too few points have finished, or all have the same value'


def sweep_as_dict(
  folder: sweep_folder.SweepFolder,
  sweep: sweep_file.SweepFile,
  found: Sequence[Point],
  with_histories: bool = False,
) -> json_values.JsonObject:
  """A sweep as JSON values; parameters and metrics that are not finite stay floats."""
  best = best_point(found, sweep)
  counts = {status: sum(point.status == status for point in found) for status in STATUSES}
  process = folder.controller()
  return {
    'name': folder.name,
    'description': sweep.description,
    'status': sweep_status(folder, sweep, found),
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
    'points': [_point_as_dict(folder, point, with_histories) for point in found],
    'seed_groups': [dataclasses.asdict(group) for group in seed_groups(found, sweep)],
  }


def describe_sweep(folder: sweep_folder.SweepFolder, reader: PointReader | None = None) -> json_values.JsonObject:
  """A sweep in a line, as JSON values: `sweep_as_dict`, but for its points, with the best; one that cannot be read says
  why.

  Args:
    folder: the sweep.
    reader: of its points, if it was read before.
  """
  try:
    sweep = folder.load()
    values = sweep_as_dict(folder, sweep, (reader or PointReader(folder)).read(sweep))
  except errors.UserError as error:
    return {'name': folder.name, 'status': 'unreadable', 'reason': errors.lines_of(error)[0], 'revision': 0}
  points, best = values.pop('points'), values['best']
  values.pop('seed_groups')
  revision = zlib.crc32(repr(points).encode('utf-8', 'surrogatepass'))  # Another one whenever a point has changed.
  return {**values, 'best': next((point for point in points if point['point'] == best), None), 'revision': revision}


def _point_as_dict(folder: sweep_folder.SweepFolder, point: Point, with_history: bool) -> json_values.JsonObject:
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


def _other_parameters(point: Point, seeds: Sequence[str]) -> json_values.JsonObject:
  return {name: value for name, value in point.record.proposal.parameters.items() if name not in seeds}


def _positions(proposal: samplers.Proposal, sweep: sweep_file.SweepFile) -> json_values.JsonObject:
  """The key of a point's parameters; None for one that the sweep's file does not have any more."""
  found = {}
  for each in sweep.parameters:
    if not each.is_constant:
      search = each.search_of(proposal.parameters.get(each.name))
      found[each.name] = proposal.positions.get(each.name) if search is None else search
  return found
