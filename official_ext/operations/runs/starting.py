"""Starts a run as a separate process that outlives whoever starts it, and can be found again.

`start` makes a watcher (watcher.py) in a separate session, which makes the process of the run, notes its identity in
`started.json` before the command begins, waits for its end, and notes that too. Two starters at the same time, or one
that is killed at any moment, cannot start a run twice: `started.lock` is held from the look at running processes to
that note, by the starter and the watcher together.
"""

from collections.abc import Mapping, Sequence
import json
import os
import shlex
import subprocess
import sys

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base.files import file_lock
from official_ext.base.files import moments
from official_ext.base.files import paths
from official_ext.base.processes import invocation
from official_ext.base.processes import process_identity
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import watcher

LOCK = 'started.lock'
_PATIENCE_SECONDS = 30.0


def start(
  command: Sequence[str],
  model_dir: str,
  env: Mapping[str, str] | None = None,
  cwd: str | None = None,
  mode: str = 'train',
) -> process_identity.ProcessIdentity:
  """Starts a command, detached, for the run in a folder.

  The process has a separate session, no input, no descriptors of this process, and its output is appended to
  `run.log`. `started.json` contains its identity, its command, with passwords masked, and in the end its exit status.

  Args:
    command: the program and its arguments.
    model_dir: the run's folder, which is made if it does not exist.
    env: the whole environment; None: this process's.
    cwd: the folder to start it in; None: this process's.
    mode: of the command. Any that trains is one; an evaluation beside it has separate files, with its name.

  Returns:
    The identity of the process, which has begun, or failed since.

  Raises:
    UserError: the run lives, or the command or a folder is missing.
    StorageError: the folder cannot be written.
  """
  model_dir = os.path.abspath(model_dir)
  cwd = os.path.abspath(cwd or os.getcwd())
  if not os.path.isdir(cwd):
    raise errors.UserError(f'{cwd}: no such folder, in which the run is to be started')
  run = run_folder.Run(model_dir, os.path.basename(model_dir))
  try:
    paths.make_folder(model_dir)
    with file_lock.FileLock(run.file(LOCK), _PATIENCE_SECONDS) as lock:
      if judged_status.is_alive(run, mode):
        raise errors.UserError(f'{model_dir}: the run lives ({_describe(run, mode)}); wait for it, or stop it first')
      return _start(command, run, env, cwd, mode, lock.descriptor)
  except TimeoutError:
    raise errors.UserError(f'{model_dir}: another process is starting a run there; retry later') from None
  except OSError as error:
    raise errors.StorageError(f'{error.filename or model_dir}: cannot be written: {error.strerror or error}') from error


def _start(command, run, env, cwd, mode, lock) -> process_identity.ProcessIdentity:
  request = {
    'command': list(command),
    'cwd': cwd,
    'log': run.log_path(mode),
    'path': run.file_of_mode('started', 'json', mode),
    'lock_path': run.file(LOCK),
    'lock': lock,
    'note': {
      'command': shlex.join(map(credentials.mask, command)),
      'is_masked': any(credentials.mask(word) != word for word in command),
      'cwd': cwd,
      'environment': invocation.environment(os.environ if env is None else env),
      'started': moments.now(),
    },
  }
  # Isolated: nothing that the environment of the run says about Python concerns the watcher.
  process = subprocess.Popen(
    [sys.executable, '-I', watcher.__file__],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    cwd='/',
    env=env,
    pass_fds=(lock,),
    start_new_session=True,
  )
  assert process.stdin is not None and process.stdout is not None
  try:
    process.stdin.write(json.dumps(request).encode())
    process.stdin.close()
    answer = json.loads(process.stdout.read() or b'{}')
  except (BrokenPipeError, ValueError):
    answer = {}
  finally:
    process.stdout.close()
    process.wait()  # It continues as a separate child, which the system adopts.
  identity = process_identity.parse(answer)
  if identity is None:
    reason = answer.get('error', 'its watcher has ended')
    raise errors.UserError(f'{answer.get("path", command[0])}: cannot be started: {reason}')
  return identity


def _describe(run: run_folder.Run, mode: str) -> str:
  found = judged_status.of_run(run, mode=mode)
  return f'{found.status}, {found.process}' if found.process else found.status
