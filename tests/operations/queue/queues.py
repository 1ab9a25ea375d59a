"""Queues of small shell commands, and dispatchers as processes that a test can kill."""

from collections.abc import Callable, Collection, Sequence
import contextlib
import multiprocessing
import os
import pathlib
import signal
import sys
import time
from typing import Any

from official_ext.base import errors
from official_ext.operations.queue import dispatcher
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from official_ext.operations.queue import queued_jobs

ROOT = pathlib.Path(__file__).resolve().parents[3]
PATIENCE = 240.0  # On a machine with other work.

# Dispatchers are forked from a process that has their imports, and neither threads nor TensorFlow.
_PROCESSES = multiprocessing.get_context('forkserver')
_PROCESSES.set_forkserver_preload(['pytest', 'tests.operations.queue.queues'])


class Dispatching:
  """A dispatcher as a separate process, which a test can kill."""

  def __init__(self, folder: pathlib.Path, output: pathlib.Path, *arguments: Any):
    self._output = output
    self._output.touch()
    self._process = _PROCESSES.Process(target=_dispatch, args=(str(folder), str(self._output), *arguments), daemon=True)
    self._process.start()
    self.pid = self._process.pid

  def poll(self) -> int | None:
    """The exit status, minus its signal; None while it runs."""
    return self._process.exitcode

  def wait(self, patience: float = PATIENCE) -> int:
    """Waits for its end, and returns the exit status."""
    self._process.join(patience)
    assert self._process.exitcode is not None, self.output()
    return self._process.exitcode

  def send_signal(self, number: int) -> None:
    if self.poll() is None:
      with contextlib.suppress(ProcessLookupError):  # It has ended, and its parent has taken note.
        os.kill(self.pid, number)

  def kill(self) -> None:
    """Kills it, if it has not ended."""
    self.send_signal(signal.SIGKILL)
    self.wait()

  def output(self) -> str:
    """Its output."""
    return self._output.read_text()


def _dispatch(folder, output, slots, gpus, until_empty, dies_at, urls):
  file = os.open(output, os.O_WRONLY | os.O_APPEND)
  os.dup2(file, 1)
  os.dup2(file, 2)
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_DFL)
  signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As under nohup.
  if dies_at:
    sys.addaudithook(dying_at(dies_at))
  gpu_names = tuple(gpus.split(',')) if gpus else None
  queue = queue_folder.Queue(folder)
  made = dispatcher.Dispatcher(queue, dispatcher.Slots(slots, gpu_names), poll_seconds=0.1, urls=urls)
  try:
    status = made.run(until_empty)
  except (errors.UserError, errors.StorageError) as error:
    print(f'error: {error}', flush=True)
    status = error.exit_status
  sys.exit(status)


def dying_at(step: int, events: Collection[str] = ('os.rename', 'os.mkdir', 'subprocess.Popen')) -> Callable:
  """An audit hook that kills its process before a step, counted from 1, of those that leave a trace.

  These are the audit events of those names, and the opening of files that may be made by it.
  """
  steps = 0

  def watch(event, arguments):
    nonlocal steps
    if event in events or (event == 'open' and arguments[2] & os.O_CREAT):
      steps += 1
      if steps == step:
        os.kill(os.getpid(), signal.SIGKILL)

  return watch


class Trial:
  """A queue in a folder, whose jobs leave a trace: a line when they start and when they end.

  Attributes:
    queue: the queue.
    folder: of its runs.
  """

  def __init__(self, folder: pathlib.Path, outputs: pathlib.Path | None = None):
    """Makes no queue yet.

    Args:
      folder: of its runs, which is made.
      outputs: the folder for the output of dispatchers, if another.
    """
    self.folder = folder
    self.queue = queue_folder.Queue(str(folder))
    self._trace = folder / 'trace'
    self._outputs = outputs or folder
    self._go = self._outputs / 'go'
    self._dispatchers: list[Dispatching] = []
    folder.mkdir(parents=True, exist_ok=True)

  def add(self, do: str = '', seconds: float = 0.0, together: int = 0, held: bool = False, **options: Any) -> int:
    """Adds a job that notes its start, sleeps, notes its end, and then runs shell code. Returns its number.

    Args:
      do: the code, in which $starts is how often this job has started.
      seconds: how long it sleeps.
      together: it does not end before so many starts were noted, of all jobs.
      held: it does not end before `let_go`.
      **options: of `queue_changes.add`.
    """
    number = max([0, *self.queue.numbers()]) + 1
    code = '; '.join(
      [
        f'echo start {number} >> {self._trace}',
        f'sleep {seconds}',
        f'until [ $(grep -c start {self._trace}) -ge {together} ]; do sleep 0.05; done',
        f'until [ {int(not held)} = 1 ] || [ -e {self._go} ]; do sleep 0.05; done',
        f'starts=$(grep -cx "start {number}" {self._trace})',
        f'echo end {number} >> {self._trace}',
        do or 'true',
      ]
    )
    job = queue_changes.add(self.queue, ['sh', '-c', code], **options)
    assert job.number == number
    return number

  def let_go(self) -> None:
    """Lets jobs end that were held."""
    self._go.touch()

  def dispatch(
    self,
    slots: int = 1,
    gpus: str = '',
    until_empty: bool = True,
    dies_at: int = 0,
    urls: Sequence[str] = (),
  ) -> Dispatching:
    """Starts a dispatcher.

    Args:
      slots: of the dispatcher.
      gpus: likewise.
      until_empty: likewise.
      dies_at: the number of the step of its work before which it kills itself.
      urls: the receivers of messages.
    """
    output = self._outputs / f'output-{len(self._dispatchers)}'
    self._dispatchers.append(Dispatching(self.folder, output, slots, gpus, until_empty, dies_at, urls))
    return self._dispatchers[-1]

  def finish(self, patience: float = PATIENCE, **options: Any) -> str:
    """Dispatches until no job waits or runs; returns the dispatcher's output."""
    process = self.dispatch(**options)
    assert process.wait(patience) in (0, 1), process.output()
    return process.output()

  def statuses(self) -> dict[int, str]:
    """The status of each job."""
    return {state.number: state.status for state in self.states().values()}

  def states(self) -> dict[int, queued_jobs.JobState]:
    """The state of each job, read anew."""
    return {state.number: state for state in queue_folder.Queue(str(self.folder)).states()}

  def trace(self) -> list[tuple[str, int]]:
    """('start' or 'end', number of a job), in the order in which they came."""
    if not self._trace.exists():
      return []
    return [(event, int(number)) for event, number in map(str.split, self._trace.read_text().splitlines())]

  def starts(self) -> list[int]:
    """The numbers of jobs, in the order in which they started."""
    return [number for event, number in self.trace() if event == 'start']

  def most_at_once(self) -> int:
    """How many jobs ran at once, at most."""
    running = most = 0
    for event, _ in self.trace():
      running += 1 if event == 'start' else -1
      most = max(most, running)
    return most

  def close(self) -> None:
    """Ends running processes."""
    for process in self._dispatchers:
      process.kill()
    for state in self.states().values():
      if state.has_slot:
        queue_changes.cancel(self.queue, state.number, kill=True)
    until(lambda: not any(state.has_slot for state in self.states().values()))


def until(condition: Callable[[], Any]) -> Any:
  """Waits for something to become true, and returns it."""
  deadline = time.monotonic() + PATIENCE
  while not (found := condition()):
    assert time.monotonic() < deadline, 'it did not come to that'
    time.sleep(0.05)
  return found
