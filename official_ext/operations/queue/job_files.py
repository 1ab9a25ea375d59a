"""A job of the queue as files: the command, its attempts, and the users' requests. No TensorFlow.

A job is a folder, `jobs/7` for job 7. Each file in it is written once, whole, synced, by one writer:

    job.json                 the command; by `official-ext queue add`. Without it there is no job
    attempt-1.json           the order to start it, with a token and its GPUs; by the dispatcher
    attempt-1.started.json   the process that is, or becomes, the command; by that process (job_runner.py)
    attempt-1.ended.json     how it ended; by its runner, or by the dispatcher where that was lost too
    attempt-1.lock           held from before the start until the runner and the command have ended
    paused.json              it waits; by `queue pause`, which `queue resume` deletes
    cancelled.json           it is cancelled; by `queue cancel`
    run.log                  its output, if it has no model_dir that would hold it

Everything else about a job, its status too, follows from these (job_status.py).
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import json
import os
from typing import Any

from official_ext.base import errors
from official_ext.base.files import file_lock
from official_ext.base.files import moments
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.processes import process_identity

JOB = 'job.json'
PAUSED = 'paused.json'
CANCELLED = 'cancelled.json'
LOG = 'run.log'

# How an attempt ended.
EXITED = 'exited'  # With the exit status that `status` says, or minus the number of a signal.
LOST = 'lost'  # Nobody saw its end: the machine was restarted, or its runner was killed.
REFUSED = 'refused'  # It could not be started, for the reason that `error` says.
NOT_STARTED = 'not_started'  # The job was cancelled before.


class DamagedFileError(Exception):
  """A file of the queue holds something else than it should: somebody has edited it, or the disk is broken."""


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
      'record'; see starting.py. {} if model_dir is remote, or none.
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
  process: process_identity.ProcessIdentity | None = None
  runner: process_identity.ProcessIdentity | None = None
  ended: Mapping[str, Any] | None = None
  times: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def lock_path(self) -> str:
    """The file whose lock nobody may start the command without."""
    return f'{self.path}.lock'


def read_job(folder: str) -> Job | None:
  """The job in a folder; None if it is missing, or not written yet.

  Raises:
    DamagedFileError: job.json is invalid.
    OSError: it cannot be read.
  """
  path = os.path.join(folder, JOB)
  values = read(path)
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
  write(f'{attempt.path}.json', {'token': token, 'gpus': gpus, 'time': moments.now()})
  return attempt


def read_attempt(folder: str, number: int) -> Attempt | None:
  """An attempt of the job in a folder; None if it was not ordered.

  Raises:
    DamagedFileError: a file is invalid.
    OSError: one cannot be read.
  """
  path = attempt_path(folder, number)
  order, started, ended = (read(f'{path}{suffix}.json') for suffix in ('', '.started', '.ended'))
  if order is None:
    return None
  times = {'ordered': order, 'started': started, 'ended': ended}
  try:
    attempt = Attempt(
      number=number,
      path=path,
      token=order['token'],
      gpus=None if order['gpus'] is None else tuple(order['gpus']),
      process=process_identity.parse(started['process']) if started else None,
      runner=process_identity.parse(started['runner']) if started else None,
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
  """Whether the command, or its runner, may still be running; asked of an attempt that has started.

  A process that cannot be seen from here, as in another container, is found by its lock.
  """
  for process in (attempt.process, attempt.runner):
    alive = None if process is None else process_identity.is_alive(process)
    if alive or (alive is None and file_lock.is_held(attempt.lock_path)):
      return True
  return False


def end(path: str, outcome: str, **values: Any) -> None:
  """Writes how an attempt ended.

  Args:
    path: of the attempt.
    outcome: EXITED, LOST, REFUSED or NOT_STARTED.
    **values: its details.

  Raises:
    OSError: it cannot be written.
  """
  write(f'{path}.ended.json', {'outcome': outcome, **values, 'time': moments.now()})


def end_unstarted(attempt: Attempt) -> bool:
  """Ends an attempt that was ordered, unless it has started or is being started. Returns whether it is over now.

  A runner that comes later finds the end, and starts nothing.

  Raises:
    OSError: the end cannot be written.
  """
  try:
    with file_lock.FileLock(attempt.lock_path, 0.0):
      if not has_begun(attempt.path):
        end(attempt.path, NOT_STARTED)
      return os.path.exists(f'{attempt.path}.ended.json')
  except TimeoutError:
    return False


def has_begun(attempt_path: str) -> bool:
  """Whether an attempt has started, or has ended before."""
  return any(os.path.exists(f'{attempt_path}.{name}.json') for name in ('started', 'ended'))


def write(path: str, values: Mapping[str, Any]) -> None:
  """Writes a JSON object, whole and synced, or raises OSError."""
  paths.write_atomically(path, (json.dumps(values, indent=2) + '\n').encode())


def read(path: str) -> dict[str, Any] | None:
  """A JSON object; None if there is no such file.

  Raises:
    DamagedFileError: the file holds something else.
    OSError: it cannot be read.
  """
  try:
    values = json.loads(paths.read(path, regular_files.MAX_RECORD))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, RecursionError, regular_files.UnreadableError):
    values = None
  if not isinstance(values, dict):
    raise DamagedFileError(f'{path}: holds no JSON object')
  return values


@contextlib.contextmanager
def locked(path: str, patience_seconds: float, busy: Callable[[], str]) -> Iterator[file_lock.FileLock]:
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
      lock = stack.enter_context(file_lock.FileLock(path, patience_seconds))
    except TimeoutError:
      raise errors.UserError(busy()) from None
    if not file_lock.try_lock(lock.descriptor):
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
