"""TensorBoard for a run: started once, detached, on this machine alone, and found again.

Its address has a part that nobody can guess: TensorBoard itself answers whoever asks, and a page in the same browser
could ask, under another name that leads here. It ends by itself after twelve hours, or by `stop`. Its record lies
in the user's cache folder, as it concerns this machine and this user alone.
"""

import dataclasses
import importlib.util
import os
import re
import secrets
import signal
import subprocess
import sys
import time

from official_ext.base import errors
from official_ext.base.files import cache
from official_ext.base.files import file_lock
from official_ext.base.processes import process_identity
from official_ext.operations.runs import json_files
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import signals

SECONDS = 12 * 3600
_START_SECONDS = 90.0
_ADDRESS = re.compile(rb'http://(?:localhost|127\.0\.0\.1):([0-9]+)/')
# In a separate session: continues in the background, sets its own end, and becomes TensorBoard.
_DETACH = """
import os, signal, sys
pid = os.fork()
if pid:
  os.write(1, b'%d' % pid)
  os._exit(0)
signal.alarm(int(sys.argv[1]))
log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
os.dup2(log, 1)
os.dup2(log, 2)
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclasses.dataclass(frozen=True)
class Server:
  """A TensorBoard that runs.

  Attributes:
    url: its address, with the part that nobody can guess.
    process: the one that serves.
  """

  url: str
  process: process_identity.ProcessIdentity


def find(run: run_folder.Run) -> Server | None:
  """The TensorBoard of a run that is running; None if there is none."""
  noted = json_files.read(_path(run, 'json')) or {}
  process = process_identity.parse(noted)
  url = noted.get('url')
  if process is None or not isinstance(url, str) or process_identity.is_alive(process) is not True:
    return None
  return Server(url, process)


def start(run: run_folder.Run) -> Server:
  """The TensorBoard of a run, which is started if it does not run.

  Raises:
    UserError: it is not installed, or did not begin to serve.
    StorageError: the cache folder cannot be written.
  """
  if importlib.util.find_spec('tensorboard') is None:
    raise errors.UserError('runs tensorboard: needs tensorboard: pip install tensorboard')
  try:
    os.makedirs(_folder(), mode=0o700, exist_ok=True)
    with file_lock.FileLock(_path(run, 'lock'), _START_SECONDS):
      return find(run) or _start(run)
  except TimeoutError:
    raise errors.UserError(f'{run.name}: another process is starting TensorBoard; retry later') from None
  except OSError as error:
    raise errors.StorageError(f'{_folder()}: cannot be written: {error.strerror or error}') from error


def stop(run: run_folder.Run) -> bool:
  """Ends the TensorBoard of a run. Returns whether one was running."""
  found = find(run)
  if found is not None:
    signals.send(found.process, signal.SIGTERM, run.name)
  return found is not None


def _start(run: run_folder.Run) -> Server:
  prefix, log = f'/{secrets.token_urlsafe(24)}', _path(run, 'log')
  command = [sys.executable, '-m', 'tensorboard.main', '--logdir', run.path, '--host', '127.0.0.1', '--port', '0']
  command += ['--path_prefix', prefix]
  program = [sys.executable, '-I', '-c', _DETACH, str(SECONDS), log, *command]
  done = subprocess.run(
    program, stdin=subprocess.DEVNULL, capture_output=True, cwd='/', start_new_session=True, check=False
  )
  if done.returncode or not done.stdout.strip().isdigit():
    raise errors.UserError(f'{run.name}: TensorBoard cannot be started')
  pid = int(done.stdout)
  process = dataclasses.replace(process_identity.own(), pid=pid, pid_start=process_identity.start_of(pid))
  port = _wait_for_port(log, process)
  if port is None:
    raise errors.UserError(f'{run.name}: TensorBoard did not begin to serve; {log} says why')
  url = f'http://127.0.0.1:{port}{prefix}/'
  json_files.write(_path(run, 'json'), {**process.as_dict(), 'url': url})
  return Server(url, process)


def _wait_for_port(log: str, process: process_identity.ProcessIdentity) -> int | None:
  """The port that TensorBoard has chosen; None if it has ended, or did not answer in time."""
  end = time.monotonic() + _START_SECONDS
  while time.monotonic() < end:
    lives = process_identity.is_alive(process)
    try:
      with open(log, 'rb') as file:
        match = _ADDRESS.search(file.read(1 << 16))
    except FileNotFoundError:
      match = None
    if match:
      return int(match[1])
    if not lives:
      return None
    time.sleep(0.1)
  return None


def _folder() -> str:
  return os.path.join(cache.root(), 'tensorboard')


def _path(run: run_folder.Run, extension: str) -> str:
  return os.path.join(_folder(), f'{cache.key_of(os.path.realpath(run.path))}.{extension}')
