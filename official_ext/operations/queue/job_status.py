"""How a job of the queue stands: a function of its files, and of which processes live. No TensorFlow."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import re
import signal
from typing import Any

from official_ext.base import errors
from official_ext.base.files import file_lock
from official_ext.base.processes import stopping
from official_ext.operations.queue import job_files

WAITING = ('queued', 'paused')
HOLDING = ('starting', 'running', 'stopping')  # These have a slot, and their GPUs.
OVER = ('finished', 'failed', 'cancelled')  # These do not change.
STATUSES = (*WAITING, *HOLDING, *OVER, 'unreadable')

_PREEMPTED = errors.PreemptedError.exit_status
_MEANINGS = {
  errors.UserError.exit_status: 'a mistake in the command or its configuration',
  errors.DivergedError.exit_status: 'diverged',
  _PREEMPTED: 'preempted',
  127: 'no such program, or it cannot be run',
}
_ATTEMPT = re.compile(r'attempt-([1-9]\d*)\.json')
_LOCK = re.compile(r'attempt-[1-9]\d*\.lock')


@dataclasses.dataclass(frozen=True)
class State:
  """How a job stands.

  Attributes:
    number: of the job.
    status: one of STATUSES.
    reason: why, for people; '' if the status says it all.
    job: None if it is unreadable.
    attempt: the newest one; None if none was ordered.
    exit_status: of its newest attempt: minus a signal's number if that ended it, None if it is not known.
    has_slot: whether it takes up a slot, and its GPUs.
  """

  number: int
  status: str
  reason: str = ''
  job: job_files.Job | None = None
  attempt: job_files.Attempt | None = None
  exit_status: int | None = None
  has_slot: bool = False

  @property
  def restarts(self) -> int:
    """How often it was started again."""
    return self.attempt.number - 1 if self.attempt else 0

  @property
  def next_attempt(self) -> int:
    """The number of the attempt that is to be ordered, of a job that waits."""
    return self.attempt.number + 1 if self.attempt else 1


def read(folder: str, job: job_files.Job | None = None) -> State | None:
  """How the job in a folder stands; None if there is none, or not yet.

  Args:
    folder: of the job.
    job: read there before; it never changes.

  Raises:
    OSError: something cannot be read.
  """
  number = int(os.path.basename(folder))
  try:
    job = job or job_files.read_job(folder)
    if job is None:
      return None
    names = os.listdir(folder)
    attempts = [int(match[1]) for name in names if (match := _ATTEMPT.fullmatch(name))]
    attempt = job_files.read_attempt(folder, max(attempts)) if attempts else None
    return _state(job, attempt, job_files.CANCELLED in names, job_files.PAUSED in names)
  except job_files.DamagedFileError as error:  # The lock still shows whether it runs.
    held = any(_LOCK.fullmatch(name) and file_lock.is_held(os.path.join(folder, name)) for name in os.listdir(folder))
    return State(number, 'unreadable', f'{error}; nothing is started for it', has_slot=held)
  except FileNotFoundError:  # Deleted meanwhile.
    return None


def _state(job: job_files.Job, attempt: job_files.Attempt | None, cancelled: bool, paused: bool) -> State:
  if attempt is None:
    status = 'cancelled' if cancelled else 'paused' if paused else 'queued'
    return State(job.number, status, job=job)
  ended = attempt.ended
  if ended is None and attempt.process is None:
    return State(job.number, 'stopping' if cancelled else 'starting', '', job, attempt, has_slot=True)
  if ended is None:
    if job_files.is_running(attempt):
      return State(job.number, 'stopping' if cancelled else 'running', '', job, attempt, has_slot=True)
    # It may have written its end after that was looked for, and before it ended.
    attempt = job_files.read_attempt(job.folder, attempt.number) or attempt
    ended = attempt.ended or {'outcome': job_files.LOST}
  return _ended(job, attempt, ended, cancelled, paused)


def _ended(
  job: job_files.Job, attempt: job_files.Attempt, ended: Mapping[str, Any], cancelled: bool, paused: bool
) -> State:
  exit_status = ended.get('status')
  reason = describe(ended)
  if ended.get('outcome') == job_files.EXITED and exit_status == 0:
    return State(job.number, 'finished', '', job, attempt, 0)
  if ended.get('stopped'):
    reason = f'a stop was requested, then {reason}'
  if cancelled or ended.get('stopped'):
    return State(job.number, 'cancelled', reason, job, attempt, exit_status)
  if not is_passing(ended):
    return State(job.number, 'failed', reason, job, attempt, exit_status)
  if attempt.number > job.max_restarts:
    return State(job.number, 'failed', f'{reason}, after {_restarts(attempt.number - 1)}', job, attempt, exit_status)
  again = 'will be retried' + (' when it is resumed' if paused else '')
  return State(job.number, 'paused' if paused else 'queued', f'{reason}; {again}', job, attempt, exit_status)


def is_passing(ended: Mapping[str, Any]) -> bool:
  """Whether an attempt ended by something that may not happen the next time.

  That is: it was preempted or hung (75), killed by a signal, also if a shell reports it (128 and the signal's number),
  or lost. Everything else is a fault that would only be met again.
  """
  if ended.get('outcome') == job_files.LOST:
    return True
  status = ended.get('status')
  return isinstance(status, int) and (status == _PREEMPTED or status < 0 or 128 < status < 128 + signal.NSIG)


def describe(ended: Mapping[str, Any]) -> str:
  """How an attempt ended, in words."""
  if ended.get('outcome') == job_files.LOST:
    return 'its process was lost'
  if ended.get('outcome') == job_files.NOT_STARTED:
    return 'before it was started'
  if ended.get('outcome') == job_files.REFUSED:
    return str(ended.get('error'))
  status = ended.get('status')
  if isinstance(status, int) and (status < 0 or 128 < status < 128 + signal.NSIG):
    return f'killed by {stopping.name_of(-status if status < 0 else status - 128)}'
  meaning = _MEANINGS.get(status)  # type: ignore[arg-type]
  return f'ended with status {status}' + (f' ({meaning})' if meaning else '')


def in_order(states: Sequence[State], order: Sequence[int]) -> list[State]:
  """Jobs in the order in which they are to be started.

  Args:
    states: of the jobs.
    order: numbers of jobs, of which some may be gone; jobs that it does not name follow as they were added.
  """
  ranks = {number: rank for rank, number in enumerate(order)}
  return sorted(states, key=lambda state: (ranks.get(state.number, len(ranks)), state.number))


def _restarts(count: int) -> str:
  return f'{count} restart{"" if count == 1 else "s"}'
