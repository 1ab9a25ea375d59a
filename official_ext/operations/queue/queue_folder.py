"""The queue of a folder of runs: its jobs, their status and their order.

It is the folder `.queue` in the folder of the runs:

    jobs/7/            job 7: see queued_jobs.py
    order.json         the order of jobs when one was moved; later ones follow, as they were added
    paused.json        no job is started while it exists
    changes.lock       held while a command changes one of these (queue_changes.py)
    dispatcher.lock    held by the one dispatcher; its content names the process
    more/              locks of processes that will add jobs, such as the controllers of sweeps

Nothing is kept in memory: any number of processes may read and change a queue at the same time.
"""

from collections.abc import Iterator, Sequence
import contextlib
import hashlib
import os
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import run_processes

NAME = '.queue'


class Queue:
  """The queue of a folder of runs.

  Attributes:
    runs_dir: that folder.
    folder: of the queue's files. Their paths follow: jobs_dir, order_file, lock_path and log_path (of the dispatcher).
  """

  def __init__(self, runs_dir: str):
    """Makes nothing: a queue begins with its first job.

    Args:
      runs_dir: the folder of the runs, which must be local.

    Raises:
      UserError: it is remote.
    """
    runs_dir = paths.expand_home(runs_dir, 'RUNS_DIR')
    if paths.is_remote(runs_dir):
      raise errors.UserError(f'{runs_dir}: a queue needs a local folder, for it rests on locks; name one')
    self.runs_dir = runs_dir
    self.folder = os.path.join(os.path.abspath(runs_dir), NAME)
    self.jobs_dir = os.path.join(self.folder, 'jobs')
    self.order_file = os.path.join(self.folder, 'order.json')
    self.lock_path = os.path.join(self.folder, 'dispatcher.lock')
    self.log_path = os.path.join(self.folder, 'dispatcher.log')
    self._more_dir = os.path.join(self.folder, 'more')
    self._over: dict[int, queued_jobs.JobState] = {}  # These never change.
    self._jobs: dict[int, queued_jobs.Job] = {}  # Nor do these.

  def make(self) -> None:
    """Makes the folders of the queue, if they are missing; only this user may enter them.

    Raises:
      OSError: they cannot be made.
    """
    paths.make_folder(self.folder, 0o700)  # A user who may write into it can have the dispatcher run any program.
    paths.make_folder(self.jobs_dir)

  def states(self) -> list[queued_jobs.JobState]:
    """How all jobs stand, as they were added.

    Raises:
      StorageError: something cannot be read.
    """
    with queued_jobs.explaining(self.folder):
      return [state for number in self.numbers() if (state := self.state(number)) is not None]

  def state(self, number: int) -> queued_jobs.JobState | None:
    """How a job stands; None if it does not exist."""
    if number in self._over:
      return self._over[number]
    state = queued_jobs.read_state(self.job_folder(number), self._jobs.get(number))
    if state is not None and state.job is not None:
      self._jobs[number] = state.job
      if state.status in queued_jobs.OVER:
        self._over[number] = state
    return state

  def numbers(self) -> list[int]:
    """The numbers that were given to jobs, in their order."""
    return sorted(int(name) for name in paths.names(self.jobs_dir) if name.isdigit())

  def job_folder(self, number: int) -> str:
    """The folder of a job's files."""
    return os.path.join(self.jobs_dir, str(number))

  def waiting(self, states: Sequence[queued_jobs.JobState]) -> list[queued_jobs.JobState]:
    """The waiting jobs of some, in the order in which they will be started."""
    waiting = [state for state in states if state.status in queued_jobs.WAITING]
    return queued_jobs.in_order(waiting, self.order())

  def order(self) -> list[int]:
    """The numbers of jobs in the requested order; some may be over, and later ones are missing."""
    try:
      values = queued_jobs.read_json(self.order_file) or {}
    except queued_jobs.DamagedFileError:  # The order is lost; nothing else is.
      values = {}
    return [number for number in values.get('order', []) if isinstance(number, int)]

  def find(self, name: str) -> queued_jobs.JobState:
    """The job that a user names: by its number, or by its run's folder, in runs_dir or not.

    Of several jobs with the same folder the newest is meant: the others are over.

    Raises:
      UserError: it does not exist.
      StorageError: something cannot be read.
    """
    name = paths.local(name)
    folders = {name.rstrip('/'), os.path.realpath(name), os.path.realpath(os.path.join(self.runs_dir, name))}
    for state in reversed(self.states()):
      if str(state.number) == name or (not name.isdigit() and state.job and state.job.model_dir in folders):
        return state
    raise errors.UserError(
      f'{name}: no such job in {self.runs_dir}; `official-ext queue list {self.runs_dir}` shows it'
    )

  @property
  def is_paused(self) -> bool:
    """Whether nothing is to be started."""
    return os.path.exists(os.path.join(self.folder, queued_jobs.PAUSED))

  @contextlib.contextmanager
  def expecting_more(self, who: str) -> Iterator[None]:
    """More jobs will be added: until it is left, or its process ends, the queue does not count as empty.

    Args:
      who: identifies the process that adds them.

    Raises:
      OSError: that cannot be noted. TimeoutError: another process is the same.
    """
    paths.make_folder(self._more_dir)
    name = hashlib.sha256(who.encode('utf-8', 'surrogateescape')).hexdigest()[:16]
    with local_files.FileLock(os.path.join(self._more_dir, f'{name}.lock')):
      yield

  def expects_more(self) -> bool:
    """Whether a process will add jobs.

    Raises:
      StorageError: that cannot be read.
    """
    with queued_jobs.explaining(self.folder):
      return any(local_files.is_locked(os.path.join(self._more_dir, name)) for name in paths.names(self._more_dir))

  def dispatcher(self) -> dict[str, Any] | None:
    """The dispatcher's own entry (`pid`, `host`, `slots`, `gpus`, `since`); None if none runs.

    Raises:
      StorageError: that cannot be read.
    """
    with queued_jobs.explaining(self.folder):
      if not local_files.is_locked(self.lock_path):
        return None
      try:
        return json_values.load_file(self.lock_path)
      except ValueError:  # It is being written.
        return {}

  def dispatch_words(self, slots: int | None = None, until_empty: bool = False) -> list[str]:
    """The words of the command that dispatches this queue, after `official-ext`."""
    words = ['queue', 'run', os.path.abspath(self.runs_dir)]
    return words + ([f'--slots={slots}'] if slots else []) + (['--until_empty'] if until_empty else [])

  def start_dispatcher(self, slots: int | None = None, until_empty: bool = False) -> int | None:
    """Starts a dispatcher in the background, unless there is one.

    Args:
      slots: how many jobs may run at once; None: the number of GPUs, or 1.
      until_empty: it ends when no job waits or runs.

    Returns:
      The number of its process, which dispatches now, or has ended as nothing was to be done; None if there was one.

    Raises:
      StorageError: it has not started.
    """
    if self.dispatcher() is not None:
      return None
    with queued_jobs.explaining(self.log_path):
      self.make()
    words, works = self.dispatch_words(slots, until_empty), lambda: self.dispatcher() is not None
    return run_processes.start_background(words, self.log_path, works, (0, 1) if until_empty else ())


def queue_as_dict(queue: Queue, max_over: int | None = None) -> dict[str, Any]:
  """The queue as it stands: the jobs that are over, the running ones, the waiting ones in their order.

  Args:
    queue: the queue.
    max_over: the maximum number of finished jobs to list, the latest; None: all.

  Returns:
    `paused`; `dispatcher`, its own entry, or None; `slots_in_use`; `num_over`; `jobs`.

  Raises:
    StorageError: something cannot be read.
  """
  states = queue.states()
  waiting = queue.waiting(states)
  over = [state for state in states if state.status in queued_jobs.OVER]
  rest = [state for state in states if state not in over and state not in waiting]
  shown = over if max_over is None else over[len(over) - min(max_over, len(over)) :]
  return {
    'paused': queue.is_paused,
    'dispatcher': queue.dispatcher(),
    'slots_in_use': sum(state.has_slot for state in states),
    'num_over': len(over),
    'jobs': [_job_as_dict(state, waiting) for state in (*shown, *rest, *waiting)],
  }


def _job_as_dict(state: queued_jobs.JobState, waiting: Sequence[queued_jobs.JobState]) -> dict[str, Any]:
  """A job as JSON values."""
  attempt, job = state.attempt, state.job
  return {
    'job': state.number,
    'status': state.status,
    'reason': state.reason,
    'position': waiting.index(state) + 1 if state in waiting else None,
    'attempt': attempt.number if attempt else 0,
    'max_restarts': job.max_restarts if job else None,
    'exit_status': state.exit_status,
    'model_dir': job.model_dir or None if job else None,
    'log': job.log if job else None,
    'command': job.note['command'] if job else None,
    'pid': attempt.process.pid if attempt and attempt.process else None,
    'gpus': attempt.gpus if attempt else None,
    'added': job.added if job else None,
    **{name: attempt.times.get(name) if attempt else None for name in ('ordered', 'started', 'ended')},
  }
