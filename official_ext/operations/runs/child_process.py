"""A command as the child of a process that supervises it: a detached run, or a job of a queue.

The supervisor is in a separate session, and may be one of several for the same command. Locks decide which one starts
it. The child notes itself in files before it becomes the command, so the command never runs without a file about it.
The locks are held until then, because the child inherits them.

A detached run outlives its supervisor, which is `main` here: it hears no signal, and only notes the run's end. A job of
a queue does not outlive its supervisor, queue/job_runner.py: without a note of its end the job is started again, so the
kernel sends it SIGTERM. The supervisor passes signals and a cancellation on. It also ends the processes that the job
leaves, which would keep memory and GPUs; it finds them in the session that it shares with the job.

There is such a process for each run, so the module has few imports.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import errno
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import processes as processes_lib
from official_ext.base.files import local_files
from official_ext.base.files import paths

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_POLL_SECONDS = 0.5  # The delay of a cancellation.
_END_NOTE_SECONDS = 600.0  # A starter holds the lock of a run for a moment.
_STRAYS_SECONDS = 10.0  # From SIGTERM to SIGKILL, for the remaining processes of a command.
_WORKERS_SECONDS = 600.0  # The same for workers of a launcher that was killed: they save.
_STRAYS_POLL_SECONDS = (0.02, 0.5)  # At first, and at most.
_NOT_FOUND = 127  # As a shell's status of a command that cannot be run.
_MAX_LINE, _MAX_LINE_BYTES = 300, 1 << 13


class Child:
  """A command as a child of this process.

  Attributes:
    process: its process.
  """

  def __init__(
    self,
    command: Sequence[str],
    cwd: str,
    log: str,
    note: Callable[[processes_lib.ProcessIdentity], None],
    environment: Mapping[str, str],
    answer: int | None = None,
  ):
    """Makes the process, which begins with `note`.

    Args:
      command: the program and its arguments.
      cwd: the folder to start it in.
      log: the file that its output is added to.
      note: notes the process, in which it is called. If it raises OSError, the error's number is the exit status.
      environment: the whole environment of the command.
      answer: the descriptor of a pipe to the starter of a command that outlives this process. It takes a line of JSON
        with the identity of the process when that is noted, and one with `error` and `path` if the command cannot
        begin. The process closes the pipe when the command begins. None: the command ends with this process.

    Raises:
      OSError: it cannot be made.
    """
    self._outlives = answer is not None
    self._stopped = self._killed = False
    output = local_files.open_descriptor(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.stat(cwd)
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
    if not self._outlives:
      processes_lib.adopt_descendants()
    pid = os.fork()
    if not pid:
      self._become(command, cwd, output, note, environment, answer, parent)
    self.process = processes_lib.identity_of(pid)
    if not self._outlives:
      with contextlib.suppress(OSError):  # Both may do so; the first counts.
        os.setpgid(pid, pid)
    os.close(output)

  def _become(self, command, cwd, output, note, environment, answer, parent) -> NoReturn:
    """Makes this process, a fork of the supervisor, the command."""
    try:
      if self._outlives:
        os.setsid()
      else:
        os.setpgid(0, 0)
        processes_lib.end_with_parent()
      if os.getppid() != parent:  # Killed already: before the kernel was informed, or before there is a note.
        os._exit(errno.EAGAIN)
      try:
        for descriptor in (1, 2):
          os.dup2(output, descriptor)
        os.chdir(cwd)
        process = processes_lib.own_identity()
        note(process)
      except OSError as error:
        _answer(answer, {'error': error.strerror, 'path': error.filename})
        os._exit(error.errno or errno.EIO)
      _answer(answer, process.as_dict())
      for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:  # Python treats some in its own way.
        signal.signal(number, signal.SIG_DFL)
      signal.pthread_sigmask(signal.SIG_SETMASK, ())
      try:
        os.execvpe(command[0], command, environment)
      except OSError as error:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # The starter may have ended.
        _answer(answer, {'error': error.strerror, 'path': command[0]})
        os.write(2, os.fsencode(f'error: {command[0]}: cannot be run: {error.strerror}\n'))
    finally:
      os._exit(_NOT_FOUND)

  def wait(self, cancelled: str = '') -> int:
    """Waits until the command has ended, and returns its exit status, or minus the number of a signal.

    If it does not outlive this process, signals to this process are passed on to it.

    Args:
      cancelled: the path of a file that asks it to stop, and with an entry `kill` ends it.
    """
    if self._outlives:
      return os.waitstatus_to_exitcode(os.waitpid(self.process.pid, 0)[1])
    while True:
      received = signal.sigtimedwait((*_PASSED_ON, signal.SIGCHLD), _POLL_SECONDS)
      if received is not None and received.si_signo != signal.SIGCHLD:
        self._stop(received.si_signo)
      request = _cancellation(cancelled)
      if request is not None:
        self._stop(signal.SIGTERM)
        if request.get('kill') and not self._killed:
          self._killed = True
          processes_lib.signal_group(self.process.pid, signal.SIGKILL)
      status = _reap(self.process.pid)
      if status is not None:
        return status

  def _stop(self, number: int) -> None:
    """Passes a request to stop on; only the first one, as a second would not let a training save."""
    if not self._stopped:
      self._stopped = True
      os.kill(self.process.pid, number)  # It is not reaped yet, so that the number is its own.

  def end_strays(self, cancelled: str) -> None:
    """Ends the rest of the command's process group, and of this session, whose processes are adopted here.

    Args:
      cancelled: see `wait`.
    """
    begin, reported, pid = time.monotonic(), set(), self.process.pid
    is_any_left = processes_lib.signal_group(pid, signal.SIGKILL if self._killed else signal.SIGTERM)
    while (strays := processes_lib.descendants(os.getpid())) or is_any_left:
      seconds = time.monotonic() - begin
      self._killed = self._killed or bool((_cancellation(cancelled) or {}).get('kill'))
      saving = _groups_of_workers(strays)
      if self._killed or seconds > _STRAYS_SECONDS:
        processes_lib.signal_group(pid, signal.SIGKILL)
      for stray in strays:
        group = _group_of(stray)
        if self._killed or seconds > (_WORKERS_SECONDS if group in saving else _STRAYS_SECONDS):
          _signal(stray, signal.SIGKILL)
        elif group in saving:  # The kernel has asked it to stop; a second time would not let it save.
          _signal(stray, signal.SIGCONT)
        elif group != pid and stray not in reported:
          reported.add(stray)
          _signal(stray, signal.SIGTERM)
      least, most = _STRAYS_POLL_SECONDS
      time.sleep(min(most, max(least, seconds / 10)))
      _reap(0)
      is_any_left = processes_lib.signal_group(pid, 0)
    _reap(0)  # Processes that ended since: they are not listed, and would stay until the init process reaps them.


def _cancellation(path: str) -> Mapping[str, Any] | None:
  """The request to cancel a command: {} if it cannot be read, None without one."""
  values = json_values.read_file(path)
  return {} if values is None and os.path.lexists(path) else values


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


def _groups_of_workers(processes: Sequence[processes_lib.ProcessIdentity]) -> set[int]:
  """The process groups whose leader is one of these processes, and a worker of a launcher."""
  if not processes:
    return set()
  from official_ext.base import launcher  # pylint: disable=g-import-not-at-top

  return {each.pid for each in processes if _group_of(each) == each.pid and launcher.is_worker(each.pid)}


def _group_of(process: processes_lib.ProcessIdentity) -> int | None:
  try:
    return os.getpgid(process.pid)
  except OSError:  # It has ended.
    return None


def _signal(process: processes_lib.ProcessIdentity, number: int) -> None:
  with contextlib.suppress(OSError, AttributeError):  # It has ended; or this is not Linux.
    processes_lib.send_signal(process, number)


# The notes in a run's folder, by which it is seen and stopped: `started.json`, under the lock of `started_lock`.


def is_taken(run_files: Mapping[str, str]) -> bool:
  """Whether a process that lives is in a run's folder already; called with `started_lock` held."""
  started, record = _read(run_files['started']), _read(run_files['record'])
  if record.get('status') != 'running':
    record = {}
  processes = [processes_lib.parse_identity(values) for values in (record, {} if started.get('ended') else started)]
  return any(process is not None and processes_lib.is_alive(process) for process in processes)


def note_start(run_files: Mapping[str, str], values: Mapping[str, Any], process: processes_lib.ProcessIdentity) -> None:
  """Notes the process of a run that is about to begin; called with `started_lock` held.

  Args:
    run_files: the paths of files in the run's folder, by their kind.
    values: the note's entries about the command.
    process: the one that becomes the command.

  Raises:
    OSError: it cannot be written.
  """
  note = {**values, 'started': json_values.timestamp_now(), **process.as_dict(), 'ended': None, 'exit_status': None}
  _write(run_files['started'], note)


def last_line(log: str, exit_status: int, header: str = '') -> dict[str, str]:
  """`{'last_line': TEXT}` of a command that has failed: the last line of its output, see `reason_of`; {} without one.

  Args:
    log: the path of its output.
    exit_status: of the command. 0, a preemption and a command that cannot be run need no other reason.
    header: the line above the output, which the starter writes.
  """
  if exit_status in (0, errors.PreemptedError.exit_status, _NOT_FOUND):
    return {}
  try:
    with local_files.open_to_read(log) as file:
      file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_LINE_BYTES))
      lines = file.read().decode(errors='replace').splitlines()
  except OSError:
    return {}
  found = next((line.strip() for line in reversed(lines) if line.strip()), '')
  return {'last_line': reason_of(found)} if found and found != header.strip() else {}


def reason_of(line: str) -> str:
  """A line of output as a part of a reason, which terminals and notifications show: harmless, masked and short."""
  from official_ext.base import safe_text  # pylint: disable=g-import-not-at-top  # Of a failure alone.

  return safe_text.mask(safe_text.printable(line.strip(), keep='\t'))[:_MAX_LINE]


def note_end(
  run_files: Mapping[str, str],
  process: processes_lib.ProcessIdentity,
  exit_status: int,
  patience_seconds: float,
  line: Mapping[str, str],
) -> None:
  """Notes how a run has ended, unless another has begun there meanwhile, if that can be written.

  Args:
    run_files: see `note_start`.
    process: the one that was noted.
    exit_status: of it.
    patience_seconds: how long to wait for the lock of the run.
    line: see `last_line`.
  """
  # A reader of a note without an end sees that the process is gone.
  with contextlib.suppress(OSError), local_files.FileLock(run_files['started_lock'], patience_seconds):
    values = _read(run_files['started'])
    if processes_lib.parse_identity(values) == process and not values.get('ended'):
      ended = {'ended': json_values.timestamp_now(), 'exit_status': exit_status, **line}
      _write(run_files['started'], {**values, **ended})


def stop_request(run_files: Mapping[str, str]) -> Mapping[str, Any]:
  """The last request to stop that was made of the run itself (`official-ext runs stop`); {} without one."""
  return _read(run_files['stop']) if run_files else {}


def _read(path: str) -> Mapping[str, Any]:
  return json_values.read_file(path) or {}


def _write(path: str, values: Mapping[str, Any]) -> None:
  paths.write_atomically(path, json_values.encode(values))


# The supervisor of a run that was started detached.


def main(environment: Mapping[str, str]) -> None:
  """Starts the run of a request, waits for it, and notes how it has ended: see `run_processes.start_run`.

  The request, a JSON object, is on the standard input. The answers are on the standard output: see `Child`.

  Args:
    environment: the one that this process was started with; imports have changed it since.
  """
  request = json.loads(sys.stdin.buffer.read())
  if os.fork():  # The caller waits for this process, and not for the run.
    os._exit(0)
  os.set_inheritable(request['lock'], False)
  answer, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
  for descriptor in (0, 1):
    os.dup2(null, descriptor)

  def note(process: processes_lib.ProcessIdentity) -> None:
    note_start(request['run_files'], request['note'], process)
    with contextlib.suppress(OSError):  # A run begins on a full disk too.
      os.write(1, request['header'].encode())

  try:
    child = Child(request['command'], request['cwd'], request['log'], note, environment, answer)
  except OSError as error:
    _answer(answer, {'error': error.strerror, 'path': error.filename})
    return
  os.close(answer)
  os.close(request['lock'])
  status = child.wait()
  line = last_line(request['log'], status, request['header'])
  note_end(request['run_files'], child.process, status, _END_NOTE_SECONDS, line)


def _answer(answer: int | None, values: Mapping[str, Any]) -> None:
  """Replies to the starter, if it still lives."""
  if answer is not None:
    with contextlib.suppress(OSError):
      os.write(answer, json.dumps(values).encode() + b'\n')
