"""Ends a run that hangs, after writing the stacks of all threads, so that it can be restarted.

The main thread hangs in C++ and cannot react: in a data source that blocks, in a Python function of a pipeline, in a
collective operation that waits for a worker. So another thread watches for signs of life and ends the process. A native
function that holds Python's interpreter lock stops that thread too; the thread therefore reports to the launcher.
"""

from collections.abc import Callable
import faulthandler
import os
import socket
import sys
import tempfile
import threading
import time

from official_ext.base import errors
from official_ext.base import launcher
from official_ext.base.files import storage

_COMPILING_FACTOR = 10
_MAX_POLL_SECONDS = 5.0
_MIN_POLL_SECONDS = 0.05
_REPORT_SECONDS = 20.0  # For the last messages: the disk may hang.
_GRACE_POLLS = 4  # For the other workers to notice by themselves.


def print_nothing(error: errors.HungError) -> None:
  """Prints nothing after the text of the error."""
  del error


print_last: Callable[[errors.HungError], None] = print_nothing  # The driver prints JSON for --json.


class HangWatch:
  """Ends the process when nothing has moved for too long. Used as a context around a run.

  Signs of life are a change of the global step, which a thread reads, since a loop of many steps runs in C++; every
  `beat`; and every new stage. Time is the sum of the watching thread's own sleeps, so that a suspended process
  (SIGSTOP, a sleeping laptop) does not count as hung.
  """

  def __init__(
    self,
    seconds: float,
    read_step: Callable[[], int],
    model_dir: str = '',
    worker: int = 0,
    report: Callable[[errors.HungError, int], None] = lambda error, step: None,
    at_last: Callable[[], None] = lambda: None,
  ):
    """Makes the watch; entering its context starts it.

    Args:
      seconds: the longest time without a sign of life; 0: no limit. Ten times as long until the first step, or the
        first batch of an evaluation, is done.
      read_step: returns the global step. It may block.
      model_dir: where the stacks are written to, as hung.worker-N.txt.
      worker: the number of this worker.
      report: called with a message and the step; it may block.
      at_last: called right before the process ends, when only the hung part can still write; it may block.
    """
    self._seconds = seconds
    self._read_step = read_step
    self._path = os.path.join(model_dir, f'hung.worker-{worker}.txt')
    self._report = report
    self._at_last = at_last
    self._poll = min(_MAX_POLL_SECONDS, max(_MIN_POLL_SECONDS, seconds / 20))
    self._num_beats = 0
    self._step: int | None = None
    self._trains_from: int | None = None
    self._stage = 'start'
    self._warm = {'train': False, 'eval': False}
    self._ended = threading.Event()
    self._hung = False
    self._deciding = threading.Lock()  # Between the end of the run, and its end as hung.
    self._thread: threading.Thread | None = None

  def beat(self) -> None:
    """A sign of life."""
    self._num_beats += 1
    if self._stage == 'eval':
      self._warm['eval'] = True

  def enter(self, stage: str) -> None:
    """Notes a new stage of the run: 'train', 'eval', 'save', ..."""
    self._num_beats += 1
    self._stage = stage
    if stage == 'train':
      self._step = None  # Read again: a restore is not a step.

  def __enter__(self) -> 'HangWatch':
    if self._seconds > 0:
      self._thread = threading.Thread(target=self._watch, name='hang_watch', daemon=True)
      self._thread.start()
      threading.Thread(target=self._look_at_step, name='hang_watch_step', daemon=True).start()
    return self

  def __exit__(self, *_) -> None:
    with self._deciding:
      self._ended.set()
    if self._hung and self._thread is not None:  # Another worker's end was faster; this thread ends the process.
      self._thread.join()

  def _look_at_step(self) -> None:
    """Runs in a separate thread: reading a variable waits for the program that writes to it."""
    while not self._ended.wait(self._poll):
      try:
        step = int(self._read_step())
      except Exception:  # pylint: disable=broad-except  # The run itself will meet it.
        continue
      if step != self._step:
        if self._trains_from is None:
          self._trains_from = step if self._stage == 'train' else None
        elif step != self._trains_from:
          self._warm['train'] = True
        self._step = step
        self._num_beats += 1

  @property
  def _limit(self) -> float:
    compiles = not self._warm.get(self._stage, True) or self._stage == 'start'
    return self._seconds * (_COMPILING_FACTOR if compiles else 1)

  def _watch(self) -> None:
    still, seen, before = 0.0, -1, time.monotonic()
    signs = launcher.SignsOfLife()
    while not self._ended.wait(self._poll):
      signs.give()
      now = time.monotonic()
      still += min(now - before, 2 * self._poll)  # More has passed if the process was stopped.
      before = now
      if self._num_beats != seen:
        still, seen = 0.0, self._num_beats
      elif still >= self._limit:
        signs.leave()
        self._end(still)
    signs.leave()

  def _end(self, still: float) -> None:
    """Reports all that is known, and ends the process; does nothing if the run has ended meanwhile."""
    with self._deciding:
      if self._ended.is_set():
        return
      self._hung = True
    error = errors.HungError(
      f'no progress for {still:.3g} s (runtime.hang_seconds) at step {self._step or 0}, in the stage '
      f'{self._stage}; stacks of all threads: {self._path}. The same command resumes from the newest checkpoint'
    )
    # The disk may hang, or the reader of this process's output.
    _call(lambda: self._report_all(error), 'hang_watch_report')
    time.sleep(_GRACE_POLLS * self._poll)  # Other workers report too, before they take this one's end for a crash.
    _call(self._at_last, 'hang_watch_last')
    _call(lambda: print_last(error), 'hang_watch_print')
    os._exit(errors.HungError.exit_status)

  def _report_all(self, error: errors.HungError) -> None:
    stacks = _stacks()
    for report in (self._print, self._write):
      try:
        report(error, stacks)
      except (errors.StorageError, *storage.FAILURES):
        pass
    self._report(error, self._step or 0)

  def _print(self, error: errors.HungError, stacks: str) -> None:
    print(f'{stacks}hung: {error}', file=sys.stderr, flush=True)

  def _write(self, error: errors.HungError, stacks: str) -> None:
    when = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
    storage.write(self._path, f'{when} host {socket.gethostname()} process {os.getpid()}\n{error}\n\n{stacks}')


def _call(function: Callable[[], None], name: str) -> None:
  """Calls a function that may block, and waits for it a limited time."""
  thread = threading.Thread(target=function, name=name, daemon=True)
  thread.start()
  thread.join(_REPORT_SECONDS)


def _stacks() -> str:
  """The stacks of all threads of this process."""
  try:
    with tempfile.TemporaryFile() as f:
      faulthandler.dump_traceback(f, all_threads=True)
      f.seek(0)
      text = f.read().decode(errors='replace')
  except OSError:  # The disk itself fails.
    faulthandler.dump_traceback(all_threads=True)
    return ''
  names = {f'0x{thread.ident:016x}': thread.name for thread in threading.enumerate() if thread.ident}
  for ident, name in names.items():
    text = text.replace(f'hread {ident}', f'hread {ident} [{name}]')
  return text
