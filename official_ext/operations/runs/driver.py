"""The program of a run, and the driver's answers to its command line.

A process that holds TensorFlow gives the answers (cli/driver_server.py). It takes seconds to start, and then a fraction
of one for an answer. It starts at the first question, and ends with the process that asks. It restarts when it has
died, hangs, or modules of experiments have changed.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.operations.runs import run_folders

DEFAULT_PROGRAM = 'train.py'
# A module: it finds modules of the current folder, as train.py finds modules of its own folder.
INSTALLED_PROGRAM = 'official_ext.cli.train'


def find_program(name: str = DEFAULT_PROGRAM) -> str:
  """Returns the program of a run: the absolute path of a file, or `INSTALLED_PROGRAM`.

  Args:
    name: the value of --program. The installed driver replaces a train.py that does not exist.

  Raises:
    UserError: there is no such file.
  """
  path = paths.expand_home(name, '--program')
  if name != INSTALLED_PROGRAM and os.path.isfile(path):
    return os.path.abspath(path)
  if name in (DEFAULT_PROGRAM, INSTALLED_PROGRAM):
    return INSTALLED_PROGRAM
  raise errors.UserError(f'--program={name}: no such file')


def reads_flag(program: str, name: str) -> bool:
  """Whether a program may read a flag: its text names it, or it is a driver of this library."""
  return is_driver(program) or name in _program_text(program)


def is_driver(program: str) -> bool:
  """Whether a program is the installed driver, or a file that uses this library."""
  return program == INSTALLED_PROGRAM or 'official_ext' in _program_text(program)


def split_command(words: Sequence[str]) -> tuple[str, list[str]]:
  """The driver that a command runs, as `find_program` returns it, and its flags.

  Args:
    words: `python [-u] train.py FLAGS`, `python -m official_ext.cli.train FLAGS` or `official-ext train FLAGS`.

  Returns:
    ('', []) for any other command, and for a train.py that does not use this library.
  """
  place = next((place for place, word in enumerate(words) if word.startswith('--')), len(words))
  before, flags = list(words[:place]), list(words[place:])
  if before[-1:] == [INSTALLED_PROGRAM] or [os.path.basename(word) for word in before[-2:]] == [
    'official-ext',
    'train',
  ]:
    return INSTALLED_PROGRAM, flags
  is_python = len(before) > 1 and os.path.basename(before[0]).startswith('python')
  program = before[-1] if is_python and before[-1].endswith('.py') and '-m' not in before else ''
  return (os.path.abspath(program), flags) if os.path.isfile(program) and is_driver(program) else ('', [])


def _program_text(program: str) -> str:
  try:
    return paths.read(program, local_files.MAX_RECORD).decode('utf-8', 'replace')
  except OSError:
    return ''


def program_words(program: str) -> tuple[str, ...]:
  """Returns the words between `python` and the flags of a run."""
  return ('-u', '-m', program) if program == INSTALLED_PROGRAM else ('-u', program)


_SERVER = 'official_ext.cli.driver_process'
_START_SECONDS = 300.0
_ANSWER_SECONDS = 20.0
_END_SECONDS = 1.0  # From the end of its output to its own.
_PATIENCE_SECONDS = 10.0  # Beyond the maximal time of an answer, before the process counts as hung.
_MAX_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Stage:
  """A step of the start of the process.

  Attributes:
    name: what it does, for people.
    seconds: how long that has taken.
  """

  name: str
  seconds: float


class DriverError(RuntimeError):
  """The process that answers has failed. The message is one line."""


class _GoneError(Exception):
  """The process has ended, or hangs."""


class Driver:
  """The process that answers. Threads may share it: they are answered one after the other.

  Attributes:
    cwd: the folder in which commands are meant to be given.
    registry: the modules that --registry names.
  """

  def __init__(self, cwd: str = '', registry: Sequence[str] = (), program: str = DEFAULT_PROGRAM):
    """Starts nothing yet; see `find_program` for `program`."""
    self.cwd = os.path.abspath(cwd or os.getcwd())
    self._program_name = program
    self.registry = tuple(registry)
    self._process: Any = None
    self._is_ready = False
    self._stages: tuple[tuple[str, float], ...] = ()  # Of a start under way: each with its begin.
    self._asking = threading.Lock()
    self._number = 0
    self._rest = b''

  @property
  def program(self) -> str:
    """The driver: a file in `cwd`, or else what `find_program` returns.

    Raises:
      UserError: it does not exist.
    """
    here = os.path.join(self.cwd, self._program_name)
    return here if os.path.isfile(here) else find_program(self._program_name)

  def serves(self, program: str, folder: str) -> bool:
    """Whether this is the driver `program` that finds modules in `folder` first."""
    if program == INSTALLED_PROGRAM:
      return self.program == program and os.path.realpath(self.cwd) == os.path.realpath(folder)
    return os.path.realpath(self.program) == os.path.realpath(program)

  def __enter__(self) -> 'Driver':
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  @property
  def is_ready(self) -> bool:
    """Whether an answer comes at once."""
    process = self._process
    return self._is_ready and process is not None and process.poll() is None

  @property
  def stages(self) -> list[Stage]:
    """The steps of a start that is under way, the present one last; [] without such a start. It does not wait."""
    stages = self._stages
    ends = [*(begin for _, begin in stages[1:]), time.monotonic()]
    return [Stage(name, end - begin) for (name, begin), end in zip(stages, ends)]

  @property
  def pid(self) -> int | None:
    """The number of the process; None without one."""
    return self._process.pid if self._process is not None else None

  def experiments(self) -> json_values.JsonObject:
    """`experiments`: of each `name`, `summary`, `doc` and `parts` of that; `lines`: why others are missing."""
    return self.ask('list', [f'--registry={name}' for name in self.registry])

  def check(
    self, flags: Sequence[str], fields: bool = False, params: bool = False, quick: bool = False, cwd: str = ''
  ) -> json_values.JsonObject:
    """The driver's answer to flags, before it builds a model.

    Args:
      flags: of train.py, --registry among them.
      fields: whether to return `fields`, for a form.
      params: whether to return `params`, the text of params.yaml.
      quick: whether the checks that need devices and the task are left out.
      cwd: the folder in which the command is given; '' for the driver's.

    Returns:
      `lines`: the driver's errors, each with its `text` and its subject, `field`, a dotted path, a flag or None;
      `complete`: whether all checks ended in time; and the fields of `driver_server.py`.
    """
    return self.ask('check', flags, fields=fields, params=params, quick=quick, cwd=cwd)

  def ask(self, do: str, arguments: Sequence[str], **more: object) -> json_values.JsonObject:
    """Asks, starts the process if necessary, and waits for the answer.

    Raises:
      DriverError: there is no answer: the process does not start, or has died of this request twice.
    """
    with self._asking:
      request = {'do': do, 'arguments': list(arguments), 'seconds': _ANSWER_SECONDS, **more}
      for _ in range(3):  # A stale process, a killed one, and a good one.
        try:
          found = self._ask(request)
        except _GoneError:
          self._end()
          continue
        if found.get('stale'):
          self._end()
          continue
        if 'failure' in found:
          raise DriverError(found['failure'])
        return found
    raise DriverError('the process that asks the driver has died again and again')

  def close(self) -> None:
    """Ends the process."""
    with self._asking:
      self._end()

  def _ask(self, request: json_values.JsonMapping) -> dict[str, object]:
    if not self.is_ready:
      self._start()
    self._number += 1
    self._write(json.dumps({'id': self._number, **request}).encode() + b'\n')
    while True:
      found = self._read(request['seconds'] + _PATIENCE_SECONDS)
      if found.get('id') == self._number:
        return found

  def _start(self) -> None:
    self._end()
    begin = time.monotonic()
    self._stages = (('starting Python', begin),)
    try:
      self._process = self._launch()
      while 'stage' in (found := self._read(begin + _START_SECONDS - time.monotonic())):
        self._stages += ((found['stage'], time.monotonic()),)
    except _GoneError:
      status, stage = self._status(), self._stages[-1][0]
      self._end()
      how = 'hangs' if status is None else f'has ended with status {status}, and says why on stderr'
      raise DriverError(f'the process that asks the driver, {_SERVER}, does not start: {stage}, it {how}') from None
    finally:
      self._stages = ()
    self._is_ready = True

  def _status(self) -> int | None:
    """The exit status of the process; None if it lives. Its output ends a moment before it does."""
    deadline = time.monotonic() + _END_SECONDS
    while (status := self._process.poll()) is None and time.monotonic() < deadline:
      time.sleep(0.01)
    return status

  def _launch(self) -> object:
    return subprocess.Popen(
      [sys.executable, '-m', _SERVER, self.program, *(f'--registry={name}' for name in self.registry)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      cwd=self.cwd,
    )

  def _write(self, content: bytes) -> None:
    descriptor, deadline = self._process.stdin.fileno(), time.monotonic() + _PATIENCE_SECONDS
    os.set_blocking(descriptor, False)
    while content:
      if not select.select([], [descriptor], [], max(0.0, deadline - time.monotonic()))[1]:
        raise _GoneError
      try:
        content = content[os.write(descriptor, content) :]
      except OSError:
        raise _GoneError from None

  def _read(self, seconds: float) -> json_values.JsonObject:
    """The next line of the process."""
    descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
    while b'\n' not in self._rest:
      if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        raise _GoneError
      part = os.read(descriptor, 1 << 20)
      if not part or len(self._rest) > _MAX_BYTES:
        raise _GoneError
      self._rest += part
    line, _, self._rest = self._rest.partition(b'\n')
    return json.loads(line)

  def _end(self) -> None:
    process, self._process, self._is_ready, self._rest = self._process, None, False, b''
    if process is None:
      return
    if process.poll() is None:
      if not processes.signal_group(process.pid, signal.SIGKILL):  # It has a group once it has begun.
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
      try:
        if pipe is not None:
          pipe.close()
      except OSError:  # The data not written yet.
        pass


UNSET = '-'  # A value that the experiment lacks.


def changed_fields(run: run_folders.Run, values: Mapping[str, object], driver: Driver) -> json_values.JsonObject:
  """Dotted path -> the experiment's own value, of each field that has another one in the run; UNSET if it has no such.

  Args:
    run: the run.
    values: its configuration, flat.
    driver: gives the experiment's; it starts a process with TensorFlow if it has none.

  Raises:
    UserError: the run's record does not name its experiment, or that is not registered any more.
    DriverError: there is no answer.
  """
  record = run.record() or {}
  experiment, registry = record.get('experiment'), record.get('registry')
  if not isinstance(experiment, str) or not experiment:
    raise errors.UserError(f'{run.name}: its record does not name its experiment')
  modules = dict.fromkeys([*driver.registry, *(registry if isinstance(registry, list) else [])])
  flags = [f'--experiment={experiment}', '--mode=train', *(f'--registry={module}' for module in modules)]
  # All checks: some fields depend on the data. The folder is not made, and has no checkpoint that would be in the way.
  found = driver.check([*flags, f'--model_dir={run.path}.defaults'], params=True)
  if not found.get('params'):
    lines = [line['text'] for line in found.get('lines', [])]
    raise errors.UserError(f'{run.name}: {lines[0] if lines else "the driver does not return the defaults"}')
  defaults = config_text.flatten(config_text.load(found['params'], run_folders.PARAMS))
  return {
    path: defaults.get(path, UNSET)
    for path, value in values.items()
    if path not in defaults or repr(defaults[path]) != repr(value)
  }
