"""Evaluates beside a training: every checkpoint that appears, once, in the order of steps."""

from collections.abc import Callable, Iterator
import time

from absl import logging
import tensorflow as tf

from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.devices import workers as workers_lib

_POLL_SECONDS = 1.0


def new_checkpoints(
  manager: manager_lib.CheckpointManager,
  workers: workers_lib.Workers,
  timeout: float | None = None,
  has_ended: Callable[[], bool] | None = None,
  on_look: Callable[[], None] = lambda: None,
) -> Iterator[str]:
  """The paths of the checkpoints in a folder as they appear, the same on all workers.

  Args:
    manager: that of the folder.
    workers: all that evaluate together.
    timeout: how many seconds to wait for a new checkpoint; None waits for ever.
    has_ended: whether training has ended, so that no more checkpoints will follow.
    on_look: called before each look, and before each checkpoint.

  Yields:
    Each path, oldest first; again, if its step was rolled back and saved again.
  """
  seen, waiting_since = set(), time.monotonic()

  def look():  # First read the end, so that the list after it is complete.
    ended = has_ended is not None and has_ended()
    timed_out = timeout is not None and time.monotonic() - waiting_since > timeout
    versions = [[path, listing.num_rollbacks(path)] for path in manager.checkpoints]
    return [ended or timed_out, [version for version in versions if tuple(version) not in seen]]

  while True:
    on_look()
    ended, new = workers.from_chief('checkpoints to evaluate', look)
    for path, num_rollbacks in new:
      on_look()
      seen.add((path, num_rollbacks))
      yield path
    if new:
      waiting_since = time.monotonic()
    elif ended:
      return
    else:
      time.sleep(_POLL_SECONDS)


def restore_unless_gone(
  path: str, restore: Callable[[str], object], manager: manager_lib.CheckpointManager, workers: workers_lib.Workers
) -> bool:
  """Restores a checkpoint on all workers, or on none if it has been deleted meanwhile or cannot be read.

  Args:
    path: of the checkpoint.
    restore: restores it.
    manager: that of the folder.
    workers: all that evaluate together.

  Returns:
    Whether it is restored.
  """
  gone = False
  try:
    restore(path)
  except Exception as error:  # The type depends on the place of the reader's error.
    unreadable = isinstance(error, (tf.errors.NotFoundError, tf.errors.DataLossError))
    if not unreadable and path in manager.checkpoints:
      raise
    logging.warning('%s was gone before it could be evaluated: %s', path, error)
    gone = True
  return not workers.any('checkpoint gone', gone)
