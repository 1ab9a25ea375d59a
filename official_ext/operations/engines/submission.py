"""A submission: refused if the run is under way, submitted, and noted in the run's folder.

The note is `started.json`, as of a detached run, with the engine and the job in place of a process. So the run is
listed with the others, and is `submitted` until it begins. The points of a sweep are the runs of one submission.
"""

import argparse
from collections.abc import Mapping
import dataclasses
import math
import os
import time
import types

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import launcher
from official_ext.base.files import paths
from official_ext.operations.engines import jobs
from official_ext.operations.runs import driver
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import statuses
from official_ext.operations.sweeps import samplers
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder
from official_ext.operations.sweeps import sweep_points

_MAX_POINTS = 100_000


def refuse_sweep(sweep: sweep_file.SweepFile) -> None:
  """Refuses a sweep whose points depend on each other, or have no end.

  Raises:
    UserError: see above.
  """
  if sweep.method == 'bayes':
    raise errors.UserError(
      'method: bayes chooses a point by the results of others; an array has them all: grid, random'
    )
  if sweep.early_terminate is not None:
    raise errors.UserError('early_terminate: nobody compares the trials of an array while they run; leave it out')
  if sweep.command:
    raise errors.UserError('command: an array runs train.py, or `program`; leave it out')
  if not math.isfinite(sweep.num_points):
    raise errors.UserError('run_cap: say how many points the array has')
  if sweep.num_points > _MAX_POINTS:
    raise errors.UserError(f'run_cap: {sweep.num_points:g} points are too many for an array; at most {_MAX_POINTS}')


def sweep_trials(folder: sweep_folder.SweepFolder, sweep: sweep_file.SweepFile, make: bool) -> tuple[jobs.Trial, ...]:
  """The points that are not over, nor under way in the queue.

  Args:
    folder: the sweep's; it need not exist, unless `make`.
    sweep: its file.
    make: whether the folders of points that are missing are made.

  Raises:
    UserError: a file of the sweep is damaged.
    StorageError: a folder cannot be made.
  """
  if not make:
    return _sweep_trials(folder, sweep, False)
  with folder.changing():
    return _sweep_trials(folder, sweep, True)


def _sweep_trials(folder, sweep, make) -> tuple[jobs.Trial, ...]:
  found = sweep_points.PointReader(folder).read(sweep) if folder.exists() else []
  known: dict[int, samplers.Proposal] = {point.number: point.record.proposal for point in found}
  places = {
    point.number: point.record.folder
    for point in found
    if point.status == sweep_points.NEW or (point.job is None and point.status in ('queued', 'stopped'))
  }
  number = 0
  while len(known) < sweep.num_points:
    number += 1
    if number in known:
      continue
    proposal = samplers.propose(sweep, number, known, ())
    if proposal is None:
      break
    known[number] = proposal
    path = folder.make_point(number, proposal).folder if make else folder.point_path(number, proposal)
    places[number] = path
  return tuple(
    jobs.Trial(places[number], _trial_flags(sweep, places[number], known[number])) for number in sorted(places)
  )


def _trial_flags(sweep: sweep_file.SweepFile, model_dir: str, proposal: samplers.Proposal) -> tuple[str, ...]:
  first = [f'--experiment={sweep.experiment}'] if sweep.experiment else []
  first += [f'--mode={sweep.mode}', f'--model_dir={os.path.abspath(model_dir)}']
  return (*first, *sweep.flags, *sweep_folder.setting_flags(proposal.parameters))


_OVER = ('finished', 'diverged')
_MAYBE_OVER = 'failed'  # Unless its engine retries it, as when one of several workers was lost.
_POLL_SECONDS = 1.0
_LOST_SECONDS = 60.0  # How long a run may have ended otherwise, while its engine is silent, before it counts as over.


def without_living(job: jobs.Job, engine: str, module: types.ModuleType, options: argparse.Namespace) -> jobs.Job:
  """A job without the runs that live, or wait at an engine: of a sweep the others are submitted.

  Args:
    job: the one to submit.
    engine: the name of its engine.
    module: the engine.
    options: the command's, of which `again` takes the user's word that a job is gone.

  Raises:
    UserError: none is left.
  """
  asked: dict[str, bool | None] = {}  # The engine's answer: many runs may be one job.
  reasons = [_reason_against(trial.model_dir, job.mode, engine, module, options, asked) for trial in job.trials]
  free = tuple(trial for trial, reason in zip(job.trials, reasons) if not reason)
  if not free:
    raise errors.StateError(reasons[0])
  return dataclasses.replace(job, trials=free)


def _reason_against(
  model_dir: str,
  mode: str,
  engine: str,
  module: types.ModuleType,
  options: argparse.Namespace,
  asked: dict[str, bool | None],
) -> str:
  """Why a run is not to be submitted; '' if it may be."""
  if paths.is_remote(model_dir):
    return ''
  run = run_folders.Run(model_dir, model_dir)
  where = f'--model_dir={model_dir}'
  if statuses.is_alive(run, mode):
    return f'{where}: a run lives in this folder; wait for it or stop it, or choose another folder'
  note = run.started(mode)
  if note is None or not isinstance(note.get('engine'), str) or options.again:
    return ''
  found = statuses.of_run(run, mode=mode).status
  if found in _OVER:
    return ''
  active = None
  if note['engine'] == engine:
    name = str(note.get('job'))
    if name not in asked:
      asked[name] = module.is_active(name, options)
    active = asked[name]
  if not active and (active is False or found != 'submitted'):
    return ''
  how = 'has it' if active else 'was given it, and cannot be asked from here'
  return (
    f'{where}: {note["engine"]} {how}, as {note.get("job")}, since {note.get("started")}; wait for it, or end it '
    'there; --again submits it nevertheless'
  )


def note(job: jobs.Job, engine: str, module: types.ModuleType, name: str) -> None:
  """Notes where the runs of a job are now.

  Args:
    job: the one submitted.
    engine: the name of its engine.
    module: the engine.
    name: the job's name there.

  Raises:
    StorageError: it was submitted, and cannot be noted.
  """
  for number, trial in enumerate(job.trials, 1):
    if paths.is_remote(trial.model_dir):
      continue
    run = run_folders.Run(trial.model_dir, trial.model_dir)
    words = ['python', *driver.program_words(job.program), *trial.flags]
    values: Mapping[str, object] = {
      'engine': engine,
      'job': module.trial_name(name, number) if job.is_array else name,
      'attempts_before': (run.record(job.mode) or {}).get('attempt', 0),
      **launcher.command_note(words, job.cwd),
      'environment': launcher.relevant_environment(),
      'started': json_values.timestamp_now(),
    }
    json_values.write_file(run.file_of_mode('started', 'json', job.mode), values)


def is_noted(folder: str) -> bool:
  """Whether a run in a folder was submitted, and noted there."""
  return any(run.started() is not None for run in run_folders.find_runs(folder))


def make_folders(job: jobs.Job) -> None:
  """Makes the folders of the runs, into which their engine writes their output.

  Raises:
    StorageError: one cannot be made.
  """
  for folder in (job.folder, *(trial.model_dir for trial in job.trials)):
    if paths.is_remote(folder):
      continue
    try:
      paths.make_folder(folder)
    except OSError as error:
      raise errors.StorageError(f'{folder}: cannot be made: {error.strerror}') from error


def follow(job: jobs.Job, module: types.ModuleType, name: str, options: argparse.Namespace) -> int:
  """Prints the state of a job's run after every change, until it is over; the state is read from its files.

  Args:
    job: with one run, in a folder that is seen from here.
    module: its engine.
    name: the job's name there.
    options: the command's.

  Returns:
    0 if the run has finished, 1 if it has ended otherwise.
  """
  run = run_folders.Run(job.folder, os.path.basename(job.folder))
  printed, since = '', time.monotonic()
  while True:
    found = statuses.of_run(run, mode=job.mode)
    step = (run.record(job.mode) or {}).get('step')
    now = f'{found.status}' + (f': {found.reason}' if found.reason else '')
    if now != printed:
      print(f'{run.name}: {now}' + (f' at step {step}' if step is not None else ''), flush=True)
      printed, since = now, time.monotonic()
    if found.status in _OVER:
      return 0 if found.status == 'finished' else 1
    if found.status == _MAYBE_OVER and not module.is_active(name, options):
      if statuses.of_run(run, mode=job.mode).status == _MAYBE_OVER:  # It has not begun again in between.
        return 1
    # One that was preempted resumes, if its engine has it.
    if found.is_alive is False and time.monotonic() - since > _LOST_SECONDS:
      if module.is_active(name, options) is False:
        print(f'{run.name}: its job {name} is gone', flush=True)
        return 1
      since = time.monotonic()
    time.sleep(_POLL_SECONDS)
