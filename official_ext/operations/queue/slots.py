"""Which job gets a slot, and which GPUs. No TensorFlow."""

import collections
from collections.abc import Callable, Collection, Sequence
import dataclasses

from official_ext.operations.queue import job_files
from official_ext.operations.queue import job_status


@dataclasses.dataclass(frozen=True)
class Slots:
  """How many runs there may be at once, and the GPUs that they share out among themselves.

  Attributes:
    count: so many runs, each has a slot from its order until it is over.
    gpus: names for CUDA_VISIBLE_DEVICES; a name that occurs twice is handed out to two runs. None: no GPUs are
      known, and the variable is unchanged.
  """

  count: int
  gpus: tuple[str, ...] | None = None

  def needed(self, job: job_files.Job) -> int:
    """How many GPUs a job takes: the number requested; by default one if there are any."""
    return job.gpus if job.gpus is not None else min(1, len(self.gpus or ()))

  def can_ever_hold(self, job: job_files.Job) -> bool:
    """Whether there are as many GPUs as a job needs."""
    return self.needed(job) <= len(self.gpus or ())

  def has_room(self, holders: Collection[job_status.State]) -> bool:
    """Whether another run may start beside those that have a slot."""
    return len(holders) < self.count

  def free_gpus(self, holders: Collection[job_status.State]) -> list[str]:
    """GPUs that no run has."""
    free = collections.Counter(self.gpus or ())
    free.subtract(name for state in holders if state.attempt for name in state.attempt.gpus or ())
    return [name for name in self.gpus or () if _take(free, name)]

  def share(self, job: job_files.Job, free_gpus: Sequence[str]) -> tuple[str, ...] | None:
    """The GPUs that a job gets of those that are free; None leaves CUDA_VISIBLE_DEVICES unchanged."""
    if self.gpus is None and job.gpus is None:
      return None
    return tuple(free_gpus[: self.needed(job)])


def _take(counts: collections.Counter, name: str) -> bool:
  counts[name] -= 1
  return counts[name] >= 0


def choose(
  waiting: Sequence[job_status.State],
  holders: Sequence[job_status.State],
  slots: Slots,
  is_free: Callable[[job_files.Job], bool] = lambda job: True,
) -> tuple[job_status.State, tuple[str, ...] | None] | None:
  """The job to start next, and its GPUs; None if none can be started now.

  The order is kept: a job that waits for GPUs is not overtaken by one that needs fewer, or it might wait for ever. Only
  jobs that are paused, whose folder is not free, or that need more GPUs than there are, are passed over.

  Args:
    waiting: jobs in their order.
    holders: those that have a slot.
    slots: all slots.
    is_free: whether no other run lives in the folder of a job.
  """
  if not slots.has_room(holders):
    return None
  for state in waiting:
    if state.status != 'queued' or state.job is None or not slots.can_ever_hold(state.job) or not is_free(state.job):
      continue
    free = slots.free_gpus(holders)
    if len(free) < slots.needed(state.job):
      return None
    return state, slots.share(state.job, free)
  return None
