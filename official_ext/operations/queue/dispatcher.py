"""Starts the jobs of a queue, at most as many at once as there are slots. No TensorFlow.

One process at a time is the dispatcher: it holds a lock that the kernel releases however it ends. It owns nothing else:
jobs run in separate sessions, and their state is in the files. So it may be killed at any moment, and
the next one continues: a job that was ordered and has not started gets another runner, of which one starts the command
(job_runner.py); a job that has started is left alone; the number of slots in use is counted from the files and from
the processes that live.
"""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
import time

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base.files import file_lock
from official_ext.base.files import moments
from official_ext.base.processes import process_identity
from official_ext.operations.queue import alerts as alerts_lib
from official_ext.operations.queue import job_files
from official_ext.operations.queue import job_status
from official_ext.operations.queue import queue_folder
from official_ext.operations.queue import slots as slots_lib
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import run_folder

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 2.0  # A dispatcher that was killed a moment ago may still hold its lock.
_AGAIN_SECONDS = (1.0, 30.0)  # Between two tries of a failed action: at first, and at most.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclasses.dataclass
class _Try:
  """The runner that this dispatcher has started for an attempt, how the last one failed, and when to start the next."""

  process: subprocess.Popen | None = None
  error: int = 0
  not_before: float = 0.0
  seconds: float = _AGAIN_SECONDS[0]


class Dispatcher:
  """Starts the jobs of a queue."""

  def __init__(
    self,
    queue: queue_folder.Queue,
    slots: slots_lib.Slots,
    poll_seconds: float = _POLL_SECONDS,
    alerts: alerts_lib.Alerts | None = None,
  ):
    """Starts nothing yet.

    Args:
      queue: the queue.
      slots: how many jobs may run at once, and their GPUs.
      poll_seconds: how often it looks for changes; the end of a run that it has started wakes it up.
      alerts: sent to people beside it.
    """
    self._queue = queue
    self._slots = slots
    self._poll_seconds = poll_seconds
    self._alerts = alerts
    self._tries: dict[str, _Try] = {}
    self._told: dict[int, tuple[str, str]] = {}
    self._troubles: set[str] = set()  # Of this round, and of the one before.
    self._told_troubles: set[str] = set()
    self._any_failed = False

  def run(self, until_empty: bool = False) -> int:
    """Works until a signal comes.

    Args:
      until_empty: ends when no job waits or runs, and nobody has said that more will be added.

    Returns:
      The exit status: 0; 1 if a job has failed while this process worked.

    Raises:
      UserError: another dispatcher works on this queue, or others may write into its folder.
      StorageError: the queue's folder is gone, or cannot be read.
    """
    with job_files.explaining(self._queue.folder), contextlib.ExitStack() as stack:
      self._check_folder()
      busy = lambda: f'{self._queue.runs_dir}: {self._other()} dispatches its queue already'
      lock = stack.enter_context(job_files.locked(self._queue.lock_path, _PATIENCE_SECONDS, busy))
      with contextlib.suppress(OSError):  # A full disk: it is for people.
        os.ftruncate(lock.descriptor, 0)
        os.pwrite(lock.descriptor, json.dumps(self._description()).encode(), 0)
      # Those that are ignored, as under nohup, stay so.
      ending = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
      before = signal.pthread_sigmask(signal.SIG_BLOCK, (*ending, signal.SIGCHLD))
      stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
      if self._alerts is not None:
        self._alerts.start(_say)
        stack.callback(self._alerts.close)
      return self._loop(lock, until_empty, ending)

  def _loop(self, lock: file_lock.FileLock, until_empty: bool, ending: Sequence[int]) -> int:
    while True:
      if not file_lock.is_at(lock.descriptor, self._queue.lock_path):
        raise errors.StorageError(f'{self._queue.folder}: is gone, or another one; running jobs continue')
      is_empty = self._work()
      if is_empty and until_empty and not self._queue.expects_more():
        if self._alerts is not None:
          self._alerts.finish()
        return int(self._any_failed)
      received = signal.sigtimedwait((*ending, signal.SIGCHLD), self._poll_seconds)
      if received is not None and received.si_signo in ending:
        _say(f'{signal.Signals(received.si_signo).name}: starts no more jobs; running jobs continue')
        return 0

  def _check_folder(self) -> None:
    """Refuses a folder into which others may write: its files say which programs to run."""
    self._queue.make()
    found = os.stat(self._queue.folder)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
      raise errors.UserError(
        f'{self._queue.folder}: others may write into it, and its commands are run; `chmod go-w` it, if its contents '
        'are yours'
      )

  def _other(self) -> str:
    other = self._queue.dispatcher()
    return str(process_identity.parse(other or {}) or 'another process')

  def _description(self) -> Mapping[str, object]:
    return {
      **process_identity.own().as_dict(),
      'slots': self._slots.count,
      'gpus': self._slots.gpus,
      'since': moments.now(),
    }

  # One round.

  def _work(self) -> bool:
    """Takes all actions that are due. Returns whether no job waits or runs."""
    self._told_troubles, self._troubles = self._troubles, set()
    try:
      states = self._queue.states()
      for state in states:
        self._tell(state)
      holders = [state for state in states if state.has_slot]
      self._forget_others(holders)
      waiting = self._queue.waiting(states)
      if not self._queue.is_paused:
        self._start_ordered(holders)
        self._order_more(waiting, holders)
      return not waiting and not holders
    except (OSError, errors.StorageError) as error:
      # A disk that is full or gone: everything is in the files, and the next round begins with them.
      self._tell_trouble(str(error))
      return False

  def _start_ordered(self, holders: Sequence[job_status.State]) -> None:
    """Starts runners for attempts that were ordered, and have neither a runner of this dispatcher's nor started."""
    for state in holders:
      if state.attempt is not None and state.attempt.process is None and state.attempt.ended is None:
        self._start(state)

  def _order_more(self, waiting: Sequence[job_status.State], holders: list[job_status.State]) -> None:
    """Orders jobs for all slots that are free, in their order."""
    waiting = list(waiting)
    while (choice := slots_lib.choose(waiting, holders, self._slots, self._is_free)) is not None:
      state, gpus = choice
      assert state.job is not None
      self._settle(state)
      attempt = job_files.order_attempt(state.job, state.next_attempt, secrets.token_hex(16), gpus)
      ordered = job_status.State(state.number, 'starting', '', state.job, attempt, has_slot=True)
      waiting.remove(state)
      holders.append(ordered)
      self._tell(ordered)
      self._start(ordered)

  def _is_free(self, job: job_files.Job) -> bool:
    """Whether no other run, which somebody has started by hand, lives in the folder of a job."""
    if not job.run_files or not judged_status.is_alive(run_folder.Run(job.model_dir, ''), job.mode):
      return True
    self._tell_trouble(f'job {job.number}: another run lives in {job.model_dir}; it is started after that')
    return False

  def _settle(self, state: job_status.State) -> None:
    """Writes down that the attempt before was lost, if nobody has written how it ended."""
    if state.attempt is not None and state.attempt.ended is None:
      job_files.end(state.attempt.path, job_files.LOST)

  def _start(self, state: job_status.State) -> None:
    """Starts a runner for an attempt, unless the one that this dispatcher has started for it lives."""
    assert state.job is not None and state.attempt is not None
    attempt = self._tries.setdefault(state.attempt.token, _Try())
    if attempt.process is not None:
      error = attempt.process.poll()
      if error is None:
        return
      attempt.process = None
      if error != 0:
        if error != attempt.error:
          _say(f'job {state.number} cannot be started now: {os.strerror(max(error, 0))}; it is retried')
        attempt.error = error
        attempt.not_before = time.monotonic() + attempt.seconds
        attempt.seconds = min(2 * attempt.seconds, _AGAIN_SECONDS[1])
    if time.monotonic() < attempt.not_before:
      return
    attempt.process = subprocess.Popen(
      [
        *(sys.executable, '-m', 'official_ext.operations.queue.job_runner'),
        *(state.job.folder, str(state.attempt.number), state.attempt.token),
      ],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      start_new_session=True,
    )

  def _forget_others(self, holders: Sequence[job_status.State]) -> None:
    """Takes note of runners that have ended, and forgets attempts that are over."""
    tokens = {state.attempt.token for state in holders if state.attempt}
    for token, attempt in list(self._tries.items()):
      if token not in tokens and (attempt.process is None or attempt.process.poll() is not None):
        del self._tries[token]

  # The alerts.

  def _tell(self, state: job_status.State) -> None:
    """Prints how a job stands, when that has changed."""
    now = (state.status, state.reason)
    before = self._told.get(state.number)
    if before == now:
      return
    self._told[state.number] = now
    if before is None and state.status in job_status.OVER:  # Over before this dispatcher began.
      return
    self._any_failed = self._any_failed or state.status == 'failed'
    name = f' ({state.job.model_dir})' if state.job and state.job.model_dir else ''
    attempt = f', attempt {state.restarts + 1}' if state.restarts and state.has_slot else ''
    _say(f'job {state.number}{name}: {state.status}{attempt}' + (f': {state.reason}' if state.reason else ''))

  def _tell_trouble(self, text: str) -> None:
    """Prints the errors of this round that the one before did not have."""
    if text not in self._troubles | self._told_troubles:
      _say(text)
    self._troubles.add(text)


def _say(text: str) -> None:
  credentials.print_masked(f'queue: {text}')
