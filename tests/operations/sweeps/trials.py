"""Sweeps of a program that writes a run's files, in a fraction of a second, and controllers that a test can kill."""

import json
import multiprocessing
import os
import pathlib
import signal
import sys
import time

from official_ext.base import errors
from official_ext.operations.queue import dispatcher
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from official_ext.operations.sweeps import sweep_controller
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder
from official_ext.operations.sweeps import sweep_points
from tests.operations.queue import queues

# A stand-in for a training: five evaluations, whose loss is least at x = 0.3. It needs no import that takes long.
PROGRAM = r"""
import json, os, signal, sys, time

flags = dict(word.lstrip('-').partition('=')[::2] for word in sys.argv[1:] if not word.startswith('--set='))
values = dict(word[6:].partition('=')[::2] for word in sys.argv[1:] if word.startswith('--set='))
folder, x = flags['model_dir'], float(values['x'])
do, seconds = values.get('do', ''), float(values.get('seconds', 0))
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
with open('/proc/self/stat') as file:
  start = int(file.read().rpartition(')')[2].split()[19])
with open('/proc/sys/kernel/random/boot_id') as file:
  boot_id = file.read().strip()
record = {'host': os.uname().nodename, 'pid': os.getpid(), 'pid_start': start, 'boot_id': boot_id}
record['pid_namespace'] = os.readlink('/proc/self/ns/pid')


def note(status, step):
  with open(f'{folder}/run.json.new', 'w') as file:
    json.dump({**record, 'status': status, 'step': step, 'mode': 'train'}, file)
  os.replace(f'{folder}/run.json.new', f'{folder}/run.json')


def log(step, **metrics):
  with open(f'{folder}/events.jsonl', 'a') as file:
    print(json.dumps({'time': time.time(), 'event': 'eval', 'step': step, **metrics}), file=file, flush=True)
    os.fsync(file.fileno())  # As a run does before it saves, and at its end.
  names = os.open(folder, os.O_RDONLY)
  os.fsync(names)
  os.close(names)


with open(f'{folder}/starts', 'a') as file:
  print(os.getpid(), file=file)
if do == 'fail' and not os.path.exists(f'{folder}/../mended'):
  sys.exit('it has failed')
if do == 'diverge':
  sys.exit(3)
step = 0
if os.path.exists(f'{folder}/checkpoint'):
  with open(f'{folder}/checkpoint') as file:
    step = int(file.read())
note('running', step)
while step < 5:
  time.sleep(seconds / 5)
  step += 1
  log(step, **({'accuracy': 0.5} if do == 'rename' else {'loss': 'NaN' if do == 'nan' else (x - 0.3) ** 2 + 1 / step}))
  note('running', step)
  if stops:
    with open(f'{folder}/checkpoint', 'w') as file:
      file.write(str(step))
    note('preempted', step)
    sys.exit(75)
note('finished', step)
"""
_PROCESSES = multiprocessing.get_context('forkserver')
_PROCESSES.set_forkserver_preload(['pytest', 'optuna', 'tests.operations.sweeps.trials'])
_POLL_SECONDS = 0.05


class SweepTrial:
  """A sweep of that program in a folder, with a separate dispatcher.

  Attributes:
    folder: the sweep.
    queue: of its runs.
  """

  def __init__(self, tmp_path: pathlib.Path, values, name: str = 'search'):
    """Makes the sweep, and starts nothing; `values` are the file's, besides the program and the metric."""
    self._tmp_path = tmp_path
    program = tmp_path / 'program.py'
    program.write_text(PROGRAM)
    self.values = {'program': 'program.py', 'metric': {'name': 'loss', 'goal': 'minimize'}, **values}
    self.folder = sweep_folder.SweepFolder(str(tmp_path / 'runs'), name)
    self.folder.write(json.dumps(self.values), {'cwd': str(tmp_path), 'program': str(program)})
    self.queue = self.folder.queue
    self._processes = []

  def controller(self, slots: int = 1, dies_at: int = 0, dispatches: bool = False):
    """Starts a controller as a process.

    Args:
      slots: of the controller.
      dies_at: the number of the step of its work before which it kills itself.
      dispatches: whether it starts dispatchers, as `official-ext sweep` does.
    """
    process = _PROCESSES.Process(
      target=_control,
      args=(self.folder.runs_dir, self.folder.name, slots, str(self._output), dies_at, dispatches),
      daemon=True,
    )
    process.start()
    self._processes.append(process)
    return process

  def dispatch(self, slots: int = 1, until_empty: bool = False):
    """Starts a dispatcher that works until the end of the test, or until the queue is empty."""
    process = _PROCESSES.Process(target=_dispatch, args=(self.folder.runs_dir, slots, until_empty), daemon=True)
    process.start()
    self._processes.append(process)
    queues.until(self.queue.dispatcher)
    return process

  def finish(self, slots: int = 1, dies_at: int = 0, dispatches: bool = False) -> int:
    """Runs a controller to its end; returns its exit status."""
    process = self.controller(slots, dies_at, dispatches)
    process.join(queues.PATIENCE)
    assert process.exitcode is not None, self.output()
    return process.exitcode

  @property
  def _output(self) -> pathlib.Path:
    return self._tmp_path / 'output'

  def output(self) -> str:
    """The output of controllers."""
    return self._output.read_text()

  def points(self):
    """All points, by number, read anew."""
    found = sweep_points.PointReader(self.folder).read(self.folder.load())
    return {point.number: point for point in found}

  def statuses(self):
    """The status of each point."""
    return {number: point.status for number, point in self.points().items()}

  def starts(self, number: int) -> int:
    """How often the program of a point was started."""
    path = pathlib.Path(self.points()[number].record.folder, 'starts')
    return len(path.read_text().splitlines()) if path.exists() else 0

  def sweep(self) -> sweep_file.SweepFile:
    """The contents of its file."""
    return self.folder.load()

  def close(self):
    """Ends running processes."""
    for process in self._processes:
      process.kill()
      process.join(queues.PATIENCE)
    for state in queue_folder.Queue(self.folder.runs_dir).states():
      if state.has_slot:
        queue_changes.cancel(self.queue, state.number, kill=True)
    queues.until(lambda: not any(state.has_slot for state in queue_folder.Queue(self.folder.runs_dir).states()))


def _control(runs_dir, name, slots, output, dies_at, dispatches):
  file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
  os.dup2(file, 1)
  os.dup2(file, 2)
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  if dies_at:
    sys.addaudithook(queues.dying_at(dies_at))
  try:
    folder = sweep_folder.SweepFolder(runs_dir, name)
    start = lambda count: dispatches and folder.queue.start_dispatcher(count, until_empty=True)
    status = sweep_controller.Controller(folder, slots, start, poll_seconds=_POLL_SECONDS).run()
  except (errors.UserError, errors.StorageError) as error:
    print(f'error: {error}', flush=True)
    status = error.exit_status
  sys.exit(status)


def _dispatch(runs_dir, slots, until_empty):
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  found = dispatcher.Slots(slots)
  dispatcher.Dispatcher(queue_folder.Queue(runs_dir), found, poll_seconds=_POLL_SECONDS).run(until_empty)


def wait(seconds: float) -> None:
  """Lets others work."""
  time.sleep(seconds)
