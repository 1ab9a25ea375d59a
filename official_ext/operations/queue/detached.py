"""Starts a command of official-ext that continues in the background, and waits until it works. No TensorFlow."""

from collections.abc import Callable, Collection, Sequence
import subprocess
import sys
import threading
import time

from official_ext.operations.queue import job_files

_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.05


def start(words: Sequence[str], log_path: str, works: Callable[[], bool], done: Collection[int] = ()) -> int | None:
  """Starts a command in a separate session, with no input, and waits until it works.

  Args:
    words: of the command, behind `official-ext`.
    log_path: the file that its output is added to, in an existing folder.
    works: whether it works, or another process like it.
    done: the exit statuses with which it may end at once, as there was nothing to be done.

  Returns:
    The number of its process; None if it failed to start; the log shows the cause.

  Raises:
    StorageError: the log cannot be written.
  """
  with job_files.explaining(log_path), open(log_path, 'ab') as log:
    process = subprocess.Popen(
      [sys.executable, '-m', 'official_ext.cli.main', *words],
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
      start_new_session=True,
    )
  deadline = time.monotonic() + _PATIENCE_SECONDS
  while not works():
    status = process.poll()
    if status in done:
      return process.pid
    if status is not None or time.monotonic() > deadline:
      return None
    time.sleep(_POLL_SECONDS)
  threading.Thread(target=process.wait, daemon=True).start()  # Nothing is left of it when it ends.
  return process.pid
