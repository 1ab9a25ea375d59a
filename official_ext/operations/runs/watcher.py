"""The parent of a run that was started detached: notes its identity before it begins, and its exit status when it ends.

A separate program, started by starting.py with the request, a JSON object, on its standard input; it answers on its
standard output, with the identity of the run's process or with `{"error", "path"}`, and continues in the background.
"""

import dataclasses
import json
import os
import signal
import sys
from typing import Any, NoReturn

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def main() -> None:
  """Starts the run of the request, waits for it, and notes how it has ended."""
  environment = dict(os.environ)  # As it came: the imports below change it.
  sys.path.insert(0, ROOT)
  request = json.loads(sys.stdin.buffer.read())
  if os.fork():  # Whoever asked waits for this process, and not for the run.
    os._exit(0)
  for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # They are for the run.
    signal.signal(number, signal.SIG_IGN)
  pid, note = _begin(request, environment)
  if pid:
    _, wait_status = os.waitpid(pid, 0)
    _note_end(request, note, os.waitstatus_to_exitcode(wait_status))


def _begin(request: dict[str, Any], environment: dict[str, str]) -> tuple[int, dict[str, Any]]:
  """Makes the process of the run; answers. Returns its number, 0 if there is none, and the note about it."""
  from official_ext.base import errors
  from official_ext.base import harmless_text
  from official_ext.base.files import regular_files
  from official_ext.base.processes import process_identity
  from official_ext.operations.runs import json_files

  try:
    log = regular_files.open_descriptor(request['log'], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
  except OSError as error:
    _answer({'error': error.strerror, 'path': request['log']})
    return 0, {}
  go, gate = os.pipe()
  failure, failed = os.pipe()
  pid = os.fork()
  if not pid:
    os.close(gate)
    os.close(failure)
    _become(request, environment, log, go, failed)
  os.close(go)
  os.close(failed)
  identity = dataclasses.replace(process_identity.own(), pid=pid, pid_start=process_identity.start_of(pid))
  note = {**request['note'], **identity.as_dict(), 'ended': None, 'exit_status': None}
  try:
    json_files.write(request['path'], note)
  except errors.StorageError as error:
    os.close(gate)  # The child ends.
    os.waitpid(pid, 0)
    _answer({'error': str(error), 'path': request['path']})
    return 0, {}
  _write(log, f'[{note["started"]}] {harmless_text.harmless(note["command"])}\n'.encode())
  os.write(gate, b'.')
  os.close(gate)
  os.close(request['lock'])
  reason = os.read(failure, 4096)  # Ends when the command has begun.
  os.close(failure)
  if reason:
    _write(log, os.fsencode(request['command'][0]) + b': ' + reason + b'\n')
  os.close(log)
  _answer({'error': reason.decode('utf-8', 'replace')} if reason else identity.as_dict())
  return pid, note


def _become(request, environment, log, go, failed) -> NoReturn:
  """In the child: waits until its identity is noted, and becomes the command."""
  try:
    os.setsid()
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
      signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if not os.read(go, 1):  # The watcher was killed, or could not note it.
      os._exit(125)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
      os.dup2(source, target)
    os.dup2(failed, 3)
    os.set_inheritable(3, False)
    os.closerange(4, os.sysconf('SC_OPEN_MAX'))
    failed = 3
    os.chdir(request['cwd'])
    os.execvpe(request['command'][0], request['command'], environment)
  except OSError as error:
    os.write(failed, str(error.strerror).encode())
  finally:
    os._exit(127)


def _write(log: int, text: bytes) -> None:
  """Adds to a run's log, if that can be written: a run begins on a full disk too."""
  try:
    os.write(log, text)
  except OSError:
    pass


def _answer(values: dict[str, Any]) -> None:
  """Answers whoever has asked, if he still lives, and lets go of him."""
  try:
    os.write(1, json.dumps(values).encode())
  except OSError:
    pass
  null = os.open(os.devnull, os.O_RDWR)
  for number in (0, 1):
    os.dup2(null, number)
  os.close(null)


def _note_end(request, note, exit_status) -> None:
  """Notes how the run has ended, unless another was started meanwhile."""
  from official_ext.base import errors
  from official_ext.base.files import file_lock
  from official_ext.base.files import moments
  from official_ext.operations.runs import json_files

  try:
    with file_lock.FileLock(request['lock_path'], patience_seconds=600.0):
      if json_files.read(request['path']) == note:
        json_files.write(request['path'], {**note, 'ended': moments.now(), 'exit_status': exit_status})
  except (OSError, errors.StorageError):  # Who reads it will see that the process is gone.
    pass


if __name__ == '__main__':
  main()
