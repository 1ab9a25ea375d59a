"""The states of a sweep's points, from their folders, their jobs and their runs. No TensorFlow."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import os

from official_ext.base.files import paths
from official_ext.operations.queue import job_status
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import run_log
from official_ext.operations.sweeps import metric_history
from official_ext.operations.sweeps import proposals
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder

NEW = 'new'  # It was proposed, and has no job yet.
UNDER_WAY = (*job_status.WAITING, *job_status.HOLDING)
OVER = ('finished', 'failed', 'diverged', 'pruned', 'stopped')
STATUSES = (NEW, *UNDER_WAY, *OVER, 'unreadable', 'deleted')
_OF_RECORD = {'finished': 'finished', 'failed': 'failed', 'diverged': 'diverged'}
_DIVERGED = 3
_MAX_LINE = 300  # Of the log, as a reason.


@dataclasses.dataclass(frozen=True)
class Point:
  """A point of a sweep as it stands.

  Attributes:
    record: its number, parameters and folder.
    status: one of STATUSES.
    reason: why, for people; '' if the status says it all.
    value: of the metric, as the sweep's file says: the last or the best; None if there is none that is a number.
    history: all values of the metric.
    job: its newest one; None if it has none.
    was_resumed: whether it was resumed after an early end: it is not ended early again.
  """

  record: sweep_folder.PointRecord
  status: str
  reason: str = ''
  value: float | None = None
  history: metric_history.History = metric_history.History()
  job: job_status.State | None = None
  was_resumed: bool = False

  @property
  def number(self) -> int:
    """From 1."""
    return self.record.number

  @property
  def is_over(self) -> bool:
    """Whether it cannot change by itself any more."""
    return self.status in OVER or self.status == 'deleted'

  def told(self) -> proposals.Told:
    """The sampler's input about it."""
    values = self.history.finite()
    if self.status == 'finished' and self.value is not None:
      return proposals.Told(self.number, proposals.FINISHED, self.value)
    if self.status in ('pruned', 'stopped') and values:
      return proposals.Told(self.number, proposals.PRUNED, values[-1], len(self.history.values) - 1)
    is_running = self.status in (NEW, *UNDER_WAY)
    return proposals.Told(self.number, proposals.RUNNING if is_running else proposals.FAILED)


class PointReader:
  """Reads the points of a sweep, again and again; unchanged files are not read twice."""

  def __init__(self, folder: sweep_folder.SweepFolder):
    """Reads nothing yet."""
    self._folder = folder
    self._histories = metric_history.Histories()
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
    self, record: sweep_folder.PointRecord, job: job_status.State | None, sweep: sweep_file.SweepFile
  ) -> Point:
    if record.is_deleted:
      return Point(record, 'deleted')
    run = run_folder.Run(record.folder, record.name)
    pruned = self._folder.pruned(record)
    status, reason = self._status(record, job, run, pruned)
    metric = sweep.metric
    history = self._histories.read(record.folder, metric.name if metric else '')
    value = summarise(history.values, metric) if metric else None
    if status == 'finished' and metric and value is None:
      reason = reason or missing(metric, history)
    was_resumed = pruned is None and os.path.exists(os.path.join(record.folder, sweep_folder.PRUNED))
    return Point(record, status, reason, value, history, job, was_resumed)

  def _status(self, record, job, run, pruned) -> tuple[str, str]:
    """See `status_of`. Of a point that is over it is the same until one of its files has changed."""
    files = [_key(path) for path in (run.file('run.json'), run.file('started.json'), run.log_path())]
    key = (job and (job.number, job.status), files, pruned)
    known = self._over.get(record.number)
    if known is not None and known[0] == key:
      return known[1]
    found = status_of(job, run, pruned)
    if found[0] == 'failed' and (lines := run_log.tail(run, 1)):
      found = found[0], ': '.join(filter(None, [found[1], lines[0].strip()[:_MAX_LINE]]))
    if found[0] in OVER:
      self._over[record.number] = key, found
    return found


def _key(path: str) -> tuple[int, int, int] | None:
  try:
    found = os.stat(path)
  except OSError:
    return None
  return found.st_size, found.st_mtime_ns, found.st_ino


def newest_jobs(states: Sequence[job_status.State]) -> dict[str, job_status.State]:
  """The newest job that trains in each folder of a run."""
  found = {}
  for state in states:
    if state.job and state.job.model_dir and state.job.mode == 'train' and not paths.is_remote(state.job.model_dir):
      found[state.job.model_dir] = state
  return found


def status_of(
  job: job_status.State | None, run: run_folder.Run, pruned: Mapping[str, object] | None
) -> tuple[str, str]:
  """How a point stands, and why.

  Args:
    job: its newest job.
    run: its run, which somebody may have started by hand too.
    pruned: why it was ended early.
  """
  why = str(pruned.get('reason', '')) if pruned else ''
  if job is not None and job.status not in job_status.OVER:
    return job.status, why if job.status == 'stopping' and pruned else job.reason
  found = judged_status.of_run(run, mode='train') if run.exists() else None
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
  """The value of a run: of its last evaluation, or of its best; None if there is none that is a number."""
  if metric.summary == 'last':
    return values[-1] if values and math.isfinite(values[-1]) else None
  finite = [value for value in values if math.isfinite(value)]
  if not finite:
    return None
  return max(finite) if metric.goal == 'maximize' else min(finite)


def missing(metric: sweep_file.Metric, history: metric_history.History) -> str:
  """Why a run that has finished has no value."""
  if history.values:
    return f'{metric.name} is {history.values[-1]:g}'
  there = f'there are {", ".join(history.names)}' if history.names else 'it has reported no metrics'
  return f'it has no metric {metric.name}; {there}'


def best_of(found: Sequence[Point], sweep: sweep_file.SweepFile) -> Point | None:
  """The point with the best value, of those that have finished; None if none has one."""
  known = [(point.value, point) for point in found if point.status == 'finished' and point.value is not None]
  if sweep.metric is None or not known:
    return None
  sign = -1.0 if sweep.metric.goal == 'maximize' else 1.0
  return min(known, key=lambda pair: (sign * pair[0], pair[1].number))[1]
