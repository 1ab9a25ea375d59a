"""Starts a dispatcher that outlives the process that starts it. No TensorFlow."""

from collections.abc import Sequence
import os
import subprocess
import sys
import threading
import time

from official_ext import errors
from official_ext.queue import job_files
from official_ext.queue import queue_folder

_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.05


def command(queue: queue_folder.Queue, slots: int | None = None, until_empty: bool = False) -> list[str]:
  """The words of the command that dispatches a queue, behind `official-ext`."""
  words = ['queue', 'run', os.path.abspath(queue.runs_dir)]
  return words + ([f'--slots={slots}'] if slots else []) + (['--until_empty'] if until_empty else [])


def log_path(queue: queue_folder.Queue) -> str:
  """The file that a dispatcher in the background writes to."""
  return os.path.join(queue.folder, 'dispatcher.log')


def start(queue: queue_folder.Queue, slots: int | None = None, until_empty: bool = False) -> int | None:
  """Starts a dispatcher in the background, unless there is one.

  Args:
    queue: the queue.
    slots: how many jobs may run at once; None: the number of GPUs, or 1.
    until_empty: it ends when no job waits or runs.

  Returns:
    The number of its process, which dispatches now, or has ended as nothing was to be done; None if there was one.

  Raises:
    StorageError: it has not come to that; its log tells why.
  """
  if queue.dispatcher() is not None:
    return None
  process = _detach(['-m', 'official_ext.cli.main', *command(queue, slots, until_empty)], queue)
  deadline = time.monotonic() + _PATIENCE_SECONDS
  while queue.dispatcher() is None:
    status = process.poll()
    if status is not None and until_empty and status in (0, 1):
      return process.pid
    if status is not None or time.monotonic() > deadline:
      raise errors.StorageError(f'{log_path(queue)}: the dispatcher has not started; this file tells why')
    time.sleep(_POLL_SECONDS)
  threading.Thread(target=process.wait, daemon=True).start()  # Nothing is left of it when it ends.
  return process.pid


def _detach(arguments: Sequence[str], queue: queue_folder.Queue) -> subprocess.Popen:
  path = log_path(queue)
  with job_files.explaining(path):
    queue.make()
    with open(path, 'ab') as log:
      return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
      )
