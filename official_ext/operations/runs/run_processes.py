"""The processes of runs: starts them detached, stops them, and reads their output.

`start_run` makes a supervisor (child_process.py) in a separate session, which makes the process of the run. That notes
its identity in `started.json` before the command begins. The supervisor waits for its end, and notes that too.
`started.lock` is held from the look at running processes to the first note, by the starter, the supervisor and the
process together. So two starters at the same time, or one killed at any moment, cannot start a run twice.

`stop_run` signals the process that the record names, and no later process with its number. It opens the process first
(a pidfd, which stays with the process), then compares its start and the boot of its kernel with the record, then sends
the signal. `stop.json` in the run's folder names the process that was asked, so that all readers see the run as
stopping; it means nothing for another process.

The output is read from its end: the file may be larger than memory.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import launcher
from official_ext.base import processes as processes_lib
from official_ext.base import safe_text
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import run_status
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import statuses

_MAX_BYTES = 1 << 20
_MAX_LINE = 10_000


def log_tail(run: run_folders.Run, num_lines: int = 20, mode: str = 'train') -> list[str]:
  """The last lines of a run's output, harmless for a terminal; [] if it has none, as of a custom driver.

  Args:
    run: the run.
    num_lines: how many, at most.
    mode: of which of its processes.
  """
  return file_tail(run.log_path(mode), num_lines)


def file_tail(path: str, num_lines: int, begin: int = 0) -> list[str]:
  """The last lines of a text file after its first `begin` bytes, of its last megabyte at most."""
  try:
    with local_files.open_to_read(path) as file:
      size = os.fstat(file.fileno()).st_size
      file.seek(max(begin, size - _MAX_BYTES))
      content = file.read(_MAX_BYTES)
  except OSError:
    return []
  if size - begin > _MAX_BYTES:
    content = content.partition(b'\n')[2]
  lines = content.decode('utf-8', 'replace').rstrip('\n').split('\n') if content.strip() else []
  return [shown_line(line) for line in lines[-num_lines:]] if num_lines > 0 else []


def lines_since(path: str, place: int | None, num_lines: int = 1000) -> tuple[list[str], int, bool]:
  """The growth of a text file since it was read last.

  Args:
    path: the file.
    place: in bytes, where that ended, at the end of a line; None at first.
    num_lines: how many lines to return, at most: the last ones.

  Returns:
    The lines that are whole, harmless for a terminal; the place after them; and whether they follow the earlier
    part: not at first, nor if the file was replaced, or has grown by more than a megabyte.
  """
  try:
    with local_files.open_to_read(path) as file:
      size = os.fstat(file.fileno()).st_size
      follows = place is not None and size - _MAX_BYTES <= place <= size
      start = place if follows and place is not None else max(0, size - _MAX_BYTES)
      file.seek(start)
      content = file.read(_MAX_BYTES)
  except OSError:
    return [], 0, place == 0
  end = content.rfind(b'\n') + 1
  if not end and len(content) == _MAX_BYTES:  # One line that has no end.
    end = len(content)
  whole = content[:end]
  if not follows and start and b'\n' in whole[:-1]:
    whole = whole.partition(b'\n')[2]
  lines = whole.decode('utf-8', 'replace').removesuffix('\n').split('\n') if whole else []
  return [shown_line(line) for line in lines[max(0, len(lines) - num_lines) :]], start + end, follows


def shown_line(line: str) -> str:
  """A line of output as a terminal shows it in the end: text that a carriage return has overwritten is gone."""
  return safe_text.printable(line.rstrip('\r').rpartition('\r')[2], keep='\t')[:_MAX_LINE]


def follow_file(
  path: str, is_over: Callable[[], bool], poll_seconds: float = 0.3, place: int | None = None
) -> Iterator[str]:
  """Lines as they are added to a text file, until its writers have ended.

  Args:
    path: the file, which may not exist yet.
    is_over: whether its writers have ended.
    poll_seconds: how often to look.
    place: in bytes, where to begin, as from `lines_since`; None: at the end.
  """
  place, rest = paths.size(path) if place is None else place, b''
  while True:
    ended = is_over()  # Before the last look.
    size = paths.size(path)
    if size < place:  # It was replaced.
      place, rest = 0, b''
    while size > place:
      with local_files.open_to_read(path) as file:
        file.seek(place)
        content = file.read(min(size - place, _MAX_BYTES))
      if not content:
        break
      place += len(content)
      *lines, rest = (rest + content).split(b'\n')
      yield from (shown_line(line.decode('utf-8', 'replace')) for line in lines)
    if ended:
      if rest:
        yield shown_line(rest.decode('utf-8', 'replace'))
      return
    time.sleep(poll_seconds)


START_LOCK = 'started.lock'
# The environment as it came: the imports change it.
_SUPERVISOR = f"""
import os, sys
environment = dict(os.environ)
sys.path.insert(0, {os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))!r})
from official_ext.operations.runs import child_process
child_process.main(environment)
"""
_PATIENCE_SECONDS = 30.0
_WORKS_SECONDS = 60.0
_POLL_SECONDS = 0.05


def start_run(
  command: Sequence[str],
  model_dir: str,
  env: Mapping[str, str] | None = None,
  cwd: str | None = None,
  mode: str = 'train',
) -> processes_lib.ProcessIdentity:
  """Starts a command, detached, for the run in a folder.

  The process has a separate session, no input, no descriptors of this process, and its output is appended to
  `run.log`. `started.json` contains its identity, its command, with passwords masked, and in the end its exit status.

  Args:
    command: the program and its arguments.
    model_dir: the run's folder, which is made if it does not exist.
    env: the whole environment; None: this process's.
    cwd: the folder to start it in; None: this process's.
    mode: of the command. All modes that train count as one; an evaluation has separate files, with its name.

  Returns:
    The identity of the process, which has begun, or failed since.

  Raises:
    UserError: the run lives, or the command or a folder is missing.
    StorageError: the folder cannot be written.
  """
  if paths.is_remote(model_dir):
    raise errors.UserError(
      f'{model_dir}: a detached process keeps its log and its lock in a local folder, and this one is remote; print '
      'the command by --print, and give it in a shell'
    )
  model_dir = os.path.abspath(model_dir)
  cwd = os.path.abspath(cwd or os.getcwd())
  if not os.path.isdir(cwd):
    raise errors.UserError(f'{cwd}: no such folder, in which the run is to be started')
  run = run_folders.Run(model_dir, os.path.basename(model_dir))
  try:
    paths.make_folder(model_dir)
    with local_files.FileLock(run.file(START_LOCK), _PATIENCE_SECONDS) as lock:
      if statuses.is_alive(run, mode):
        raise errors.StateError(
          f'{model_dir}: the run lives ({_describe_status(run, mode)}); wait for it, or stop it first'
        )
      return _start_run(command, run, env, cwd, mode, lock.descriptor)
  except TimeoutError:
    raise errors.StateError(f'{model_dir}: another process is starting a run there; retry later') from None
  except OSError as error:
    raise errors.StorageError(f'{error.filename or model_dir}: cannot be written: {error.strerror or error}') from error


def _start_run(command, run, env, cwd, mode, lock) -> processes_lib.ProcessIdentity:
  noted = launcher.command_note(command, cwd)
  request = {
    'command': list(command),
    'cwd': cwd,
    'log': run.log_path(mode),
    'header': f'[{json_values.timestamp_now()}] {safe_text.printable(noted["command"])}\n',
    'run_files': run_files(run, mode),
    'lock': lock,
    'note': {**noted, 'environment': launcher.relevant_environment(os.environ if env is None else env)},
  }
  # Isolated: nothing that the environment of the run says about Python concerns the supervisor.
  done = subprocess.run(
    [sys.executable, '-I', '-c', _SUPERVISOR],
    input=json.dumps(request).encode(),
    stdout=subprocess.PIPE,  # Ends when the command has begun. The supervisor continues, and the system adopts it.
    stderr=subprocess.DEVNULL,
    cwd='/',
    env=env,
    pass_fds=(lock,),
    start_new_session=True,
    check=False,
  )
  answer: dict[str, Any] = {}
  for line in done.stdout.splitlines():
    with contextlib.suppress(ValueError, TypeError):  # Cut off, or printed by a package at the start of Python.
      answer |= json.loads(line)
  identity = processes_lib.parse_identity(answer)
  if identity is None or 'error' in answer:
    reason = answer.get('error', 'its supervisor has ended')
    raise errors.UserError(f'{answer.get("path") or command[0]}: cannot be started: {reason}')
  return identity


def run_files(run: run_folders.Run, mode: str) -> dict[str, str]:
  """The paths of files about the processes of a run, by their kind: see child_process.py."""
  files = {name: run.file_of_mode(name, 'json', mode) for name in ('started', 'stop')}
  return {**files, 'started_lock': run.file(START_LOCK), 'record': run_status.path_of(run.path, mode)}


def _describe_status(run: run_folders.Run, mode: str) -> str:
  found = statuses.of_run(run, mode=mode)
  return f'{found.status}, {found.process}' if found.process else found.status


def start_background(words: Sequence[str], log_path: str, works: Callable[[], bool], done: Collection[int] = ()) -> int:
  """Starts a command of official-ext in the background, and waits until it works.

  Args:
    words: of the command, after `official-ext`.
    log_path: the file that its output is added to, in an existing folder.
    works: whether it works, or another process like it.
    done: the exit statuses with which it may end at once, as there was nothing to be done.

  Returns:
    The number of its process.

  Raises:
    StorageError: the log cannot be written, or the command has not started; the log shows the cause.
  """
  try:
    with open(log_path, 'ab') as log:
      begin = os.fstat(log.fileno()).st_size
      process = start_detached([sys.executable, '-m', 'official_ext.cli.main', *words], log)
  except OSError as error:
    raise errors.StorageError(f'{error.filename or log_path}: {error.strerror or error}') from error
  deadline = time.monotonic() + _WORKS_SECONDS
  while not works():
    status = process.poll()
    if status is not None and status in done:
      break
    if status is not None or time.monotonic() > deadline:
      lines = [line.strip() for line in file_tail(log_path, 20, begin) if line.strip()]
      reason = lines[-1].removeprefix('error: ') if lines else 'it printed nothing'
      raise errors.StorageError(f'official-ext {words[0]}: has not started: {reason}; {log_path} has its output')
    time.sleep(_POLL_SECONDS)
  reap(process)
  return process.pid


def start_detached(
  command: Sequence[str], output: IO[bytes] | int = subprocess.DEVNULL, cwd: str | None = None
) -> subprocess.Popen:
  """Starts a process in a separate session, with no input.

  Args:
    command: the program and its arguments.
    output: the file for its output.
    cwd: the folder to start it in; None: this process's.

  Raises:
    OSError: it cannot be started.
  """
  return subprocess.Popen(
    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd, start_new_session=True
  )


def reap(process: subprocess.Popen) -> None:
  """Reaps a child of this process when it ends, if this process lives until then."""
  threading.Thread(target=process.wait, daemon=True).start()


def stop_run(run: run_folders.Run, now: bool = False, mode: str | None = None) -> statuses.RunStatus:
  """Asks a run to save and to stop, with status 75; the same command then resumes from there.

  A run that was asked before is not asked again: it would stop without saving.

  Args:
    run: the run.
    now: end it at once, without saving: steps after its last checkpoint are lost.
    mode: whose process; None: the training's, or else an evaluation's.

  Returns:
    How it stands after that.

  Raises:
    UserError: it does not run, or cannot be reached from here.
  """
  with contextlib.ExitStack() as stack:
    with contextlib.suppress(OSError):  # On a full disk it has to stop too; a starter is done when the lock is free.
      stack.enter_context(local_files.FileLock(run.file(START_LOCK)))
    return _stop_run(run, now, mode)


def _stop_run(run: run_folders.Run, now: bool, mode: str | None) -> statuses.RunStatus:
  """Stops a run, while no other does, nor starts it: of two signals the second would end it without saving."""
  found, mode = _living_process(run, mode)
  process = found.process
  if found.is_alive is None or process is None:
    if process is not None and process.pid_start is None and processes_lib.is_alive(process):
      raise errors.UserError(
        f'{run.name}: its record, of an older version, has no more of {process} than the number, which may be '
        f"another's by now: look at it, and kill {process.pid}"
      )
    who = str(process or 'a process that its record does not name')
    raise errors.UserError(
      f'{run.name}: cannot be stopped from here: it is {who}, on another host or in another container; give this '
      'command there'
    )
  if found.status == 'stopping' and not now:
    return found
  targets = [process]
  if now:  # Of a launcher's workers the first is the run.
    targets.append(processes_lib.parse_identity(run.record(mode) or {}) or process)
  targets, number = list(dict.fromkeys(targets)), signal.SIGKILL if now else signal.SIGTERM
  with _noted_request(run, mode, {**process.as_dict(), 'requested': json_values.timestamp_now(), 'at_once': now}):
    if now:
      send_signal(targets[0], signal.SIGSTOP, run.name)
      targets = _with_descendants(targets, run.name)
    send_signal(targets[0], number, run.name)
  # Processes that have ended by themselves need no more. A suspended process hears nothing until it is resumed.
  for target, another in [(target, number) for target in targets[1:]] + [(process, signal.SIGCONT)] * (not now):
    with contextlib.suppress(errors.UserError):
      send_signal(target, another, run.name)
  return statuses.of_run(run, mode=mode)


def _with_descendants(processes: list[processes_lib.ProcessIdentity], name: str) -> list[processes_lib.ProcessIdentity]:
  """Processes and their descendants, all suspended, so that none starts others meanwhile.

  A launcher's workers would not miss it: one that is suspended, or whose interpreter hangs, hears nothing.
  """
  found = list(processes)
  for process in found:
    with contextlib.suppress(errors.UserError):
      send_signal(process, signal.SIGSTOP, name)
    found += [each for each in processes_lib.descendants(process.pid) if each not in found]
  return found


@contextlib.contextmanager
def _noted_request(run: run_folders.Run, mode: str, note: Mapping[str, object]) -> Iterator[None]:
  """Notes the stop request before it is sent: readers that see the end must see the reason. Not if it fails."""
  path = run.file_of_mode('stop', 'json', mode)
  before = json_values.read_file(path)
  with contextlib.suppress(errors.StorageError):  # On a full disk it has to stop too.
    json_values.write_file(path, note)
  try:
    yield
  except BaseException:
    with contextlib.suppress(errors.StorageError, OSError):
      if before is None:
        os.remove(path)
      else:
        json_values.write_file(path, before)
    raise


def _living_process(run: run_folders.Run, mode: str | None) -> tuple[statuses.RunStatus, str]:
  """The first of a run's processes that lives, and its mode."""
  found = {name: statuses.of_run(run, mode=name) for name in ([mode] if mode else run.modes() or ['train'])}
  for name, each in found.items():
    if each.may_be_alive and each.status != 'unknown':
      return each, name
  each = next(iter(found.values()))
  raise errors.StateError(f'{run.name}: does not run: {each.status}' + (f' ({each.reason})' if each.reason else ''))


def send_signal(process: processes_lib.ProcessIdentity, number: int, name: str) -> None:
  """Sends a signal to a process, if it is the one, and lives.

  Args:
    process: its identity.
    number: the signal.
    name: the run's, for messages.

  Raises:
    UserError: it has ended, belongs to another user, or this system cannot do it safely.
  """
  if not hasattr(os, 'pidfd_open'):
    raise errors.UserError(
      f'{name}: this system has no pidfd, so that another process might be hit: kill {process.pid}'
    )
  try:
    processes_lib.send_signal(process, number)
  except ProcessLookupError:
    raise errors.UserError(
      f'{name}: {process} has ended, or its record does not identify it; kill it yourself'
    ) from None
  except PermissionError:
    raise errors.UserError(f'{name}: {process} belongs to another user, who may stop it') from None
  except OSError as error:
    raise errors.UserError(f'{name}: {process} cannot be opened: {error.strerror}') from error


def wait_for_end(
  run: run_folders.Run, timeout_seconds: float, process: processes_lib.ProcessIdentity | None = None
) -> bool:
  """Waits until no process of a run lives; returns whether that is so in the end.

  Args:
    run: the run.
    timeout_seconds: how long to wait at most.
    process: the only one to wait for; another may live on, such as a separate evaluation's.
  """
  deadline = time.monotonic() + timeout_seconds
  while processes_lib.is_alive(process) if process else statuses.is_alive(run):
    left = deadline - time.monotonic()
    if left <= 0:
      return False
    _wait(process or statuses.of_run(run).process, min(left, 1.0))
  return True


def _wait(process: processes_lib.ProcessIdentity | None, seconds: float) -> None:
  """Waits for the end of a process, or for some time."""
  try:
    descriptor = os.pidfd_open(process.pid) if process is not None else -1
  except (AttributeError, OSError):
    descriptor = -1
  if descriptor < 0:
    time.sleep(min(seconds, 0.1))
    return
  try:
    select.select([descriptor], [], [], seconds)
  finally:
    os.close(descriptor)
