"""The points of a sweep as the runs of one submission. No TensorFlow.

Points that depend on nothing but the sweep's file can all be had at once: a grid, or so many random draws.
"""

import math
import os

from official_ext.base import errors
from official_ext.operations.engines import jobs
from official_ext.operations.sweeps import next_points
from official_ext.operations.sweeps import point_commands
from official_ext.operations.sweeps import points as points_lib
from official_ext.operations.sweeps import proposals
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder

_MAX_POINTS = 100_000


def refuse(sweep: sweep_file.SweepFile) -> None:
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


def trials(folder: sweep_folder.SweepFolder, sweep: sweep_file.SweepFile, make: bool) -> tuple[jobs.Trial, ...]:
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
    return _trials(folder, sweep, False)
  with folder.changing():
    return _trials(folder, sweep, True)


def _trials(folder, sweep, make) -> tuple[jobs.Trial, ...]:
  found = points_lib.PointReader(folder).read(sweep) if folder.exists() else []
  known: dict[int, proposals.Proposal] = {point.number: point.record.proposal for point in found}
  places = {
    point.number: point.record.folder
    for point in found
    if point.status == points_lib.NEW or (point.job is None and point.status in ('queued', 'stopped'))
  }
  number = 0
  while len(known) < sweep.num_points:
    number += 1
    if number in known:
      continue
    proposal = next_points.propose(sweep, number, known, ())
    if proposal is None:
      break
    known[number] = proposal
    path = folder.make_point(number, proposal).folder if make else folder.point_path(number, proposal)
    places[number] = path
  return tuple(jobs.Trial(places[number], _flags(sweep, places[number], known[number])) for number in sorted(places))


def _flags(sweep: sweep_file.SweepFile, model_dir: str, proposal: proposals.Proposal) -> tuple[str, ...]:
  first = [f'--experiment={sweep.experiment}'] if sweep.experiment else []
  first += [f'--mode={sweep.mode}', f'--model_dir={os.path.abspath(model_dir)}']
  return (*first, *sweep.flags, *point_commands.settings(proposal.parameters))
