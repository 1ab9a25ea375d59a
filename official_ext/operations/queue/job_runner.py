"""The process beside a job's command: starts it at most once, waits for its end, and writes that down.

    python -m official_ext.operations.queue.job_runner JOB_FOLDER ATTEMPT TOKEN

The dispatcher may be killed at any moment, and another one may start a second runner for the same attempt. So a runner
first takes the attempt's lock, and looks whether the attempt has started or ended: of all runners one starts the
command. The process that will be the command notes that itself, in attempt-N.started.json, before it becomes the
command: there is no moment at which the command runs without a file about it. The lock is held until then, and after it
by both.

The command runs in the runner's session, in a separate process group. If the runner is killed, the kernel sends it
SIGTERM. Processes that the command leaves in the session at its end are ended too: they would keep memory and GPUs. The
job has its slot until it is gone. No TensorFlow, and few imports: there is a runner for each run.
"""

from collections.abc import Mapping, Sequence
import contextlib
import errno
import os
import signal
import sys
import time
from typing import Any, NoReturn

from official_ext.base.files import file_lock
from official_ext.base.files import moments
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.processes import process_identity
from official_ext.base.processes import stopping
from official_ext.operations.queue import job_files
from official_ext.operations.queue import job_notes

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_POLL_SECONDS = 0.5  # The delay of a cancellation.
_LOCK_SECONDS = 10.0
_STRAYS_SECONDS = 10.0  # From SIGTERM to SIGKILL, for the remaining processes of a command.
_WORKERS_SECONDS = 600.0  # The same for workers of a launcher that was killed: they save.
_STRAYS_POLL_SECONDS = (0.02, 0.5)  # At first, and at most.
_AGAIN_SECONDS = 1.0
_NOT_FOUND = 127  # As a shell's status of a command that cannot be run.
# Errors that may pass, as when somebody has made room on a full disk.
_PASSING = (
  *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENFILE, errno.EMFILE),
  *(errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY),
)


class Runner:
  """Runs one attempt of a job."""

  def __init__(self, folder: str, number: int, token: str):
    """Looks at nothing yet.

    Args:
      folder: of the job.
      number: of the attempt.
      token: of the attempt: it may be one of another job by now, whose number was given anew.
    """
    self._folder = folder
    self._token = token
    self._number = number
    self._path = job_files.attempt_path(folder, number)
    self._stopped = False
    self._killed = False

  def run(self) -> int:
    """Runs the command, unless another runner does.

    Returns:
      0; or the number of an operating system's error that kept the command from being started, and may pass.
    """
    attempt = job_files.read_attempt(self._folder, self._number)
    job = job_files.read_job(self._folder)
    if attempt is None or job is None or attempt.token != self._token:
      return 0
    try:
      with file_lock.FileLock(attempt.lock_path, _LOCK_SECONDS) as lock:
        return 0 if job_files.has_begun(self._path) else self._run(job, attempt, lock)
    except TimeoutError:
      return 0  # Another runner has it.

  def _run(self, job: job_files.Job, attempt: job_files.Attempt, lock: file_lock.FileLock) -> int:
    try:
      if os.path.exists(os.path.join(self._folder, job_files.CANCELLED)):
        job_files.end(self._path, job_files.NOT_STARTED)
        return 0
      request_before = job_notes.stop_request(job)
      os.set_inheritable(lock.descriptor, True)  # The command holds it too.
      child = self._start(job, attempt)
    except OSError as error:
      if error.errno in _PASSING:
        return error.errno
      self._end(job_files.REFUSED, error=f'{error.filename or self._folder}: {error.strerror}')
      return 0
    status = self._wait(child)
    self._end_strays(child)
    attempt = job_files.read_attempt(self._folder, self._number) or attempt
    if attempt.process is None:
      return status if status > 0 else errno.EAGAIN  # Nothing was run.
    stopped = job_notes.stop_request(job) not in ({}, request_before)
    self._end(job_files.EXITED, status=status, **({'stopped': True} if stopped else {}))
    if job.run_files:
      with contextlib.suppress(OSError), file_lock.FileLock(job.run_files['started_lock'], _LOCK_SECONDS):
        job_notes.note_end(job, attempt.process, status)
    return 0

  def _start(self, job: job_files.Job, attempt: job_files.Attempt) -> int:
    """Starts the command, and returns the number of its process."""
    paths.make_folder(os.path.dirname(job.log))
    log = regular_files.open_descriptor(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.stat(job.cwd)
    if not job.run_files:
      return self._fork(job, attempt, log)
    with file_lock.FileLock(job.run_files['started_lock'], _LOCK_SECONDS):  # Held by the child until it is noted.
      if job_notes.is_taken(job.run_files):
        raise OSError(errno.EBUSY, 'another run lives in this folder', job.model_dir)
      return self._fork(job, attempt, log)

  def _fork(self, job: job_files.Job, attempt: job_files.Attempt, log: int) -> int:
    own = process_identity.own()
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
    stopping.adopt_descendants()
    child = os.fork()
    if child == 0:
      self._become(job, attempt, own, log)
    with contextlib.suppress(OSError):  # It does so itself; whoever comes first.
      os.setpgid(child, child)
    os.close(log)
    return child

  def _become(
    self, job: job_files.Job, attempt: job_files.Attempt, runner: process_identity.ProcessIdentity, log: int
  ) -> NoReturn:
    """Makes this process, a fork of the runner, the command."""
    status = _NOT_FOUND
    try:
      os.setpgid(0, 0)
      stopping.end_with_parent()
      if os.getppid() != runner.pid:  # Killed before the kernel was informed.
        os._exit(errno.EAGAIN)
      try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(job.cwd)
        process = process_identity.own()
        if job.run_files:
          job_notes.note_start(job, process)
        values = {'process': process.as_dict(), 'runner': runner.as_dict(), 'time': moments.now()}
        job_files.write(f'{self._path}.started.json', values)
      except OSError as error:
        os._exit(error.errno or errno.EIO)
      environment = dict(os.environ)
      if attempt.gpus is not None:
        environment['CUDA_VISIBLE_DEVICES'] = ','.join(attempt.gpus)
      for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # Python treats them in its own way.
        signal.signal(number, signal.SIG_DFL)
      signal.pthread_sigmask(signal.SIG_SETMASK, ())
      try:
        os.execvpe(job.command[0], job.command, environment)
      except OSError as error:
        os.write(2, f'error: {job.command[0]}: cannot be run: {error.strerror}\n'.encode())
    finally:
      os._exit(status)

  def _wait(self, child: int) -> int:
    """Waits until the command has ended; passes signals on, and the request to cancel the job. Returns its status."""
    while True:
      received = signal.sigtimedwait((*_PASSED_ON, signal.SIGCHLD), _POLL_SECONDS)
      if received is not None and received.si_signo != signal.SIGCHLD:
        self._stop(child, received.si_signo)
      self._look_for_cancellation(child)
      status = _reap(child)
      if status is not None:
        return status

  def _look_for_cancellation(self, child: int) -> None:
    values = self._cancellation()
    if values is None:
      return
    self._stop(child, signal.SIGTERM)
    if values.get('kill') and not self._killed:
      self._killed = True
      _signal_group(child, signal.SIGKILL)

  def _cancellation(self) -> Mapping[str, Any] | None:
    """The request to cancel the job; None if it is."""
    try:
      return job_files.read(os.path.join(self._folder, job_files.CANCELLED))
    except (OSError, job_files.DamagedFileError):
      return {}

  def _stop(self, child: int, number: int) -> None:
    """Passes a request to stop on; only the first one, as a second would not let a training save."""
    if not self._stopped:
      self._stopped = True
      os.kill(child, number)  # It is not reaped yet, so that the number is its own.

  def _end_strays(self, group: int) -> None:
    """Ends the rest of the command's process group, and of its session, whose processes are adopted here."""
    begin, told = time.monotonic(), set()
    number = signal.SIGKILL if self._killed else signal.SIGTERM
    is_any_left = _signal_group(group, number)
    while (strays := process_identity.descendants(os.getpid())) or is_any_left:
      seconds = time.monotonic() - begin
      self._killed = self._killed or bool((self._cancellation() or {}).get('kill'))
      saving = _groups_of_workers(strays)
      if self._killed or seconds > _STRAYS_SECONDS:
        _signal_group(group, signal.SIGKILL)
      for stray in strays:
        own_group = _group_of(stray)
        if self._killed or seconds > (_WORKERS_SECONDS if own_group in saving else _STRAYS_SECONDS):
          _signal(stray, signal.SIGKILL)
        elif own_group in saving:  # The kernel has asked it to stop; a second time would not let it save.
          _signal(stray, signal.SIGCONT)
        elif own_group != group and stray not in told:
          told.add(stray)
          _signal(stray, signal.SIGTERM)
      least, most = _STRAYS_POLL_SECONDS
      time.sleep(min(most, max(least, seconds / 10)))
      _reap(0)
      is_any_left = _signal_group(group, 0)
    _reap(0)  # Those that ended since: they are not listed, and would stay until the init process reaps them.

  def _end(self, outcome: str, **values) -> None:
    """Writes how the attempt ended, as soon as that can be written."""
    while True:
      try:
        job_files.end(self._path, outcome, **values)
        return
      except OSError:
        if not os.path.isdir(self._folder):  # There is no queue any more.
          return
        time.sleep(_AGAIN_SECONDS)


def _reap(child: int) -> int | None:
  """Takes note of all processes that have ended; returns the exit status of one of them, if it has."""
  found = None
  with contextlib.suppress(ChildProcessError):
    while True:
      pid, status = os.waitpid(-1, os.WNOHANG)
      if pid == 0:
        break
      if pid == child:
        found = os.waitstatus_to_exitcode(status)
  return found


def _groups_of_workers(processes: Sequence[process_identity.ProcessIdentity]) -> set[int]:
  """The process groups whose leader is one of these processes, and a worker of a launcher."""
  if not processes:
    return set()
  from official_ext.base.processes import launcher  # pylint: disable=g-import-not-at-top

  return {each.pid for each in processes if _group_of(each) == each.pid and launcher.is_worker(each.pid)}


def _group_of(process: process_identity.ProcessIdentity) -> int | None:
  try:
    return os.getpgid(process.pid)
  except OSError:  # It has ended.
    return None


def _signal(process: process_identity.ProcessIdentity, number: int) -> None:
  with contextlib.suppress(OSError, AttributeError):  # It has ended; or this is not Linux.
    process_identity.send(process, number)


def _signal_group(group: int, number: int) -> bool:
  """Sends a signal to a process group; returns whether anybody is in it."""
  try:
    os.killpg(group, number)
  except ProcessLookupError:
    return False
  except PermissionError:  # Somebody else's by now.
    return False
  return True


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs one attempt: see the module. The arguments are a job's folder, the attempt's number and its token."""
  folder, number, token = sys.argv[1:] if arguments is None else arguments
  try:
    return Runner(folder, int(number), token).run()
  except OSError as error:
    return error.errno or errno.EIO
  except job_files.DamagedFileError:  # The dispatcher reads the same files, and reports it.
    return errno.EINVAL


if __name__ == '__main__':
  sys.exit(main())
