"""Starts the jobs of a queue, at most as many at once as there are slots.

One process at a time is the dispatcher: it holds a lock that the kernel releases however it ends. It owns nothing else:
jobs run in separate sessions, and their state is in the files. It may be killed at any moment, and the next one
continues. A job that was ordered and has not started gets another runner, of which one starts the command
(job_runner.py). A job that has started is left alone. Slots in use are counted from the files and the living processes.

Messages to people about the ends of jobs (mail, chat, phone) are sent once, through apprise, by a thread of the
dispatcher. They are lost if the receiver refuses them, or the dispatcher is killed.
"""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import notify
from official_ext.base import processes
from official_ext.base import safe_text
from official_ext.base.files import local_files
from official_ext.operations.queue import job_runner
from official_ext.operations.queue import queue_folder
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses


@dataclasses.dataclass(frozen=True)
class Slots:
  """How many runs there may be at once, and the GPUs that they share.

  Attributes:
    count: the number of slots. A run has one from its order until it is over.
    gpus: names for CUDA_VISIBLE_DEVICES; a name that occurs twice is handed out to two runs. None: no GPUs are
      known, and the variable is unchanged.
  """

  count: int
  gpus: tuple[str, ...] | None = None

  def needed(self, job: queued_jobs.Job) -> int:
    """How many GPUs a job takes: the number requested; by default one if there are any."""
    return job.gpus if job.gpus is not None else min(1, len(self.gpus or ()))

  def can_ever_hold(self, job: queued_jobs.Job) -> bool:
    """Whether there are as many GPUs as a job needs."""
    return self.needed(job) <= len(self.gpus or ())

  def has_room(self, holders: Collection[queued_jobs.JobState]) -> bool:
    """Whether another run may start in addition to the holders of slots."""
    return len(holders) < self.count

  def free_gpus(self, holders: Collection[queued_jobs.JobState]) -> list[str]:
    """GPUs that no run has."""
    free = collections.Counter(self.gpus or ())
    free.subtract(name for state in holders if state.attempt for name in state.attempt.gpus or ())
    return [name for name in self.gpus or () if _take_gpu(free, name)]

  def share(self, job: queued_jobs.Job, free_gpus: Sequence[str]) -> tuple[str, ...] | None:
    """The free GPUs that a job gets; None leaves CUDA_VISIBLE_DEVICES unchanged."""
    if self.gpus is None and job.gpus is None:
      return None
    return tuple(free_gpus[: self.needed(job)])


def _take_gpu(counts: collections.Counter, name: str) -> bool:
  counts[name] -= 1
  return counts[name] >= 0


def choose_job(
  waiting: Sequence[queued_jobs.JobState],
  holders: Sequence[queued_jobs.JobState],
  slots: Slots,
  is_free: Callable[[queued_jobs.Job], bool] = lambda job: True,
) -> tuple[queued_jobs.JobState, tuple[str, ...] | None] | None:
  """The job to start next, and its GPUs; None if none can be started now.

  The order is kept: a job that waits for GPUs is not overtaken by one that needs fewer, or it might wait for ever. Only
  jobs that are paused, whose folder is not free, or that need more GPUs than there are, are passed over.

  Args:
    waiting: jobs in their order.
    holders: the jobs that have a slot.
    slots: all slots.
    is_free: whether no other run lives in the folder of a job.
  """
  if not slots.has_room(holders):
    return None
  for state in waiting:
    if state.status != 'queued' or state.job is None or not slots.can_ever_hold(state.job) or not is_free(state.job):
      continue
    free = slots.free_gpus(holders)
    if len(free) < slots.needed(state.job):
      return None
    return state, slots.share(state.job, free)
  return None


_CLOSE_SECONDS = 10.0


class EndMessages:
  """Sends a message for each attempt of a job that ends, unless the job was cancelled."""

  def __init__(self, urls: Sequence[str], print_line: Callable[[str], None]):
    """Sends nothing yet.

    Args:
      urls: the receivers, in apprise's notation. They hold secrets, and are never printed.
      print_line: prints a line for people.
    """
    self._urls = tuple(urls)
    self._print_line = print_line
    self._messages: queue.SimpleQueue[notify.Message | None] = queue.SimpleQueue()
    self._thread: threading.Thread | None = None

  def send(self, before: str, state: queued_jobs.JobState) -> None:
    """Sends a message if a job's attempt has ended. Waits for no receiver.

    Args:
      before: the status of the job until now.
      state: of the job.
    """
    is_retried = before in queued_jobs.HOLDING and state.status in queued_jobs.WAITING
    if not self._urls or state.job is None or not (is_retried or state.status in ('finished', 'failed')):
      return
    what, reason = (state.reason, '') if is_retried else (state.status, state.reason)
    lines = [line for line in (reason, state.job.note.get('command'), state.job.model_dir) if line]
    self._messages.put(notify.compose(state.status, f'job {state.number}', what, lines))
    if self._thread is None:
      self._thread = threading.Thread(target=self._work, name='end_messages', daemon=True)
      self._thread.start()

  def close(self) -> None:
    """Waits until all messages are sent, for ten seconds at most."""
    if self._thread is not None:
      self._messages.put(None)
      self._thread.join(_CLOSE_SECONDS)

  def _work(self) -> None:
    made = notify.make_receivers(self._urls, 'messages')
    while (message := self._messages.get()) is not None:
      for receiver in made:
        if not notify.send(receiver, message):
          self._print_line(f'the message {message.title!r} was not taken by {type(receiver).__name__}')


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
    slots: Slots,
    poll_seconds: float = _POLL_SECONDS,
    urls: Sequence[str] = (),
  ):
    """Starts nothing yet.

    Args:
      queue: the queue.
      slots: how many jobs may run at once, and their GPUs.
      poll_seconds: how often it looks for changes; the end of a run that it has started wakes it up.
      urls: the receivers of messages about ended jobs; see `EndMessages`.
    """
    self._queue = queue
    self._slots = slots
    self._poll_seconds = poll_seconds
    self._messages = EndMessages(urls, _print_line)
    self._tries: dict[str, _Try] = {}
    self._reported: dict[int, tuple[str, str]] = {}
    self._troubles: set[str] = set()  # Of this round, and of the one before.
    self._reported_troubles: set[str] = set()
    self._any_failed = False

  def run(self, until_empty: bool = False) -> int:
    """Works until a signal comes.

    Args:
      until_empty: ends when no job waits or runs, and no process has announced more.

    Returns:
      The exit status: 0; 1 if a job has failed while this process worked.

    Raises:
      UserError: another dispatcher works on this queue, or others may write into its folder.
      StorageError: the queue's folder is gone, or cannot be read.
    """
    with queued_jobs.explaining(self._queue.folder), contextlib.ExitStack() as stack:
      self._check_folder()
      busy = lambda: f'{self._queue.runs_dir}: {self._other()} dispatches its queue already'
      lock = stack.enter_context(queued_jobs.locked(self._queue.lock_path, _PATIENCE_SECONDS, busy))
      with contextlib.suppress(OSError):  # A full disk: it is for people.
        os.ftruncate(lock.descriptor, 0)
        os.pwrite(lock.descriptor, json.dumps(self._description()).encode(), 0)
      # Ignored signals, as under nohup, stay ignored.
      ending = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
      before = signal.pthread_sigmask(signal.SIG_BLOCK, (*ending, signal.SIGCHLD))
      stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
      stack.callback(self._messages.close)
      return self._loop(lock, until_empty, ending)

  def _loop(self, lock: local_files.FileLock, until_empty: bool, ending: Sequence[int]) -> int:
    while True:
      if not local_files.is_lock_at(lock.descriptor, self._queue.lock_path):
        raise errors.StorageError(f'{self._queue.folder}: is gone, or another one; running jobs continue')
      is_empty = self._work()
      if is_empty and until_empty and not self._queue.expects_more():
        return int(self._any_failed)
      received = signal.sigtimedwait((*ending, signal.SIGCHLD), self._poll_seconds)
      if received is not None and received.si_signo in ending:
        _print_line(f'{signal.Signals(received.si_signo).name}: starts no more jobs; running jobs continue')
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
    return str(processes.parse_identity(other or {}) or 'another process')

  def _description(self) -> Mapping[str, object]:
    return {
      **processes.own_identity().as_dict(),
      'slots': self._slots.count,
      'gpus': self._slots.gpus,
      'since': json_values.timestamp_now(),
    }

  # One round.

  def _work(self) -> bool:
    """Takes all actions that are due. Returns whether no job waits or runs."""
    self._reported_troubles, self._troubles = self._troubles, set()
    try:
      states = self._queue.states()
      for state in states:
        self._report(state)
      holders = [state for state in states if state.has_slot]
      self._forget_others(holders)
      waiting = self._queue.waiting(states)
      if not self._queue.is_paused:
        self._start_ordered(holders)
        self._order_more(waiting, holders)
      return not waiting and not holders
    except (OSError, errors.StorageError) as error:
      # A disk that is full or gone: everything is in the files, and the next round begins with them.
      self._report_trouble(str(error))
      return False

  def _start_ordered(self, holders: Sequence[queued_jobs.JobState]) -> None:
    """Starts runners for attempts that were ordered, and have neither a runner of this dispatcher's nor started."""
    for state in holders:
      if state.attempt is not None and state.attempt.process is None and state.attempt.ended is None:
        self._start(state)

  def _order_more(self, waiting: Sequence[queued_jobs.JobState], holders: list[queued_jobs.JobState]) -> None:
    """Orders jobs for all slots that are free, in their order."""
    waiting = list(waiting)
    while (choice := choose_job(waiting, holders, self._slots, self._is_free)) is not None:
      state, gpus = choice
      assert state.job is not None
      self._settle(state)
      attempt = queued_jobs.order_attempt(state.job, state.next_attempt, secrets.token_hex(16), gpus)
      ordered = queued_jobs.JobState(state.number, 'starting', '', state.job, attempt, has_slot=True)
      waiting.remove(state)
      holders.append(ordered)
      self._report(ordered)
      self._start(ordered)

  def _is_free(self, job: queued_jobs.Job) -> bool:
    """Whether no other run, started by hand, lives in the folder of a job."""
    if not job.run_files or not statuses.is_alive(run_folders.Run(job.model_dir, ''), job.mode):
      return True
    self._report_trouble(f'job {job.number}: another run lives in {job.model_dir}; it is started after that')
    return False

  def _settle(self, state: queued_jobs.JobState) -> None:
    """Notes that the attempt before was lost, if its end was not noted."""
    if state.attempt is not None and state.attempt.ended is None:
      queued_jobs.end_attempt(state.attempt.path, queued_jobs.LOST)

  def _start(self, state: queued_jobs.JobState) -> None:
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
          _print_line(f'job {state.number} cannot be started now: {os.strerror(max(error, 0))}; it is retried')
        attempt.error = error
        attempt.not_before = time.monotonic() + attempt.seconds
        attempt.seconds = min(2 * attempt.seconds, _AGAIN_SECONDS[1])
    if time.monotonic() < attempt.not_before:
      return
    words = [state.job.folder, str(state.attempt.number), state.attempt.token]
    attempt.process = run_processes.start_detached([sys.executable, '-m', job_runner.__name__, *words])

  def _forget_others(self, holders: Sequence[queued_jobs.JobState]) -> None:
    """Takes note of runners that have ended, and forgets attempts that are over."""
    tokens = {state.attempt.token for state in holders if state.attempt}
    for token, attempt in list(self._tries.items()):
      if token not in tokens and (attempt.process is None or attempt.process.poll() is not None):
        del self._tries[token]

  # The printed lines.

  def _report(self, state: queued_jobs.JobState) -> None:
    """Prints how a job stands, and sends messages, when that has changed."""
    now = (state.status, state.reason)
    before = self._reported.get(state.number)
    if before == now:
      return
    self._reported[state.number] = now
    if before is None and state.status in queued_jobs.OVER:  # Over before this dispatcher began.
      return
    self._any_failed = self._any_failed or state.status == 'failed'
    name = f' ({state.job.model_dir})' if state.job and state.job.model_dir else ''
    attempt = f', attempt {state.restarts + 1}' if state.restarts and state.has_slot else ''
    _print_line(f'job {state.number}{name}: {state.status}{attempt}' + (f': {state.reason}' if state.reason else ''))
    self._messages.send(before[0] if before else '', state)

  def _report_trouble(self, text: str) -> None:
    """Prints the errors of this round that the one before did not have."""
    if text not in self._troubles | self._reported_troubles:
      _print_line(text)
    self._troubles.add(text)


def _print_line(text: str) -> None:
  safe_text.print_masked(f'queue: {text}')
