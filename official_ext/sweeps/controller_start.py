"""Starts the controller of a sweep so that it outlives whoever starts it. No TensorFlow."""

import subprocess
import sys
import threading
import time

from official_ext import errors
from official_ext.queue import job_files
from official_ext.sweeps import sweep_folder

_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.05


def command(folder: sweep_folder.SweepFolder, slots: int | None = None) -> list[str]:
  """The words of the command that goes on with a sweep, behind `official-ext`."""
  return ['sweep', folder.path, *([f'--slots={slots}'] if slots else [])]


def log_path(folder: sweep_folder.SweepFolder) -> str:
  """The file that a controller in the background writes to."""
  return folder.file('controller.log')


def start(folder: sweep_folder.SweepFolder, slots: int | None = None) -> int:
  """Starts a controller in the background.

  Args:
    folder: the sweep, which is there.
    slots: how many points it tries at once; None: as it was last told, or one for each GPU.

  Returns:
    The number of its process, which controls the sweep now, or has found nothing to do.

  Raises:
    UserError: there is one.
    StorageError: it has not come to that; its log tells why.
  """
  found = folder.controller()
  if found is not None:
    raise errors.UserError(f'{folder.name}: {found} controls it already')
  path = log_path(folder)
  with job_files.explaining(path), open(path, 'ab') as log:
    process = subprocess.Popen(
      [sys.executable, '-m', 'official_ext.cli.main', *command(folder, slots)],
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
      start_new_session=True,
    )
  deadline = time.monotonic() + _PATIENCE_SECONDS
  while folder.controller() is None:
    status = process.poll()
    if status in (0, 1):
      return process.pid
    if status is not None or time.monotonic() > deadline:
      raise errors.StorageError(f'{folder.name}: {_last_line(path) or "it has not started"} ({path})')
    time.sleep(_POLL_SECONDS)
  threading.Thread(target=process.wait, daemon=True).start()  # Nothing is left of it when it ends.
  return process.pid


def _last_line(path: str) -> str:
  with open(path, 'rb') as log:
    lines = log.read()[-10_000:].decode(errors='replace').strip().splitlines()
  return lines[-1].removeprefix('error: ') if lines else ''
