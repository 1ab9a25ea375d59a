"""A run that stands still: it is noticed, says where every thread is, and ends, so that it can be started again.

A data source that blocks, a Python function in a pipeline that never returns, a collective operation that waits for a
worker: the main thread is in C++ then, and hears nothing. So a thread of its own watches signs of life, and ends the
process. A native function that keeps Python's lock stops that thread too.
"""

from collections.abc import Callable
import faulthandler
import os
import socket
import sys
import tempfile
import threading
import time

from official_ext import errors
from official_ext.files import storage

_COMPILING_FACTOR = 10
_MAX_POLL_SECONDS = 5.0
_MIN_POLL_SECONDS = 0.05
_REPORT_SECONDS = 20.0  # That the last words may take: what has hung may be the disk.
_GRACE_POLLS = 4  # For the other workers to notice by themselves.


class HangWatch:
  """Ends the process where nothing has moved for too long. Used as a context around a run.

  Signs of life are the global step, which is looked at from outside, since a loop of many steps runs in C++; every
  `beat`; and every new stage. Time counts by the watching thread's own sleep: a process that was stopped (SIGSTOP, a
  laptop that sleeps) has not stood still meanwhile.
  """

  def __init__(
    self,
    seconds: float,
    read_step: Callable[[], int],
    model_dir: str = '',
    worker: int = 0,
    report: Callable[[errors.HungError, int], None] = lambda error, step: None,
  ):
    """Makes a watch that does not watch yet.

    Args:
      seconds: how long nothing may move; 0 watches nothing. Until the first step, or the first batch of an evaluation,
        it may take ten times as long.
      read_step: returns the global step. It may block.
      model_dir: where the stacks are written to, as hung.worker-N.txt.
      worker: the number of this worker.
      report: called with what has happened and the step; it may block.
    """
    self._seconds = seconds
    self._read_step = read_step
    self._path = os.path.join(model_dir, f'hung.worker-{worker}.txt')
    self._report = report
    self._poll = min(_MAX_POLL_SECONDS, max(_MIN_POLL_SECONDS, seconds / 20))
    self._num_beats = 0
    self._step: int | None = None
    self._trains_from: int | None = None
    self._stage = 'start'
    self._warm = {'train': False, 'eval': False}
    self._ended = threading.Event()
    self._hung = False
    self._thread: threading.Thread | None = None

  def beat(self) -> None:
    """A sign of life."""
    self._num_beats += 1
    if self._stage == 'eval':
      self._warm['eval'] = True

  def enter(self, stage: str) -> None:
    """The run does something else from now on: 'train', 'eval', 'save', ..."""
    self._num_beats += 1
    self._stage = stage
    if stage == 'train':
      self._step = None  # Looked at anew: a restore is no step.

  def __enter__(self) -> 'HangWatch':
    if self._seconds > 0:
      self._thread = threading.Thread(target=self._watch, name='hang_watch', daemon=True)
      self._thread.start()
      threading.Thread(target=self._look_at_step, name='hang_watch_step', daemon=True).start()
    return self

  def __exit__(self, *_) -> None:
    self._ended.set()
    if self._hung and self._thread is not None:  # Another worker's end was faster; this thread ends the process.
      self._thread.join()

  def _look_at_step(self) -> None:
    """In a thread of its own: to read a variable waits for the program that writes to it."""
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
    while not self._ended.wait(self._poll):
      now = time.monotonic()
      still += min(now - before, 2 * self._poll)  # More has passed where the process was stopped.
      before = now
      if self._num_beats != seen:
        still, seen = 0.0, self._num_beats
      elif still >= self._limit:
        self._end(still)

  def _end(self, still: float) -> None:
    """Tells all that is known, and ends the process."""
    self._hung = True
    error = errors.HungError(
      f'nothing has moved for {still:.3g} s (runtime.hang_seconds) at step {self._step or 0}, in the stage '
      f'{self._stage}; where every thread is: {self._path}. The same command goes on from the newest checkpoint'
    )
    # What has hung may be the disk, or who reads this process's output.
    telling = threading.Thread(target=self._tell, args=(error,), name='hang_watch_report', daemon=True)
    telling.start()
    telling.join(_REPORT_SECONDS)
    time.sleep(_GRACE_POLLS * self._poll)  # Other workers, which would take this one's end for a crash, tell theirs.
    os._exit(errors.HungError.exit_status)

  def _tell(self, error: errors.HungError) -> None:
    stacks = _stacks()
    for tell in (self._print, self._write):
      try:
        tell(error, stacks)
      except (errors.StorageError, *storage.FAILURES):
        pass
    self._report(error, self._step or 0)

  def _print(self, error: errors.HungError, stacks: str) -> None:
    print(f'{stacks}hung: {error}', file=sys.stderr, flush=True)

  def _write(self, error: errors.HungError, stacks: str) -> None:
    when = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
    storage.write(self._path, f'{when} host {socket.gethostname()} process {os.getpid()}\n{error}\n\n{stacks}')


def _stacks() -> str:
  """Where every thread of this process is."""
  try:
    with tempfile.TemporaryFile() as f:
      faulthandler.dump_traceback(f, all_threads=True)
      f.seek(0)
      text = f.read().decode(errors='replace')
  except OSError:  # It is the disk that is ill.
    faulthandler.dump_traceback(all_threads=True)
    return ''
  names = {f'0x{thread.ident:016x}': thread.name for thread in threading.enumerate() if thread.ident}
  for ident, name in names.items():
    text = text.replace(f'hread {ident}', f'hread {ident} [{name}]')
  return text
