"""Shards by tasks of Ray, on all machines of a cluster that see the same folders."""

from collections.abc import Iterable, Iterator
import contextlib
import itertools
import logging
import os
import signal

import official_ext
from official_ext.base import errors
from official_ext.base import json_types
from official_ext.data import bad_examples
from official_ext.data import extras
from official_ext.data.prepare import shards

_POLL_SECONDS = 0.2
_END_SECONDS = 10.0
_MAX_MESSAGE = 500
_LEAST_WAITING = 8  # Tasks that a cluster sees that is to grow.
_ADDRESS = 'RAY_ADDRESS'  # Ray's own variable, which `ray job submit` sets.


class RayEngine:
  """Tasks of Ray that write shards, each with one core. Use it as a context: at its end none is left."""

  def __init__(self, address: str, num_workers: int):
    """Joins a cluster, or starts Ray on this machine.

    Args:
      address: of the cluster, 'auto' for one that this machine is part of; '': that of the variable RAY_ADDRESS;
        without it, this machine alone.
      num_workers: so many tasks at once; 0: as Ray has cores.

    Raises:
      UserError: Ray is not installed, or there is no such cluster.
      WorkerError: it has not come up in time.
    """
    self._ray = extras.load('ray', '--engine=ray', 'ray')
    self._num_workers = num_workers
    self._waiting: dict[object, str] = {}  # From each task that is not over to the name of its shard.
    address = address or os.environ.get(_ADDRESS, '')
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
      self._start(address)
    except (ConnectionError, ValueError, RuntimeError) as error:
      raise errors.UserError(f'--ray_address={address}: {bad_examples.one_line(error)}') from error
    except Exception as error:  # pylint: disable=broad-except  # Where nothing comes in time, Ray raises just that.
      raise errors.WorkerError(f'--engine=ray: Ray has not come up: {bad_examples.one_line(error)}') from error
    finally:  # Ray's own would end the process.
      for number, handler in handlers.items():
        signal.signal(number, handler)

  def _start(self, address: str) -> None:
    where: json_types.JsonObject = {'address': address}
    if not address:
      os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')  # Processes started here are not reported.
      where = {'address': 'local', 'num_cpus': self._num_workers or None, 'include_dashboard': False}
    logging.getLogger('ray').setLevel(logging.ERROR)
    self._ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)

  def __enter__(self) -> 'RayEngine':
    return self

  def __exit__(self, *_: object) -> None:
    with contextlib.suppress(self._ray.exceptions.RayError):
      for reference in self._waiting:
        self._ray.cancel(reference, force=True)
      if self._waiting:  # None of them may write any more when its folder is tidied.
        self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=_END_SECONDS)
    self._ray.shutdown()

  def answers(self, jobs: Iterable[json_types.JsonObject]) -> Iterator[json_types.JsonObject | None]:
    """See `LocalEngine.answers`. A task whose process or machine is lost is run again."""
    task = self._ray.remote(num_cpus=1)(_write_or_tell)
    here = os.uname().nodename
    left = iter(jobs)
    while True:
      for job in itertools.islice(left, max(0, self._most_waiting() - len(self._waiting))):
        self._waiting[task.remote(job, official_ext.__version__, here)] = job['name']
      if not self._waiting:
        return
      done, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=_POLL_SECONDS)
      if not done:
        yield None
      for reference in done:
        name = self._waiting.pop(reference)
        try:
          answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
          answer = {'name': name, 'end': shards.FAILED, 'message': f'{name}: {_told(error)}'}
        yield answer

  def _most_waiting(self) -> int:
    """How many tasks Ray is given at once: enough for its cores, which may become more meanwhile."""
    return self._num_workers or max(_LEAST_WAITING, 2 * int(self._ray.cluster_resources().get('CPU', 0)))


def _write_or_tell(job: json_types.JsonObject, version: str, caller: str) -> json_types.JsonObject:
  """`shards.write_or_tell` in a process of Ray's.

  Args:
    job: of `Plan.job`.
    version: of the library, where the preparation was begun: others may write other bytes.
    caller: the name of the machine where it was begun.
  """
  os.environ.setdefault('RAYON_NUM_THREADS', '1')  # Of tokenizers: the task has one core.
  if official_ext.__version__ != version:
    message = f'{job["name"]}: version {official_ext.__version__} of this library is to write it, and {version} began'
    answer = {'name': job['name'], 'end': shards.BAD_INPUT, 'message': f'{message}; install the same one everywhere'}
  else:
    answer = shards.write_or_tell(job)
  here = os.uname().nodename
  if 'message' in answer and here != caller:
    answer['message'] += f' (on {here}; input and output must exist under the same paths as on {caller})'
  return answer


def _told(error: Exception) -> str:
  """The last line of Ray's error, which holds the traceback of the task."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  return lines[-1][:_MAX_MESSAGE] if lines else type(error).__name__
