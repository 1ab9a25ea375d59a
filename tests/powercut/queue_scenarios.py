"""A queue and a sweep that a power cut interrupts. Their runs are small programs without TensorFlow."""

from collections.abc import Sequence
import dataclasses
import json
import pathlib

from official_ext.base import errors
from official_ext.operations.queue import queue_folder
from official_ext.operations.queue import queued_jobs
from official_ext.operations.sweeps import sweep_folder
from tests import train_processes
from tests.operations.sweeps import trials
from tests.powercut import outcomes
from tests.powercut import training_scenarios

_MAIN = train_processes.ROOT / 'official_ext' / 'cli' / 'main.py'
_RUNS = 'runs'
_NUM_JOBS = 3
_CANCELLED = 1  # Its place among the jobs. A number is skipped if a power cut ends the command that has taken it.
_SWEEP = 'search'


class _Records:
  """Which files of a folder of runs decide: see Checks."""

  def relevant(self, tree):
    return {name: content for name, content in tree.items() if not name.endswith(('.lock', '/run.log'))}

  def relies_on(self, tree):
    return None


@dataclasses.dataclass(frozen=True)
class QueueOfJobs(_Records):
  """Three jobs are added, one is cancelled, and the others are run. Attributes: see Scenario."""

  name: str = 'queue'

  def prepare(self, disk, server) -> None:
    pass

  def run(self, disk, server) -> None:
    """Gives the commands that have not taken effect yet, in their order."""
    statuses = _statuses(disk)
    for place in range(len(statuses), _NUM_JOBS):
      self._command(server, ['queue', 'add', f'{disk}/{_RUNS}', '--', 'sh', '-c', f'echo job {place}'])
    number, status = list(_statuses(disk).items())[_CANCELLED]
    if status != 'cancelled':
      self._command(server, ['queue', 'cancel', f'{disk}/{_RUNS}', str(number)])
    self._command(server, ['queue', 'run', f'{disk}/{_RUNS}', '--slots=1', '--until_empty'])

  def _command(self, server, arguments) -> None:
    failure = training_scenarios.command(server, arguments, _MAIN)
    if failure:
      raise RuntimeError(f'{" ".join(arguments)}: {failure}')

  def checks(self, straight, before):
    return self

  def look(self, folder: pathlib.Path) -> outcomes.Outcome:
    """How far it is: jobs that exist, that are cancelled, and that are over."""
    try:
      statuses = _statuses(folder)
    except (errors.UserError, errors.StorageError) as error:
      return outcomes.Outcome((-1,), [f'the queue cannot be read: {error}'])
    faults = [f'job {number}: {status}' for number, status in statuses.items() if status == 'damaged']
    over = [number for number, status in statuses.items() if status in queued_jobs.OVER]
    is_cancelled = list(statuses.values())[_CANCELLED : _CANCELLED + 1] == ['cancelled']
    return outcomes.Outcome((len(statuses), int(is_cancelled), len(over)), faults)

  def restored(self, disk, straight, server) -> list[str]:
    try:
      self.run(disk, server)
    except (RuntimeError, errors.UserError, errors.StorageError) as error:
      return [str(error)]
    found, expected = (list(_statuses(each).values()) for each in (disk, straight))
    return [] if found == expected else [f'{found} instead of {expected}']


def _statuses(disk: pathlib.Path) -> dict[int, str]:
  """From the numbers of the jobs, in their order, to their statuses."""
  return {state.number: state.status for state in queue_folder.Queue(str(disk / _RUNS)).states()}


@dataclasses.dataclass(frozen=True)
class Sweep:
  """A sweep of three points, with the dispatcher that it starts. Attributes: see Scenario."""

  name: str = 'sweep'

  def prepare(self, disk, server) -> None:
    (disk / 'program.py').write_text(trials.PROGRAM)
    values = {
      'name': _SWEEP,
      'program': 'program.py',
      'method': 'grid',
      'metric': {'name': 'loss', 'goal': 'minimize'},
      'parameters': {'x': {'values': [0.1, 0.3, 0.5]}},
    }
    (disk / 'sweep.json').write_text(json.dumps(values))

  def run(self, disk, server) -> None:
    arguments = ['sweep', f'{disk}/sweep.json', f'{disk}/{_RUNS}', '--slots=1']
    failure = training_scenarios.command(server, arguments, _MAIN, cwd=disk)
    if failure:
      raise RuntimeError(f'{self.name}: {failure}')

  def checks(self, straight, before):
    return _SweepChecks(_parameters(straight))

  def restored(self, disk, straight, server) -> list[str]:
    try:
      self.run(disk, server)
      found, expected = _points(disk), _points(straight)
    except (RuntimeError, errors.UserError, errors.StorageError) as error:
      return [str(error)]
    return [] if found == expected else [f'{found} instead of {expected}']


class _SweepChecks(_Records):
  """A point that was synced is not lost, and has the parameters that it had."""

  def __init__(self, parameters):
    self._parameters = parameters

  def look(self, folder: pathlib.Path) -> outcomes.Outcome:
    try:
      found, statuses = _parameters(folder), _statuses(folder)
    except (errors.UserError, errors.StorageError) as error:
      return outcomes.Outcome((-1,), [f'the sweep cannot be read: {error}'])
    wrong = [number for number, each in found.items() if each != self._parameters.get(number)]
    over = [number for number, status in statuses.items() if status in queued_jobs.OVER]
    faults = [f'points {wrong} have other parameters'] if wrong else []
    return outcomes.Outcome((len(found), len(statuses), len(over)), faults)


def _parameters(disk: pathlib.Path) -> dict[int, dict]:
  records = sweep_folder.SweepFolder(str(disk / _RUNS), _SWEEP).records()
  return {record.number: dict(record.proposal.parameters) for record in records}


def _points(disk: pathlib.Path) -> dict:
  """Points by number and statuses of jobs. A job that was lost before it was submitted leaves a gap in the numbers."""
  return {'points': _parameters(disk), 'jobs': list(_statuses(disk).values())}


SCENARIOS: Sequence[QueueOfJobs | Sweep] = (QueueOfJobs(), Sweep())
