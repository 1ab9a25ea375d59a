"""The jobs of a queue: their files, and the status that follows from these.

A job is a folder, `jobs/7` for job 7. Each file in it is written once, whole, synced, by one writer:

    job.json                 the command; by `official-ext queue add`. Without it there is no job
    attempt-1.json           the order to start it, with a token and its GPUs; by the dispatcher
    attempt-1.started.json   the process that is, or becomes, the command; by that process (job_runner.py)
    attempt-1.ended.json     how it ended; by its runner, or by the dispatcher if the runner was lost too
    attempt-1.lock           held from before the start until the runner and the command have ended
    paused.json              it waits; by `queue pause`, which `queue resume` deletes
    cancelled.json           it is cancelled; by `queue cancel`
    run.log                  its output, if it has no model_dir that would hold it

The status of a job is a function of these files, and of which processes live.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import os
import re
import signal
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.base.files import local_files
from official_ext.base.files import paths

JOB = 'job.json'
PAUSED = 'paused.json'
CANCELLED = 'cancelled.json'
LOG = 'run.log'

# How an attempt ended.
EXITED = 'exited'  # With the exit status that `status` says, or minus the number of a signal.
LOST = 'lost'  # Its end was not seen: the machine was restarted, or its runner was killed.
REFUSED = 'refused'  # It could not be started, for the reason that `error` says.
NOT_STARTED = 'not_started'  # The job was cancelled before.


class DamagedFileError(Exception):
  """A file of the queue holds something else than it should: it was edited, or the disk is broken."""


@dataclasses.dataclass(frozen=True)
class Job:
  """The command of a job.

  Attributes:
    number: names the job in its queue; a later job has a higher one.
    folder: of its files.
    command: the program and its arguments.
    cwd: the folder in which it runs.
    model_dir: the run's folder, absolute or remote; '' if the command has none.
    mode: of the command in model_dir; 'train' for all that train.
    log: the file that its output is added to.
    run_files: files in model_dir about its processes, by their kind: 'started', 'started_lock', 'stop',
      'record'; see `run_processes.run_files`. {} if model_dir is remote, or none.
    note: the contents of `started` about the command.
    gpus: how many it needs; None: one, if the dispatcher has any.
    max_restarts: how often it is retried after it was preempted or lost.
    added: when, in UTC.
  """

  number: int
  folder: str
  command: tuple[str, ...]
  cwd: str
  model_dir: str
  mode: str
  log: str
  run_files: Mapping[str, str]
  note: Mapping[str, Any]
  gpus: int | None
  max_restarts: int
  added: str

  def values(self) -> dict[str, Any]:
    """The contents of job.json."""
    values = dataclasses.asdict(self)
    return {name: value for name, value in values.items() if name not in ('number', 'folder')}


@dataclasses.dataclass(frozen=True)
class Attempt:
  """One start of a job.

  Attributes:
    number: from 1.
    path: the prefix of its files.
    token: unique among all attempts ever.
    gpus: the value of CUDA_VISIBLE_DEVICES; None leaves the variable unchanged.
    process: the one of the command; None if it has not been started.
    runner: the process that waits for its end.
    ended: how it ended, an entry `outcome` and its details; None if that is not known (yet).
    times: 'ordered', 'started' and 'ended', as far as they have happened, in UTC.
  """

  number: int
  path: str
  token: str
  gpus: tuple[str, ...] | None
  process: processes.ProcessIdentity | None = None
  runner: processes.ProcessIdentity | None = None
  ended: Mapping[str, Any] | None = None
  times: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def lock_path(self) -> str:
    """The file whose lock is required to start the command."""
    return f'{self.path}.lock'


def read_job(folder: str) -> Job | None:
  """The job in a folder; None if it is missing, or not written yet.

  Raises:
    DamagedFileError: job.json is invalid.
    OSError: it cannot be read.
  """
  path = os.path.join(folder, JOB)
  values = read_json(path)
  if values is None:
    return None
  try:
    command = tuple(values.pop('command'))
    job = Job(number=int(os.path.basename(folder)), folder=folder, command=command, **values)
  except (KeyError, TypeError, ValueError):
    raise DamagedFileError(f'{path}: is not a job') from None
  if not command or not all(isinstance(word, str) for word in command) or not isinstance(job.max_restarts, int):
    raise DamagedFileError(f'{path}: is not a job')
  return job


def order_attempt(job: Job, number: int, token: str, gpus: tuple[str, ...] | None) -> Attempt:
  """Writes the order to start a job: from here on the attempt counts, and has its slot.

  Raises:
    OSError: it cannot be written, and does not count.
  """
  attempt = Attempt(number, attempt_path(job.folder, number), token, gpus)
  write_json(f'{attempt.path}.json', {'token': token, 'gpus': gpus, 'time': json_values.timestamp_now()})
  return attempt


def read_attempt(folder: str, number: int) -> Attempt | None:
  """An attempt of the job in a folder; None if it was not ordered.

  Raises:
    DamagedFileError: a file is invalid.
    OSError: one cannot be read.
  """
  path = attempt_path(folder, number)
  order, started, ended = (read_json(f'{path}{suffix}.json') for suffix in ('', '.started', '.ended'))
  if order is None:
    return None
  times = {'ordered': order, 'started': started, 'ended': ended}
  try:
    attempt = Attempt(
      number=number,
      path=path,
      token=order['token'],
      gpus=None if order['gpus'] is None else tuple(order['gpus']),
      process=processes.parse_identity(started['process']) if started else None,
      runner=processes.parse_identity(started['runner']) if started else None,
      ended=ended,
      times={name: values['time'] for name, values in times.items() if values},
    )
  except (KeyError, TypeError, AttributeError):
    attempt = None
  if attempt is None or (started and attempt.process is None):
    raise DamagedFileError(f'{path}.json: is not an attempt, or a file beside it is invalid')
  return attempt


def attempt_path(folder: str, number: int) -> str:
  """The prefix of an attempt's files."""
  return os.path.join(folder, f'attempt-{number}')


def is_running(attempt: Attempt) -> bool:
  """Whether the command, or its runner, may still be running, for an attempt that has started.

  A process that cannot be seen from here, as in another container, is found by its lock.
  """
  for process in (attempt.process, attempt.runner):
    alive = None if process is None else processes.is_alive(process)
    if alive or (alive is None and local_files.is_locked(attempt.lock_path)):
      return True
  return False


def end_attempt(path: str, outcome: str, **values: Any) -> None:
  """Writes how an attempt ended.

  Args:
    path: of the attempt.
    outcome: EXITED, LOST, REFUSED or NOT_STARTED.
    **values: its details.

  Raises:
    OSError: it cannot be written.
  """
  write_json(f'{path}.ended.json', {'outcome': outcome, **values, 'time': json_values.timestamp_now()})


def end_unstarted(attempt: Attempt) -> bool:
  """Ends an attempt that was ordered, unless it has started or is being started. Returns whether it is over now.

  A runner that comes later finds the end, and starts nothing.

  Raises:
    OSError: the end cannot be written.
  """
  try:
    with local_files.FileLock(attempt.lock_path, 0.0):
      if not attempt_has_begun(attempt.path):
        end_attempt(attempt.path, NOT_STARTED)
      return os.path.exists(f'{attempt.path}.ended.json')
  except TimeoutError:
    return False


def attempt_has_begun(attempt_path: str) -> bool:
  """Whether an attempt has started, or has ended before."""
  return any(os.path.exists(f'{attempt_path}.{name}.json') for name in ('started', 'ended'))


def write_json(path: str, values: Mapping[str, Any]) -> None:
  """Writes a JSON object, whole and synced, or raises OSError."""
  paths.write_atomically(path, json_values.encode(values))


def read_json(path: str) -> dict[str, Any] | None:
  """A JSON object; None if there is no such file.

  Raises:
    DamagedFileError: the file holds something else.
    OSError: it cannot be read.
  """
  try:
    return json_values.load_file(path)
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, local_files.UnreadableError) as error:
    raise DamagedFileError(f'{path}: holds no JSON object') from error


@contextlib.contextmanager
def locked(path: str, patience_seconds: float, busy: Callable[[], str]) -> Iterator[local_files.FileLock]:
  """A context in which no other process is, also on file systems that would let all in.

  Args:
    path: the file whose lock is held; it is made if it is missing.
    patience_seconds: how long to wait for another process.
    busy: describes in a line the work of the process that has the lock.

  Raises:
    UserError: another process has it, or the file system has no locks.
    OSError: the file cannot be opened.
  """
  with contextlib.ExitStack() as stack:
    try:
      lock = stack.enter_context(local_files.FileLock(path, patience_seconds))
    except TimeoutError:
      raise errors.StateError(busy()) from None
    if not local_files.try_lock(lock.descriptor):
      raise errors.UserError(f'{path}: its file system has no locks, and a queue rests on them; use a local disk')
    yield lock


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
  """Turns a failure of storage, or a damaged file, inside its block into the one line that a command prints."""
  try:
    yield
  except DamagedFileError as error:
    raise errors.UserError(f'{error}; move it away') from error
  except OSError as error:
    reason = error.strerror or str(error)
    raise errors.StorageError(f'{error.filename or what}: {reason}') from error


WAITING = ('queued', 'paused')
HOLDING = ('starting', 'running', 'stopping')  # These have a slot, and their GPUs.
OVER = ('finished', 'failed', 'cancelled')  # These do not change.
STATUSES = (*WAITING, *HOLDING, *OVER, 'unreadable')

_PREEMPTED = errors.PreemptedError.exit_status
_MEANINGS = {
  errors.UserError.exit_status: 'a mistake in the command or its configuration',
  errors.StateError.exit_status: 'the state of the run or of its folder forbids it',
  errors.DivergedError.exit_status: 'diverged',
  _PREEMPTED: 'preempted',
  127: 'no such program, or it cannot be run',
}
_ATTEMPT = re.compile(r'attempt-([1-9]\d*)\.json')
_ATTEMPT_LOCK = re.compile(r'attempt-[1-9]\d*\.lock')


@dataclasses.dataclass(frozen=True)
class JobState:
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
  job: Job | None = None
  attempt: Attempt | None = None
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


def read_state(folder: str, job: Job | None = None) -> JobState | None:
  """How the job in a folder stands; None if it does not exist, or not yet.

  Args:
    folder: of the job.
    job: read there before; it never changes.

  Raises:
    OSError: something cannot be read.
  """
  number = int(os.path.basename(folder))
  try:
    job = job or read_job(folder)
    if job is None:
      return None
    names = os.listdir(folder)
    attempts = [int(match[1]) for name in names if (match := _ATTEMPT.fullmatch(name))]
    attempt = read_attempt(folder, max(attempts)) if attempts else None
    return _state_of(job, attempt, CANCELLED in names, PAUSED in names)
  except DamagedFileError as error:  # The lock still shows whether it runs.
    held = any(
      _ATTEMPT_LOCK.fullmatch(name) and local_files.is_locked(os.path.join(folder, name)) for name in os.listdir(folder)
    )
    return JobState(number, 'unreadable', f'{error}; nothing is started for it', has_slot=held)
  except FileNotFoundError:  # Deleted meanwhile.
    return None


def _state_of(job: Job, attempt: Attempt | None, cancelled: bool, paused: bool) -> JobState:
  if attempt is None:
    status = 'cancelled' if cancelled else 'paused' if paused else 'queued'
    return JobState(job.number, status, job=job)
  ended = attempt.ended
  if ended is None and attempt.process is None:
    return JobState(job.number, 'stopping' if cancelled else 'starting', '', job, attempt, has_slot=True)
  if ended is None:
    if is_running(attempt):
      return JobState(job.number, 'stopping' if cancelled else 'running', '', job, attempt, has_slot=True)
    # It may have written its end after that was looked for, and before it ended.
    attempt = read_attempt(job.folder, attempt.number) or attempt
    ended = attempt.ended or {'outcome': LOST}
  return _ended(job, attempt, ended, cancelled, paused)


def _ended(job: Job, attempt: Attempt, ended: Mapping[str, Any], cancelled: bool, paused: bool) -> JobState:
  exit_status = ended.get('status')
  reason = describe_end(ended)
  if ended.get('outcome') == EXITED and exit_status == 0:
    return JobState(job.number, 'finished', '', job, attempt, 0)
  if ended.get('stopped'):
    reason = f'a stop was requested, then {reason}'
  if cancelled or ended.get('stopped'):
    return JobState(job.number, 'cancelled', reason, job, attempt, exit_status)
  if not is_passing(ended):
    return JobState(job.number, 'failed', reason, job, attempt, exit_status)
  if attempt.number > job.max_restarts:
    return JobState(job.number, 'failed', f'{reason}, after {_restarts(attempt.number - 1)}', job, attempt, exit_status)
  again = 'will be retried' + (' when it is resumed' if paused else '')
  return JobState(job.number, 'paused' if paused else 'queued', f'{reason}; {again}', job, attempt, exit_status)


def is_passing(ended: Mapping[str, Any]) -> bool:
  """Whether an attempt ended by something that may not happen the next time.

  That is: it was preempted or hung (75), killed by a signal, also if a shell reports it (128 and the signal's number),
  or lost. Any other end would happen again.
  """
  if ended.get('outcome') == LOST:
    return True
  status = ended.get('status')
  return isinstance(status, int) and (status == _PREEMPTED or status < 0 or 128 < status < 128 + signal.NSIG)


def describe_end(ended: Mapping[str, Any]) -> str:
  """How an attempt ended, in words."""
  if ended.get('outcome') == LOST:
    return 'its process was lost'
  if ended.get('outcome') == NOT_STARTED:
    return 'before it was started'
  if ended.get('outcome') == REFUSED:
    return str(ended.get('error'))
  status = ended.get('status')
  if isinstance(status, int) and (status < 0 or 128 < status < 128 + signal.NSIG):
    return f'killed by {processes.signal_name(-status if status < 0 else status - 128)}'
  meaning = _MEANINGS.get(status)  # type: ignore[arg-type]
  line = ended.get('last_line')
  return f'ended with status {status}' + (f' ({meaning})' if meaning else '') + (f': {line}' if line else '')


def in_order(states: Sequence[JobState], order: Sequence[int]) -> list[JobState]:
  """Jobs in the order in which they are to be started.

  Args:
    states: of the jobs.
    order: numbers of jobs, of which some may be gone; jobs that it does not name follow as they were added.
  """
  ranks = {number: rank for rank, number in enumerate(order)}
  return sorted(states, key=lambda state: (ranks.get(state.number, len(ranks)), state.number))


def _restarts(count: int) -> str:
  return f'{count} restart{"" if count == 1 else "s"}'
