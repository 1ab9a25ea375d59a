"""A sweep as a folder: its file, a folder for the run of each point, and the command that trains a point.

    RUNS_DIR/NAME/sweep.yaml               the search: see sweep_file.py
    RUNS_DIR/NAME/settings.json            where it was started: the folder, the program, the slots
    RUNS_DIR/NAME/007-learning_rate=0.1/   the run of point 7
    ... /sweep.json                        its number, its parameters, and the sampler's knowledge when it chose them
    ... /pruned.json                       it was ended early, and why
    RUNS_DIR/NAME/.deleted/007.json        the sweep.json of a point whose run was deleted
    RUNS_DIR/NAME/stopped.json             `sweep stop`: nothing is tried until it is gone; the points that it stopped
    RUNS_DIR/NAME/changes.lock, controller.lock

These files are the whole state. A point's folder gets its name when sweep.json is in it: a point exists whole, or not
at all.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import re
import shutil
import sys

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.operations.queue import queue_folder
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import commands
from official_ext.operations.runs import driver
from official_ext.operations.runs import run_processes
from official_ext.operations.sweeps import samplers
from official_ext.operations.sweeps import sweep_file

_MACRO = re.compile(r'\$\{([^}]*)\}')
_WORD_MACROS = ('args', 'args_no_hyphens', 'args_no_boolean_flags', 'set')  # Each is replaced by any number of words.
_MACROS = (*_WORD_MACROS, 'env', 'interpreter', 'program', 'args_json', 'model_dir', 'envvar:NAME')


def point_command(
  sweep: sweep_file.SweepFile, program: str, model_dir: str, parameters: Mapping[str, object], executable: str = ''
) -> list[str]:
  """The program and its arguments.

  Args:
    sweep: the sweep.
    program: its program: a path, or the installed driver.
    model_dir: the run's folder.
    parameters: name -> value.
    executable: the Python that runs it; '' for this one.

  Raises:
    UserError: a macro of `command` is unknown.
  """
  executable = executable or sys.executable
  if sweep.command:
    return _expand(sweep.command, program, model_dir, parameters, executable)
  flags = [f'--experiment={sweep.experiment}'] if sweep.experiment else []
  return [
    *(executable, *driver.program_words(program), *flags, f'--mode={sweep.mode}', f'--model_dir={model_dir}'),
    *(*sweep.flags, *setting_flags(parameters)),
  ]


def setting_flags(parameters: Mapping[str, object]) -> list[str]:
  """Parameters as flags of the driver: `--set=learning_rate=0.001`."""
  return [f'--set={name}={config_text.setting_text(value)}' for name, value in parameters.items()]


def _expand(
  command: Sequence[str], program: str, model_dir: str, parameters: Mapping[str, object], executable: str
) -> list[str]:
  single = {
    'env': '/usr/bin/env',
    'interpreter': executable,
    'program': program,
    'model_dir': model_dir,
    'args_json': json.dumps(dict(parameters)),
  }
  several = {
    'args': [f'--{name}={_plain(value)}' for name, value in parameters.items()],
    'args_no_hyphens': [f'{name}={_plain(value)}' for name, value in parameters.items()],
    'args_no_boolean_flags': [
      f'--{name}' if value is True else f'--{name}={_plain(value)}'
      for name, value in parameters.items()
      if value is not False
    ],
    'set': setting_flags(parameters),
    'program': list(driver.program_words(program)[1:]),  # The module of the installed driver is two words.
  }

  def one(match: re.Match) -> str:
    name = match[1]
    if name.startswith('envvar:'):
      return os.environ.get(name.removeprefix('envvar:'), '')
    if name not in single:
      where = 'must be a separate word' if name in _WORD_MACROS else f'is not known; there are {", ".join(_MACROS)}'
      raise errors.UserError(f'command: ${{{name}}}: {where}')
    return single[name]

  found: list[str] = []
  for word in command:
    match = _MACRO.fullmatch(word)
    found += several[match[1]] if match and match[1] in several else [_MACRO.sub(one, word)]
  return found


def _plain(value: object) -> str:
  return value if isinstance(value, str) else config_text.setting_text(value)


FILE = 'sweep.yaml'
SETTINGS = 'settings.json'
POINT = 'sweep.json'
PRUNED = 'pruned.json'
_STOPPED = 'stopped.json'
_DELETED = '.deleted'
_NEW = '.new'
_FOLDER = re.compile(r'(\d{3,})(?:-.*)?', re.DOTALL)
_MAX_NAME = 80
_PATIENCE_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class PointRecord:
  """A point as its files say.

  Attributes:
    number: from 1.
    folder: of its run, absolute.
    proposal: its parameters.
    outcomes: the sampler's knowledge of the other points.
    is_deleted: whether its run was deleted: it is not retried.
  """

  number: int
  folder: str
  proposal: samplers.Proposal
  outcomes: tuple[samplers.PointOutcome, ...] = ()
  is_deleted: bool = False

  @property
  def name(self) -> str:
    """The name of its folder."""
    return os.path.basename(self.folder)


class SweepFolder:
  """A sweep.

  Attributes:
    runs_dir: the folder of the runs, absolute.
    name: of the sweep: its folder's path below runs_dir.
    path: of its folder.
    queue: that its runs are in.
  """

  def __init__(self, runs_dir: str, name: str):
    """Reads nothing yet.

    Args:
      runs_dir: the folder of the runs.
      name: of the sweep.

    Raises:
      UserError: the name leads out of that folder, or the folder is remote.
    """
    self.queue = queue_folder.Queue(runs_dir)
    self.runs_dir = os.path.abspath(self.queue.runs_dir)
    self.path = commands.checked_folder(self.runs_dir, name)
    self.name = os.path.relpath(self.path, self.runs_dir)
    self._records: dict[str, PointRecord] = {}  # These never change.

  def file(self, name: str) -> str:
    """The path of a file of the sweep."""
    return os.path.join(self.path, name)

  def exists(self) -> bool:
    """Whether it exists."""
    return os.path.isfile(self.file(FILE))

  def load(self) -> sweep_file.SweepFile:
    """The sweep as its file says.

    Raises:
      UserError: it is missing, or wrong.
    """
    if not self.exists():
      raise errors.UserError(f'{self.name}: no such sweep in {self.runs_dir}; `official-ext sweep list` shows them')
    return sweep_file.load(self.file(FILE))

  def settings(self) -> json_values.JsonMapping:
    """The settings of its start: `cwd`, `program` and `slots`."""
    return json_values.read_file(self.file(SETTINGS)) or {}

  def write(self, text: str, settings: json_values.JsonMapping) -> None:
    """Makes the sweep, or replaces its file.

    Args:
      text: of its file.
      settings: see `settings`.

    Raises:
      StorageError: it cannot be written.
    """
    with queued_jobs.explaining(self.path):
      paths.make_folder(self.path)
      queued_jobs.write_json(self.file(SETTINGS), {**settings, 'time': json_values.timestamp_now()})
      paths.write_atomically(self.file(FILE), text.encode())  # Last: from here on it is a sweep.

  # Points.

  def records(self) -> list[PointRecord]:
    """All points, by number, deleted ones too.

    Raises:
      UserError: the file of one is damaged.
      StorageError: the folder cannot be read.
    """
    with queued_jobs.explaining(self.path):
      found = {each.number: each for each in self._read_all(os.path.join(self.path, _DELETED), is_deleted=True)}
      found.update({each.number: each for each in self._read_all(self.path)})
    return [found[number] for number in sorted(found)]

  def record(self, number: int) -> PointRecord:
    """The point of a number.

    Raises:
      UserError: it does not exist.
    """
    for each in self.records():
      if each.number == number and not each.is_deleted:
        return each
    raise errors.UserError(f'point {number}: there is none in {self.name}; `official-ext sweep show` lists them')

  def make_point(
    self, number: int, proposal: samplers.Proposal, outcomes: tuple[samplers.PointOutcome, ...] = ()
  ) -> PointRecord:
    """Makes the folder of a point.

    Raises:
      OSError: it cannot be made, and does not exist.
    """
    new = self.file(f'{_NEW}-{number}')
    shutil.rmtree(new, ignore_errors=True)  # Of one who was killed.
    os.mkdir(new)
    values = {
      'sweep': self.name,
      'point': number,
      'parameters': dict(proposal.parameters),
      'positions': dict(proposal.positions),
      'told': [each.as_list() for each in outcomes],
      'time': json_values.timestamp_now(),
    }
    content = json.dumps({**values, 'told': None}, indent=2).replace(
      '"told": null', f'"told": {json.dumps(values["told"])}'
    )
    paths.write_atomically(os.path.join(new, POINT), content.encode() + b'\n')
    folder = self.point_path(number, proposal)
    paths.rename(new, folder)
    return PointRecord(number, folder, proposal, outcomes)

  def point_path(self, number: int, proposal: samplers.Proposal) -> str:
    """The folder that a point has, or would have."""
    return self.file(_folder_name(number, proposal))

  def bury(self, record: PointRecord) -> None:
    """Keeps the place of a point whose run is about to be deleted."""
    paths.make_folder(self.file(_DELETED))
    content = paths.read(os.path.join(record.folder, POINT), local_files.MAX_RECORD)
    paths.write_atomically(self._grave(record), content)

  def exhume(self, record: PointRecord) -> None:
    """Takes `bury` back."""
    paths.remove(self._grave(record))

  def _grave(self, record: PointRecord) -> str:
    return os.path.join(self.path, _DELETED, f'{record.number:03d}.json')

  def pruned(self, record: PointRecord) -> dict[str, object] | None:
    """Why a point was ended early; None if it was not, or runs since."""
    values = json_values.read_file(os.path.join(record.folder, PRUNED))
    return None if values is None or values.get('resumed') else values

  def _read_all(self, folder: str, is_deleted: bool = False) -> Iterator[PointRecord]:
    for name in paths.names(folder):
      path = os.path.join(folder, name)
      match = _FOLDER.fullmatch(name.removesuffix('.json') if is_deleted else name)
      if match is None or (not is_deleted and not os.path.isfile(os.path.join(path, POINT))):
        continue
      if path not in self._records:
        self._records[path] = _read_point(path if is_deleted else os.path.join(path, POINT), path, is_deleted)
      yield self._records[path]

  # Who does something to it.

  def stopped(self) -> json_values.JsonObject | None:
    """The note of `sweep stop`; None if it was not stopped, or was resumed."""
    return json_values.read_file(self.file(_STOPPED))

  def note_stop(self, points: list[int]) -> None:
    """Notes that it is stopped, with the points that were under way."""
    queued_jobs.write_json(self.file(_STOPPED), {'time': json_values.timestamp_now(), 'points': points})

  def forget_stop(self) -> None:
    """Takes that back."""
    paths.remove(self.file(_STOPPED))

  @property
  def lock_path(self) -> str:
    """The file whose lock the controller holds; its content names the process."""
    return self.file('controller.lock')

  def controller(self) -> processes.ProcessIdentity | None:
    """The process that proposes points; None without one."""
    with queued_jobs.explaining(self.path):
      if not local_files.is_locked(self.lock_path):
        return None
      return processes.parse_identity(json_values.read_file(self.lock_path) or {}) or processes.ProcessIdentity('?', 1)

  def control_words(self, slots: int | None = None) -> list[str]:
    """The words of the command that resumes it, after `official-ext`."""
    return ['sweep', self.path, *([f'--slots={slots}'] if slots else [])]

  @property
  def log_path(self) -> str:
    """The file that a controller in the background writes to."""
    return self.file('controller.log')

  def start_controller(self, slots: int | None = None) -> int:
    """Starts a controller in the background, for a sweep that exists.

    Args:
      slots: how many points it tries at once; None: as last time, or one for each GPU.

    Returns:
      The number of its process, which controls the sweep now, or has found nothing to do.

    Raises:
      UserError: there is one.
      StorageError: it has not started.
    """
    found = self.controller()
    if found is not None:
      raise errors.UserError(f'{self.name}: {found} controls it already')
    works = lambda: self.controller() is not None
    return run_processes.start_background(self.control_words(slots), self.log_path, works, (0, 1))

  @contextlib.contextmanager
  def changing(self) -> Iterator[None]:
    """Keeps everybody else from changing the sweep: one step of the controller, or one command."""
    busy = f'{self.name}: another process has been changing it for a minute; look at that'
    with queued_jobs.explaining(self.path):
      with queued_jobs.locked(self.file('changes.lock'), _PATIENCE_SECONDS, lambda: busy):
        yield


def find_sweeps(runs_dir: str) -> list[SweepFolder]:
  """The sweeps in a folder of runs, by name, also in its subfolders."""
  root = os.path.abspath(runs_dir)
  found = []
  for folder, names, files in os.walk(root):
    below = os.path.relpath(folder, root)
    depth = 0 if below == '.' else below.count(os.sep) + 1
    if FILE in files and SETTINGS in files and depth:
      found.append(SweepFolder(root, below))
      names.clear()
    names[:] = sorted(name for name in names if not name.startswith('.')) if depth < 3 else []
    if any(name in files for name in ('run.json', 'params.yaml')):
      names.clear()  # No sweep lies in a run.
  return sorted(found, key=lambda each: each.name)


def _read_point(path: str, folder: str, is_deleted: bool) -> PointRecord:
  values = queued_jobs.read_json(path) or {}
  try:
    return PointRecord(
      number=int(values['point']),
      folder=folder,
      proposal=samplers.Proposal(dict(values['parameters']), dict(values['positions'])),
      outcomes=tuple(samplers.PointOutcome(*each) for each in values['told']),
      is_deleted=is_deleted,
    )
  except (KeyError, TypeError, ValueError):
    raise queued_jobs.DamagedFileError(f'{path}: is not a point of a sweep') from None


def _folder_name(number: int, proposal: samplers.Proposal) -> str:
  """`007-learning_rate=0.001,optimizer=adam`: the differences between points, in letters that every tool takes."""
  shown = proposal.positions or proposal.parameters
  parts = [f'{name.rpartition(".")[2]}={_short_text(proposal.parameters[name])}' for name in shown]
  text = re.sub(r'[^A-Za-z0-9._=,+-]+', '_', ','.join(parts))[:_MAX_NAME].rstrip('.,_=')
  return f'{number:03d}-{text}' if text else f'{number:03d}'


def _short_text(value: object) -> str:
  return f'{value:.4g}' if isinstance(value, float) else config_text.setting_text(value)
