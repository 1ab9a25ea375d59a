"""Starts a dispatcher that outlives the process that starts it. No TensorFlow."""

import os

from official_ext.base import errors
from official_ext.operations.queue import detached
from official_ext.operations.queue import job_files
from official_ext.operations.queue import queue_folder


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
    StorageError: it has not started; its log shows the cause.
  """
  if queue.dispatcher() is not None:
    return None
  path = log_path(queue)
  with job_files.explaining(path):
    queue.make()
  words = command(queue, slots, until_empty)
  pid = detached.start(words, path, lambda: bool(queue.dispatcher()), (0, 1) if until_empty else ())
  if pid is None:
    raise errors.StorageError(f'{path}: the dispatcher has not started; this file shows the cause')
  return pid
