"""Shards by tasks of Ray, on all machines of a cluster that see the same folders."""

from collections.abc import Iterable, Iterator
import signal
from typing import Any

from official_ext import errors
from official_ext.data import bad_examples
from official_ext.data import extras
from official_ext.preparation import shards

_POLL_SECONDS = 0.2


class RayEngine:
  """Tasks of Ray that write shards, each with one core. Use it as a context: at its end none is left."""

  def __init__(self, address: str, num_workers: int):
    """Joins a cluster, or starts Ray on this machine.

    Args:
      address: of the cluster, 'auto' for one that this machine is part of; '' for this machine alone.
      num_workers: so many tasks at once, on this machine alone; 0: as Ray has cores.

    Raises:
      UserError: Ray is not installed, or there is no such cluster.
    """
    self._ray = extras.load('ray', '--engine=ray', 'ray')
    where = {'address': address} if address else {'num_cpus': num_workers or None, 'include_dashboard': False}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
      self._ray.init(log_to_driver=False, **where)
    except (ConnectionError, ValueError, RuntimeError) as error:
      raise errors.UserError(f'--ray_address={address}: {bad_examples.one_line(error)}') from error
    finally:  # Ray's own would end the process.
      for number, handler in handlers.items():
        signal.signal(number, handler)

  def __enter__(self) -> 'RayEngine':
    return self

  def __exit__(self, *_: Any) -> None:
    self._ray.shutdown()

  def answers(self, jobs: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any] | None]:
    """See `LocalEngine.answers`. A task whose machine is lost is run again elsewhere."""
    task = self._ray.remote(num_cpus=1)(shards.write_or_tell)
    waiting = {task.remote(job): job['name'] for job in jobs}
    while waiting:
      done, _ = self._ray.wait(list(waiting), num_returns=1, timeout=_POLL_SECONDS)
      if not done:
        yield None
      for reference in done:
        name = waiting.pop(reference)
        try:
          yield self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
          yield {'name': name, 'end': shards.FAILED, 'message': f'{name}: {bad_examples.one_line(error)}'}
