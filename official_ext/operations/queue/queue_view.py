"""A queue as JSON values, for `queue list` and the console. No TensorFlow."""

from collections.abc import Sequence
from typing import Any

from official_ext.operations.queue import job_status
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder


def as_dict(queue: queue_folder.Queue, max_over: int | None = None) -> dict[str, Any]:
  """The queue as it stands: the jobs that are over, those that run, those that wait in their order.

  Args:
    queue: the queue.
    max_over: of those that are over at most so many are listed, the latest; None: all.

  Returns:
    `paused`; `dispatcher`, its own entry, or None; `slots_in_use`; `num_over`; `jobs`.

  Raises:
    StorageError: something cannot be read.
  """
  states = queue.states()
  waiting = queue.waiting(states)
  over = [state for state in states if state.status in job_status.OVER]
  rest = [state for state in states if state not in over and state not in waiting]
  shown = over if max_over is None else over[len(over) - min(max_over, len(over)) :]
  return {
    'paused': queue.is_paused,
    'dispatcher': queue.dispatcher(),
    'slots_in_use': sum(state.has_slot for state in states),
    'num_over': len(over),
    'jobs': [_entry(state, waiting) for state in (*shown, *rest, *waiting)],
  }


def _entry(state: job_status.State, waiting: Sequence[job_status.State]) -> dict[str, Any]:
  """A job as JSON values."""
  attempt, job = state.attempt, state.job
  return {
    'job': state.number,
    'status': state.status,
    'reason': state.reason,
    'position': waiting.index(state) + 1 if state in waiting else None,
    'attempt': attempt.number if attempt else 0,
    'max_restarts': job.max_restarts if job else None,
    'exit_status': state.exit_status,
    'model_dir': job.model_dir or None if job else None,
    'log': job.log if job else None,
    'command': queue_changes.shown(job.command) if job else None,
    'pid': attempt.process.pid if attempt and attempt.process else None,
    'gpus': attempt.gpus if attempt else None,
    'added': job.added if job else None,
    **{name: attempt.times.get(name) if attempt else None for name in ('ordered', 'started', 'ended')},
  }
