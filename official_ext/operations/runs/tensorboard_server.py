"""TensorBoard for a run: started once, detached, on this machine alone, and found again.

Its address has a part that cannot be guessed. TensorBoard itself answers every request, and a page in the same browser
could send one under another name that leads here. It ends by itself after twelve hours, or by `stop`. Its record lies
in the user's cache folder, as it concerns only this machine and this user.
"""

import dataclasses
import importlib.util
import os
import re
import secrets
import signal
import sys
import time

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.base.files import cache
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes

SECONDS = 12 * 3600
_START_SECONDS = 90.0
_ADDRESS = re.compile(rb'http://(?:localhost|127\.0\.0\.1):([0-9]+)/')
# Sets its own end, and becomes TensorBoard.
_ENDING = f'import os, signal, sys; signal.alarm({SECONDS}); os.execv(sys.argv[1], sys.argv[1:])'


@dataclasses.dataclass(frozen=True)
class Server:
  """A TensorBoard that runs.

  Attributes:
    url: its address, with the part that cannot be guessed.
    process: the one that serves.
  """

  url: str
  process: processes.ProcessIdentity


def find(run: run_folders.Run) -> Server | None:
  """The running TensorBoard of a run; None without one."""
  noted = json_values.read_file(_path(run, 'json')) or {}
  process = processes.parse_identity(noted)
  url = noted.get('url')
  if process is None or not isinstance(url, str) or processes.is_alive(process) is not True:
    return None
  return Server(url, process)


def start(run: run_folders.Run) -> Server:
  """The TensorBoard of a run, which is started if it does not run.

  Raises:
    UserError: it is not installed, or did not begin to serve.
    StorageError: the cache folder cannot be written.
  """
  if importlib.util.find_spec('tensorboard') is None:
    raise errors.UserError('runs tensorboard: needs tensorboard: pip install tensorboard')
  try:
    os.makedirs(_folder(), mode=0o700, exist_ok=True)
    with local_files.FileLock(_path(run, 'lock'), _START_SECONDS):
      return find(run) or _start(run)
  except TimeoutError:
    raise errors.UserError(f'{run.name}: another process is starting TensorBoard; retry later') from None
  except OSError as error:
    raise errors.StorageError(f'{_folder()}: cannot be written: {error.strerror or error}') from error


def stop(run: run_folders.Run) -> bool:
  """Ends the TensorBoard of a run. Returns whether one was running."""
  found = find(run)
  if found is not None:
    run_processes.send_signal(found.process, signal.SIGTERM, run.name)
  return found is not None


def _start(run: run_folders.Run) -> Server:
  prefix, log = f'/{secrets.token_urlsafe(24)}', _path(run, 'log')
  command = [sys.executable, '-m', 'tensorboard.main', '--logdir', run.place, '--host', '127.0.0.1', '--port', '0']
  command += ['--path_prefix', prefix]
  with open(log, 'wb', opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
    started = run_processes.start_detached([sys.executable, '-I', '-c', _ENDING, *command], file, cwd='/')
  run_processes.reap(started)
  process = processes.identity_of(started.pid)
  port = _wait_for_port(log, process)
  if port is None:
    raise errors.UserError(f'{run.name}: TensorBoard did not begin to serve; {log} says why')
  url = f'http://127.0.0.1:{port}{prefix}/'
  json_values.write_file(_path(run, 'json'), {**process.as_dict(), 'url': url})
  return Server(url, process)


def _wait_for_port(log: str, process: processes.ProcessIdentity) -> int | None:
  """The port that TensorBoard has chosen; None if it has ended, or did not answer in time."""
  end = time.monotonic() + _START_SECONDS
  while time.monotonic() < end:
    lives = processes.is_alive(process)
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


def _path(run: run_folders.Run, extension: str) -> str:
  return os.path.join(_folder(), f'{cache.key_of(paths.real(run.place))}.{extension}')
