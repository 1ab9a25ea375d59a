"""The queue of a folder of runs: which jobs there are, how they stand, and in which order. No TensorFlow.

It is the folder `.queue` in the folder of the runs:

    jobs/7/            job 7: see job_files.py
    order.json         the order of jobs when one was moved; later ones follow, as they were added
    paused.json        no job is started while it exists
    changes.lock       held while a command changes one of these (queue_changes.py)
    dispatcher.lock    held by the one dispatcher; its content names the process that is
    more/              locks of processes that will add jobs, such as the controllers of sweeps

Nothing is kept in memory: any number of processes may look at, and change, a queue at the same time.
"""

from collections.abc import Iterator, Sequence
import contextlib
import hashlib
import json
import os
from typing import Any

from official_ext.base import errors
from official_ext.base.files import file_lock
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.operations.queue import job_files
from official_ext.operations.queue import job_status

NAME = '.queue'


class Queue:
  """The queue of a folder of runs.

  Attributes:
    runs_dir: that folder.
    folder: of the queue's files. Their paths follow: jobs_dir, order_file, lock_path (of the dispatcher).
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
    self._more_dir = os.path.join(self.folder, 'more')
    self._over: dict[int, job_status.State] = {}  # These never change.
    self._jobs: dict[int, job_files.Job] = {}  # Nor do these.

  def make(self) -> None:
    """Makes the folders of the queue, if they are missing; only this user may enter them.

    Raises:
      OSError: they cannot be made.
    """
    paths.make_folder(self.folder, 0o700)  # Whoever may write into it can have the dispatcher run any program.
    paths.make_folder(self.jobs_dir)

  def states(self) -> list[job_status.State]:
    """How all jobs stand, as they were added.

    Raises:
      StorageError: something cannot be read.
    """
    with job_files.explaining(self.folder):
      return [state for number in self.numbers() if (state := self.state(number)) is not None]

  def state(self, number: int) -> job_status.State | None:
    """How a job stands; None if there is none."""
    if number in self._over:
      return self._over[number]
    state = job_status.read(self.job_folder(number), self._jobs.get(number))
    if state is not None and state.job is not None:
      self._jobs[number] = state.job
      if state.status in job_status.OVER:
        self._over[number] = state
    return state

  def numbers(self) -> list[int]:
    """The numbers that were given to jobs, in their order."""
    return sorted(int(name) for name in paths.names(self.jobs_dir) if name.isdigit())

  def job_folder(self, number: int) -> str:
    """The folder of a job's files."""
    return os.path.join(self.jobs_dir, str(number))

  def waiting(self, states: Sequence[job_status.State]) -> list[job_status.State]:
    """Of some jobs those that wait, in the order in which they will be started."""
    waiting = [state for state in states if state.status in job_status.WAITING]
    return job_status.in_order(waiting, self.order())

  def order(self) -> list[int]:
    """The numbers of jobs in the requested order; some may be over, and later ones are missing."""
    try:
      values = job_files.read(self.order_file) or {}
    except job_files.DamagedFileError:  # The order is lost; nothing else is.
      values = {}
    return [number for number in values.get('order', []) if isinstance(number, int)]

  def find(self, name: str) -> job_status.State:
    """The job that a user names: by its number, or by its run's folder, in runs_dir or not.

    Of several jobs with the same folder the newest is meant: the others are over.

    Raises:
      UserError: there is none.
      StorageError: something cannot be read.
    """
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
    return os.path.exists(os.path.join(self.folder, job_files.PAUSED))

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
    with file_lock.FileLock(os.path.join(self._more_dir, f'{name}.lock')):
      yield

  def expects_more(self) -> bool:
    """Whether somebody will add jobs.

    Raises:
      StorageError: that cannot be read.
    """
    with job_files.explaining(self.folder):
      return any(file_lock.is_held(os.path.join(self._more_dir, name)) for name in paths.names(self._more_dir))

  def dispatcher(self) -> dict[str, Any] | None:
    """The dispatcher's own entry (`pid`, `host`, `slots`, `gpus`, `since`); None if none runs.

    Raises:
      StorageError: that cannot be read.
    """
    with job_files.explaining(self.folder):
      if not file_lock.is_held(self.lock_path):
        return None
      try:
        values = json.loads(paths.read(self.lock_path, regular_files.MAX_RECORD))
      except (ValueError, RecursionError):  # It is being written.
        values = None
      return values if isinstance(values, dict) else {}
