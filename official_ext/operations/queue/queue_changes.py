"""The user's operations on a queue: add, move, pause, resume and cancel jobs.

Each is one file that is written whole, under a lock that keeps two commands apart. None needs a dispatcher: the next
one finds the request.
"""

from collections.abc import Iterator, Sequence
import contextlib
import os

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import launcher
from official_ext.base.files import paths
from official_ext.operations.queue import queue_folder
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses as statuses_lib

MAX_RESTARTS = 3
_NOT_OVER = (*queued_jobs.WAITING, *queued_jobs.HOLDING)
_PATIENCE_SECONDS = 10.0


def add(
  queue: queue_folder.Queue,
  command: Sequence[str],
  cwd: str = '',
  model_dir: str | None = None,
  gpus: int | None = None,
  max_restarts: int = MAX_RESTARTS,
  place: str = 'last',
  neighbour: int | None = None,
) -> queued_jobs.Job:
  """Adds a job, and makes the queue if necessary.

  Args:
    queue: the queue.
    command: the program and its arguments.
    cwd: the folder in which it will run; '' for the present one.
    model_dir: the run's folder; None: the command's, `--model_dir=FOLDER`.
    gpus: how many it needs; None: one, if there are any.
    max_restarts: how often it is retried after it was preempted or lost.
    place: see `move`.
    neighbour: see `move`.

  Returns:
    The job.

  Raises:
    UserError: another job that is not over has this model_dir, or a run that is not the queue's is in it.
    StorageError: it cannot be written, and does not exist.
  """
  cwd = os.path.abspath(cwd or '.')
  folder = _absolute(model_dir if model_dir is not None else value_of(command, 'model_dir'), cwd)
  mode = value_of(command, 'mode')
  mode = mode if mode and 'train' not in mode else 'train'
  with _changing(queue):
    _refuse_used(queue, folder, mode)
    if neighbour is not None:
      _expect(queue, neighbour, queued_jobs.WAITING, 'has no place in the order')
    number = max([0, *queue.numbers()]) + 1
    job = _job(queue, number, command, cwd, folder, mode, gpus, max_restarts)
    paths.make_folder(job.folder)
    try:
      if place != 'last':  # First, as it might be started before it gets its place.
        _write_order(queue, number, place, neighbour)
      queued_jobs.write_json(os.path.join(job.folder, queued_jobs.JOB), job.values())
    except OSError:
      with contextlib.suppress(OSError):  # The file may exist, and the disk may not have stored it.
        paths.remove(os.path.join(job.folder, queued_jobs.JOB))
        os.rmdir(job.folder)
      raise
  return job


def move(queue: queue_folder.Queue, number: int, place: str, neighbour: int | None = None) -> None:
  """Moves a job that waits.

  Args:
    queue: the queue.
    number: of the job.
    place: 'first', 'last', 'before' or 'after'.
    neighbour: the job that it comes before or after.

  Raises:
    UserError: one of them does not wait.
    StorageError: the order cannot be written, and is unchanged.
  """
  with _changing(queue):
    _expect(queue, number, queued_jobs.WAITING, 'cannot be moved')
    if neighbour is not None:
      _expect(queue, neighbour, queued_jobs.WAITING, 'has no place in the order')
    if neighbour != number:
      _write_order(queue, number, place, neighbour)


def pause(queue: queue_folder.Queue, number: int | None = None) -> None:
  """Lets no job be started, or not this one, until it is resumed; running jobs continue.

  Raises:
    UserError: the job does not wait.
    StorageError: that cannot be written.
  """
  with _changing(queue):
    if number is not None:
      _expect(queue, number, queued_jobs.WAITING, 'cannot be paused; `queue cancel` stops it')
    queued_jobs.write_json(_pause_file(queue, number), {'time': json_values.timestamp_now()})


def resume(queue: queue_folder.Queue, number: int | None = None) -> None:
  """Reverts `pause`.

  Raises:
    UserError: there is no such job.
    StorageError: that cannot be done.
  """
  with _changing(queue):
    if number is not None:
      _expect(queue, number, queued_jobs.STATUSES, '')
    paths.remove(_pause_file(queue, number))


def cancel(queue: queue_folder.Queue, number: int, kill: bool = False) -> None:
  """Takes a job out of the queue. If it runs, it gets SIGTERM, saves and stops, and is not retried.

  Args:
    queue: the queue.
    number: of the job.
    kill: ends it at once, by SIGKILL.

  Raises:
    UserError: it is over.
    StorageError: that cannot be written.
  """
  with _changing(queue):
    state = _expect(queue, number, _NOT_OVER, 'there is nothing to cancel')
    queued_jobs.write_json(
      os.path.join(queue.job_folder(number), queued_jobs.CANCELLED), {'time': json_values.timestamp_now(), 'kill': kill}
    )
    # The runner of an attempt that has started sees the file. One that comes late finds the attempt ended.
    if state.status in queued_jobs.HOLDING and state.attempt is not None and state.attempt.process is None:
      queued_jobs.end_unstarted(state.attempt)


def value_of(command: Sequence[str], name: str) -> str:
  """The value of a flag in a command, such as its model_dir; '' if it is missing."""
  for index, word in enumerate(command):
    flag, equals, value = word.partition('=')
    if flag in (f'--{name}', f'-{name}'):
      return value if equals else ''.join(command[index + 1 : index + 2])
  return ''


def _absolute(model_dir: str, cwd: str) -> str:
  model_dir = paths.expand_home(model_dir, '--model_dir')
  if not model_dir or paths.is_remote(model_dir):
    return model_dir.rstrip('/')
  return os.path.realpath(os.path.join(cwd, model_dir))


def _job(
  queue: queue_folder.Queue,
  number: int,
  command: Sequence[str],
  cwd: str,
  model_dir: str,
  mode: str,
  gpus: int | None,
  max_restarts: int,
) -> queued_jobs.Job:
  folder = queue.job_folder(number)
  log, run_files = os.path.join(folder, queued_jobs.LOG), {}
  if model_dir and not paths.is_remote(model_dir):
    run = run_folders.Run(model_dir, os.path.basename(model_dir))
    log = run.log_path(mode)
    run_files = run_processes.run_files(run, mode)
  return queued_jobs.Job(
    number=number,
    folder=folder,
    command=tuple(command),
    cwd=cwd,
    model_dir=model_dir,
    mode=mode,
    log=log,
    run_files=run_files,
    note=launcher.command_note(command, cwd),
    gpus=gpus,
    max_restarts=max_restarts,
    added=json_values.timestamp_now(),
  )


def _refuse_used(queue: queue_folder.Queue, model_dir: str, mode: str) -> None:
  """Refuses the folder of a job that is not over, or of another run that lives."""
  if not model_dir:
    return
  for state in queue.states():
    if state.job and (state.job.model_dir, state.job.mode) == (model_dir, mode) and state.status in _NOT_OVER:
      raise errors.StateError(
        f'--model_dir={model_dir}: job {state.number}, which is {state.status}, has this folder; wait for it or '
        'cancel it, or choose another folder'
      )
  if not paths.is_remote(model_dir) and statuses_lib.is_alive(run_folders.Run(model_dir, ''), mode):
    raise errors.StateError(
      f'--model_dir={model_dir}: a run lives in this folder; wait for it or stop it, or choose another folder'
    )


def _pause_file(queue: queue_folder.Queue, number: int | None) -> str:
  return os.path.join(queue.folder if number is None else queue.job_folder(number), queued_jobs.PAUSED)


def _expect(queue: queue_folder.Queue, number: int, statuses: Sequence[str], refusal: str) -> queued_jobs.JobState:
  state = queue.state(number)
  if state is None:
    raise errors.UserError(f'job {number}: there is none in {queue.runs_dir}')
  if state.status not in statuses:
    raise errors.StateError(f'job {number}: is {state.status}: {refusal}')
  return state


def _write_order(queue: queue_folder.Queue, number: int, place: str, neighbour: int | None) -> None:
  """Writes the order of all jobs that are not over: one that runs may come back, and has its place then."""
  states = [state for state in queue.states() if state.status in _NOT_OVER and state.number != number]
  states = queued_jobs.in_order(states, queue.order())
  order = [state.number for state in states]
  if neighbour is not None:
    at = order.index(neighbour) + (place == 'after')
  elif place == 'last':
    at = len(order)
  else:
    at = next((at for at, state in enumerate(states) if state.status in queued_jobs.WAITING), len(order))
  order.insert(at, number)
  queued_jobs.write_json(queue.order_file, {'order': order})


@contextlib.contextmanager
def _changing(queue: queue_folder.Queue) -> Iterator[None]:
  """Makes the queue's folder, and holds the lock of those who change something in it."""
  with queued_jobs.explaining(queue.folder):
    queue.make()
    busy = f'{queue.folder}: another command has been changing it for {_PATIENCE_SECONDS:g} s; see its output'
    with queued_jobs.locked(os.path.join(queue.folder, 'changes.lock'), _PATIENCE_SECONDS, lambda: busy):
      yield
