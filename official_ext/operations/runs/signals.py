"""Stops a run: a signal to the very process that its record names, and to no other that has its number by now.

The process is opened first (a pidfd, which stays with it even if its number is reused), then compared with the record
by its start and the boot of its kernel, then signalled. `stop.json` in the run's folder says which process was asked,
so that everybody sees it as stopping; it means nothing for another process.
"""

from collections.abc import Iterator, Mapping
import contextlib
import os
import select
import signal
import time

from official_ext.base import errors
from official_ext.base.files import file_lock
from official_ext.base.files import moments
from official_ext.base.processes import process_identity
from official_ext.operations.runs import json_files
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import starting


def stop(run: run_folder.Run, now: bool = False, mode: str | None = None) -> judged_status.RunStatus:
  """Asks a run to save and to stop, with status 75; the same command then resumes from there.

  A run that was asked before is not asked again: it would stop without saving.

  Args:
    run: the run.
    now: end it at once, without saving: steps after its last checkpoint are lost.
    mode: whose process; None: that of the training, or else of an evaluation.

  Returns:
    How it stands after that.

  Raises:
    UserError: it does not run, or cannot be reached from here.
  """
  with contextlib.ExitStack() as stack:
    with contextlib.suppress(OSError):  # On a full disk it has to stop too; a starter is done when the lock is free.
      stack.enter_context(file_lock.FileLock(run.file(starting.LOCK)))
    return _stop(run, now, mode)


def _stop(run: run_folder.Run, now: bool, mode: str | None) -> judged_status.RunStatus:
  """Stops a run, while no other does, nor starts it: of two signals the second would end it without saving."""
  found, mode = _living(run, mode)
  process = found.process
  if found.is_alive is None or process is None:
    if process is not None and process.pid_start is None and process_identity.is_alive(process):
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
    targets.append(process_identity.parse(run.record(mode) or {}) or process)
  targets, number = list(dict.fromkeys(targets)), signal.SIGKILL if now else signal.SIGTERM
  with _noted(run, mode, {**process.as_dict(), 'requested': moments.now(), 'at_once': now}):
    if now:
      send(targets[0], signal.SIGSTOP, run.name)
      targets = _with_descendants(targets, run.name)
    send(targets[0], number, run.name)
  # Those that have ended by themselves need no more. A suspended process hears nothing until it is resumed.
  for target, another in [(target, number) for target in targets[1:]] + [(process, signal.SIGCONT)] * (not now):
    with contextlib.suppress(errors.UserError):
      send(target, another, run.name)
  return judged_status.of_run(run, mode=mode)


def _with_descendants(
  processes: list[process_identity.ProcessIdentity], name: str
) -> list[process_identity.ProcessIdentity]:
  """Processes and their descendants, all suspended, so that none starts others meanwhile.

  A launcher's workers would not miss it: one that is suspended, or whose interpreter hangs, hears nothing.
  """
  found = list(processes)
  for process in found:
    with contextlib.suppress(errors.UserError):
      send(process, signal.SIGSTOP, name)
    found += [each for each in process_identity.descendants(process.pid) if each not in found]
  return found


@contextlib.contextmanager
def _noted(run: run_folder.Run, mode: str, note: Mapping[str, object]) -> Iterator[None]:
  """Notes the stop request before it is sent: whoever sees the end must see the reason. Not if it fails."""
  path = run.file_of_mode('stop', 'json', mode)
  before = json_files.read(path)
  with contextlib.suppress(errors.StorageError):  # On a full disk it has to stop too.
    json_files.write(path, note)
  try:
    yield
  except BaseException:
    with contextlib.suppress(errors.StorageError, OSError):
      if before is None:
        os.remove(path)
      else:
        json_files.write(path, before)
    raise


def _living(run: run_folder.Run, mode: str | None) -> tuple[judged_status.RunStatus, str]:
  """The first of a run's processes that lives, and its mode."""
  found = {name: judged_status.of_run(run, mode=name) for name in ([mode] if mode else run.modes() or ['train'])}
  for name, each in found.items():
    if each.may_be_alive and each.status != 'unknown':
      return each, name
  each = next(iter(found.values()))
  raise errors.UserError(f'{run.name}: does not run: {each.status}' + (f' ({each.reason})' if each.reason else ''))


def send(process: process_identity.ProcessIdentity, number: int, name: str) -> None:
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
    process_identity.send(process, number)
  except ProcessLookupError:
    raise errors.UserError(
      f'{name}: {process} has ended, or its record does not identify it; kill it yourself'
    ) from None
  except PermissionError:
    raise errors.UserError(f'{name}: {process} belongs to another user, who may stop it') from None
  except OSError as error:
    raise errors.UserError(f'{name}: {process} cannot be opened: {error.strerror}') from error


def wait_for_end(
  run: run_folder.Run, timeout_seconds: float, process: process_identity.ProcessIdentity | None = None
) -> bool:
  """Waits until no process of a run lives; returns whether that is so in the end.

  Args:
    run: the run.
    timeout_seconds: how long to wait at most.
    process: the only one to wait for; another may live on, such as that of an evaluation beside it.
  """
  deadline = time.monotonic() + timeout_seconds
  while process_identity.is_alive(process) if process else judged_status.is_alive(run):
    left = deadline - time.monotonic()
    if left <= 0:
      return False
    _wait(process or judged_status.of_run(run).process, min(left, 1.0))
  return True


def _wait(process: process_identity.ProcessIdentity | None, seconds: float) -> None:
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
