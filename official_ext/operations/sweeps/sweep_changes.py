"""The user's operations on a sweep: stop it, retry failed points, resume one, delete one.

Each works on files and on the queue, with a controller or without one.
"""

from collections.abc import Sequence
import os
import sys

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses as statuses_lib
from official_ext.operations.runs import trash
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder
from official_ext.operations.sweeps import sweep_points


def add_job(
  folder: sweep_folder.SweepFolder, sweep: sweep_file.SweepFile, record: sweep_folder.PointRecord
) -> queued_jobs.Job:
  """Puts a point into the queue.

  Raises:
    UserError: it exists already, or its run lives.
    StorageError: the queue cannot be written.
  """
  settings = folder.settings()
  program = str(settings.get('program') or '')
  command = sweep_folder.point_command(sweep, program, record.folder, record.proposal.parameters, sys.executable)
  cwd = settings.get('cwd')
  restarts = queue_changes.MAX_RESTARTS if sweep.max_restarts is None else sweep.max_restarts
  return queue_changes.add(
    folder.queue,
    command,
    cwd=cwd if isinstance(cwd, str) else '',
    model_dir=record.folder,
    gpus=sweep.gpus,
    max_restarts=restarts,
  )


def stop(folder: sweep_folder.SweepFolder) -> list[int]:
  """Tries no further points; running ones save and stop, waiting ones are taken out of the queue.

  Returns:
    The points that were under way. They resume with the sweep.
  """
  sweep = folder.load()
  with folder.changing():
    before = folder.stopped()
    found = [point for point in sweep_points.PointReader(folder).read(sweep) if point.status in sweep_points.UNDER_WAY]
    numbers = sorted({*(before or {}).get('points', []), *(point.number for point in found)})
    folder.note_stop(numbers)
    for point in found:
      _end(folder, point)
  return [point.number for point in found]


def resume_stopped(folder: sweep_folder.SweepFolder, sweep: sweep_file.SweepFile) -> list[int]:
  """Reverts `stop`: its points come into the queue again. Returns these points; called within `changing`."""
  stopped = folder.stopped()
  if stopped is None:
    return []
  numbers = stopped.get('points')
  again = []
  for point in sweep_points.PointReader(folder).read(sweep):
    if isinstance(numbers, list) and point.number in numbers and point.status in ('stopped', sweep_points.NEW):
      add_job(folder, sweep, point.record)
      again.append(point.number)
  folder.forget_stop()
  return again


def retry(folder: sweep_folder.SweepFolder, numbers: Sequence[int] = ()) -> list[int]:
  """Puts points that have failed into the queue again; they resume from their checkpoints.

  Args:
    folder: the sweep.
    numbers: of points; () for all that have failed. One that has diverged is retried if it is named.

  Returns:
    The numbers of the points.

  Raises:
    UserError: a point that is named has not failed.
  """
  sweep = folder.load()
  with folder.changing():
    found = {point.number: point for point in sweep_points.PointReader(folder).read(sweep)}
    for number in numbers:
      _expect(found, folder, number, ('failed', 'diverged'), 'only failed points are retried')
    chosen = list(numbers) or [number for number, point in found.items() if point.status == 'failed']
    for number in chosen:
      add_job(folder, sweep, found[number].record)
  return chosen


def resume(folder: sweep_folder.SweepFolder, number: int) -> None:
  """Resumes a point that was ended early or stopped. It is not ended early again.

  Raises:
    UserError: it is neither.
  """
  sweep = folder.load()
  with folder.changing():
    found = {point.number: point for point in sweep_points.PointReader(folder).read(sweep)}
    point = _expect(found, folder, number, ('pruned', 'stopped'), 'only pruned or stopped points can be resumed')
    pruned = folder.pruned(point.record)
    if pruned is not None:
      path = os.path.join(point.record.folder, sweep_folder.PRUNED)
      queued_jobs.write_json(path, {**pruned, 'resumed': json_values.timestamp_now()})
    add_job(folder, sweep, point.record)


def prune(folder: sweep_folder.SweepFolder, point: sweep_points.Point, reason: str) -> None:
  """Ends the run of a point early: it saves, and can be resumed; called within `changing`."""
  path = os.path.join(point.record.folder, sweep_folder.PRUNED)
  if folder.pruned(point.record) is None:
    queued_jobs.write_json(path, {'time': json_values.timestamp_now(), 'reason': reason})
  _end(folder, point)


def delete(folder: sweep_folder.SweepFolder, number: int) -> None:
  """Takes a point out of the sweep: its run goes to the trash, and it is not retried.

  Raises:
    UserError: it does not exist, or its run lives.
  """
  sweep = folder.load()
  with folder.changing():
    found = {point.number: point for point in sweep_points.PointReader(folder).read(sweep)}
    waiting = ('queued', 'paused')
    point = _expect(found, folder, number, (*sweep_points.OVER, *waiting, sweep_points.NEW), 'stop its run first')
    if point.status in waiting and point.job is not None:
      queue_changes.cancel(folder.queue, point.job.number)
    folder.bury(point.record)
    run = run_folders.Run(point.record.folder, os.path.relpath(point.record.folder, folder.runs_dir))
    try:
      trash.delete(folder.runs_dir, run)
    except BaseException:
      folder.exhume(point.record)
      raise


def _end(folder: sweep_folder.SweepFolder, point: sweep_points.Point) -> None:
  """Lets the run of a point save and stop, however it was started."""
  job = point.job
  if job is not None and job.status in sweep_points.UNDER_WAY:
    if job.status != 'stopping':
      queue_changes.cancel(folder.queue, job.number)
    return
  run = run_folders.Run(point.record.folder, point.record.name)
  if statuses_lib.is_alive(run, 'train'):  # It was started by hand.
    run_processes.stop_run(run, mode='train')


def _expect(
  found: dict[int, sweep_points.Point],
  folder: sweep_folder.SweepFolder,
  number: int,
  statuses: Sequence[str],
  refusal: str,
) -> sweep_points.Point:
  point = found.get(number)
  if point is None or point.status == 'deleted':
    raise errors.UserError(f'point {number}: there is none in {folder.name}; `official-ext sweep show` lists them')
  if point.status not in statuses:
    raise errors.StateError(f'point {number}: is {point.status}: {refusal}')
  return point
