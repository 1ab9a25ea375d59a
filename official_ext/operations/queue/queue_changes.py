"""The user's operations on a queue: add, move, pause, resume and cancel jobs. No TensorFlow.

Each is one file that is written whole, under a lock that keeps two commands apart. None needs a dispatcher: the next
one finds the request.
"""

from collections.abc import Iterator, Sequence
import contextlib
import os
import shlex

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base.files import moments
from official_ext.base.files import paths
from official_ext.base.run_folder import run_status
from official_ext.operations.queue import job_files
from official_ext.operations.queue import job_status
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import starting

MAX_RESTARTS = 3
_NOT_OVER = (*job_status.WAITING, *job_status.HOLDING)
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
) -> job_files.Job:
  """Adds a job, and makes the queue if there is none.

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
      _expect(queue, neighbour, job_status.WAITING, 'has no place in the order')
    number = max([0, *queue.numbers()]) + 1
    job = _job(queue, number, command, cwd, folder, mode, gpus, max_restarts)
    paths.make_folder(job.folder)
    try:
      if place != 'last':  # First, as it might be started before it gets its place.
        _write_order(queue, number, place, neighbour)
      job_files.write(os.path.join(job.folder, job_files.JOB), job.values())
    except OSError:
      with contextlib.suppress(OSError):  # The file may exist, and the disk may not have stored it.
        paths.remove(os.path.join(job.folder, job_files.JOB))
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
    _expect(queue, number, job_status.WAITING, 'cannot be moved')
    if neighbour is not None:
      _expect(queue, neighbour, job_status.WAITING, 'has no place in the order')
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
      _expect(queue, number, job_status.WAITING, 'cannot be paused; `queue cancel` stops it')
    job_files.write(_pause_file(queue, number), {'time': moments.now()})


def resume(queue: queue_folder.Queue, number: int | None = None) -> None:
  """Reverts `pause`.

  Raises:
    UserError: there is no such job.
    StorageError: that cannot be done.
  """
  with _changing(queue):
    if number is not None:
      _expect(queue, number, job_status.STATUSES, '')
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
    job_files.write(os.path.join(queue.job_folder(number), job_files.CANCELLED), {'time': moments.now(), 'kill': kill})
    # The runner of an attempt that has started sees the file. One that comes late finds the attempt ended.
    if state.status in job_status.HOLDING and state.attempt is not None and state.attempt.process is None:
      job_files.end_unstarted(state.attempt)


def value_of(command: Sequence[str], name: str) -> str:
  """The value of a flag in a command, such as its model_dir; '' if it is missing."""
  for index, word in enumerate(command):
    flag, equals, value = word.partition('=')
    if flag in (f'--{name}', f'-{name}'):
      return value if equals else ''.join(command[index + 1 : index + 2])
  return ''


def shown(command: Sequence[str]) -> str:
  """A command as a line for people, without passwords."""
  return credentials.mask(shlex.join(command))


def _absolute(model_dir: str, cwd: str) -> str:
  if not model_dir or paths.is_remote(model_dir):
    return model_dir.rstrip('/')
  return os.path.realpath(os.path.join(cwd, paths.expand_home(model_dir, '--model_dir')))


def _job(
  queue: queue_folder.Queue,
  number: int,
  command: Sequence[str],
  cwd: str,
  model_dir: str,
  mode: str,
  gpus: int | None,
  max_restarts: int,
) -> job_files.Job:
  folder = queue.job_folder(number)
  log, run_files = os.path.join(folder, job_files.LOG), {}
  if model_dir and not paths.is_remote(model_dir):
    run = run_folder.Run(model_dir, os.path.basename(model_dir))
    log = run.log_path(mode)
    run_files = {name: run.file_of_mode(name, 'json', mode) for name in ('started', 'stop')}
    run_files |= {'started_lock': run.file(starting.LOCK), 'record': run_status.path_of(model_dir, mode)}
  return job_files.Job(
    number=number,
    folder=folder,
    command=tuple(command),
    cwd=cwd,
    model_dir=model_dir,
    mode=mode,
    log=log,
    run_files=run_files,
    note={
      'command': shown(command),
      'is_masked': any(credentials.mask(word) != word for word in command),
      'cwd': cwd,
    },
    gpus=gpus,
    max_restarts=max_restarts,
    added=moments.now(),
  )


def _refuse_used(queue: queue_folder.Queue, model_dir: str, mode: str) -> None:
  """Refuses the folder of a job that is not over, or of another run that lives."""
  if not model_dir:
    return
  for state in queue.states():
    if state.job and (state.job.model_dir, state.job.mode) == (model_dir, mode) and state.status in _NOT_OVER:
      raise errors.UserError(
        f'--model_dir={model_dir}: job {state.number}, which is {state.status}, has this folder; wait for it or '
        'cancel it, or choose another folder'
      )
  if not paths.is_remote(model_dir) and judged_status.is_alive(run_folder.Run(model_dir, ''), mode):
    raise errors.UserError(
      f'--model_dir={model_dir}: a run lives in this folder; wait for it or stop it, or choose another folder'
    )


def _pause_file(queue: queue_folder.Queue, number: int | None) -> str:
  return os.path.join(queue.folder if number is None else queue.job_folder(number), job_files.PAUSED)


def _expect(queue: queue_folder.Queue, number: int, statuses: Sequence[str], refusal: str) -> job_status.State:
  state = queue.state(number)
  if state is None:
    raise errors.UserError(f'job {number}: there is none in {queue.runs_dir}')
  if state.status not in statuses:
    raise errors.UserError(f'job {number}: is {state.status}: {refusal}')
  return state


def _write_order(queue: queue_folder.Queue, number: int, place: str, neighbour: int | None) -> None:
  """Writes the order of all jobs that are not over: one that runs may come back, and has its place then."""
  states = [state for state in queue.states() if state.status in _NOT_OVER and state.number != number]
  states = job_status.in_order(states, queue.order())
  order = [state.number for state in states]
  if neighbour is not None:
    at = order.index(neighbour) + (place == 'after')
  elif place == 'last':
    at = len(order)
  else:
    at = next((at for at, state in enumerate(states) if state.status in job_status.WAITING), len(order))
  order.insert(at, number)
  job_files.write(queue.order_file, {'order': order})


@contextlib.contextmanager
def _changing(queue: queue_folder.Queue) -> Iterator[None]:
  """Makes the queue's folder, and holds the lock of those who change something in it."""
  with job_files.explaining(queue.folder):
    queue.make()
    busy = f'{queue.folder}: another command has been changing it for {_PATIENCE_SECONDS:g} s; see its output'
    with job_files.locked(os.path.join(queue.folder, 'changes.lock'), _PATIENCE_SECONDS, lambda: busy):
      yield
