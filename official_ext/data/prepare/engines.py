"""Engines of a preparation, which write its shards: processes of this machine, or tasks of Ray.

Ray's tasks run on all machines of a cluster; all of them must see the same folders.
"""

from collections.abc import Iterable, Iterator
import contextlib
import itertools
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

import official_ext
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.data import bad_examples
from official_ext.data.prepare import shards

_END_SECONDS = 10.0
_POLL_SECONDS = 0.2


class _Parts:
  """The parts of a shard that several processes make at once.

  Attributes:
    jobs: of the parts.
  """

  def __init__(self, job: dict[str, Any], jobs: list[dict[str, Any]]):
    self.jobs = jobs
    self._job = job
    self._done: dict[int, json_values.JsonObject] = {}
    self._read: dict[int, tuple[int, float]] = {}  # The records and the share of each part so far.

  def taken(self, answer: json_values.JsonObject) -> json_values.JsonObject:
    """The answer for the whole shard: a report until all parts are there; an error of a part is the shard's."""
    if answer['end'] == shards.PART:
      self._done[answer['part']] = answer
      self._read[answer['part']] = answer['report']['records'], 1.0
      if len(self._done) == len(self.jobs):
        return shards.assemble(self._job, [self._done[part] for part in sorted(self._done)])
    elif answer['end'] == shards.UNDER_WAY:
      self._read[answer['part']] = answer['records'], answer['share']
    else:
      return answer
    records, shares = zip(*self._read.values())
    share = sum(shares) / len(self.jobs)
    return {'name': self._job['name'], 'end': shards.UNDER_WAY, 'records': sum(records), 'share': share}


class LocalEngine:
  """Processes that write shards. Use it as a context: at its end they are gone."""

  def __init__(self, num_workers: int):
    """Takes the largest number of processes."""
    self._num_workers = self._num_used = num_workers
    self._processes: list[subprocess.Popen] = []
    self._answers: queue.Queue[dict[str, object] | None] = queue.Queue()
    self._lock = threading.Lock()
    self._closed = False
    self._threads: list[threading.Thread] = []

  def __enter__(self) -> 'LocalEngine':
    return self

  def __exit__(self, *_: object) -> None:
    with self._lock:
      self._closed = True
      processes = list(self._processes)
    for process in processes:
      process.kill()
    for thread in self._threads:
      thread.join(_END_SECONDS)
    for process in processes:
      process.wait(_END_SECONDS)
      for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):  # The data for it is discarded.
          pipe.close()

  def answers(self, jobs: Iterable[dict[str, object]]) -> Iterator[json_values.JsonObject | None]:
    """The answers of `shards.write_or_report` to jobs, and its reports before them, as they come.

    None every now and then, while none comes.
    """
    jobs = list(jobs)
    # So many remain for the last round that some processes would have none: these are divided.
    tail = jobs[len(jobs) - len(jobs) % self._num_workers :] if self._num_workers > 1 else []
    parts: dict[object, _Parts] = {}
    for job in tail:
      divided = shards.divided(job, self._num_workers)
      note = shards.verified(job) if divided else None
      if note is not None:
        yield {'name': job['name'], 'end': shards.DONE, 'note': note, 'was_there': True}
      elif divided:
        parts[job['name']] = _Parts(job, divided)
      if divided:
        jobs.remove(job)
    todo = [*jobs, *(job for each in parts.values() for job in each.jobs)]
    self._num_used = max(1, min(self._num_workers, len(todo)))
    left = iter(todo)
    self._threads = [threading.Thread(target=self._serve, args=(left,), daemon=True) for _ in range(self._num_used)]
    for thread in self._threads:
      thread.start()
    working = len(self._threads)
    while working:
      try:
        answer = self._answers.get(timeout=_POLL_SECONDS)
      except queue.Empty:
        yield None
        continue
      if answer is None:
        working -= 1
      elif answer['name'] in parts:
        yield parts[answer['name']].taken(answer)
      else:
        yield answer

  def _serve(self, jobs: Iterator[dict[str, object]]) -> None:
    """Gives one process its jobs, one after the other."""
    job: json_values.JsonObject | None = None
    try:
      process = None
      while (job := self._next(jobs)) is not None:
        if process is None:
          process = self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job) + '\n')
        process.stdin.flush()
        answer = {'end': shards.UNDER_WAY}
        while answer['end'] == shards.UNDER_WAY:
          answer = json.loads(process.stdout.readline())
          self._answers.put(answer)
      if process is not None and process.stdin is not None:
        process.stdin.close()
        process.wait()
    except (OSError, ValueError):  # The process has ended, by itself or by `__exit__`.
      status = process.wait() if process is not None else 'none'
      if job is not None and not self._closed:
        message = f'{job["name"]}: the process that wrote it has ended with status {status}'
        self._answers.put({'name': job['name'], 'end': shards.FAILED, 'message': message})
    finally:
      self._answers.put(None)

  def _next(self, jobs):
    with self._lock:
      return None if self._closed else next(jobs, None)

  def _start(self) -> subprocess.Popen:
    root = os.path.dirname(os.path.dirname(os.path.abspath(official_ext.__file__)))
    threads = max(1, num_cores() // self._num_used)
    environment = {
      'RAYON_NUM_THREADS': str(threads),  # Of tokenizers.
      **os.environ,
      'PYTHONPATH': os.pathsep.join(filter(None, [root, os.environ.get('PYTHONPATH')])),
    }
    with self._lock:
      if self._closed:
        raise OSError('closed')
      process = subprocess.Popen(
        [sys.executable, '-P', '-m', 'official_ext.data.prepare.shard_worker'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        encoding='utf-8',
      )
      self._processes.append(process)
    return process


def num_cores() -> int:
  """The number of cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


_RAY_POLL_SECONDS = 0.2
_RAY_END_SECONDS = 10.0
_MAX_MESSAGE = 500
_LEAST_WAITING = 8  # Tasks that wait, so that Ray's autoscaler adds machines.
_ADDRESS = 'RAY_ADDRESS'  # Ray's own variable, which `ray job submit` sets.


class RayEngine:
  """Tasks of Ray that write shards, each with one core. Use it as a context: at its end none is left."""

  def __init__(self, address: str, num_workers: int):
    """Joins a cluster, or starts Ray on this machine.

    Args:
      address: of the cluster, 'auto' for one that this machine is part of; '': the value of the
        variable RAY_ADDRESS; without it, this machine alone.
      num_workers: the number of tasks at once; 0: one for each core of Ray.

    Raises:
      UserError: Ray is not installed, or there is no such cluster.
      WorkerError: it has not come up in time.
    """
    self._ray = package_imports.import_optional('ray', '--engine=ray', 'ray')
    self._num_workers = num_workers
    self._waiting: dict[object, str] = {}  # The name of the shard of each unfinished task.
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
    where: json_values.JsonObject = {'address': address}
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
        self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=_RAY_END_SECONDS)
    self._ray.shutdown()

  def answers(self, jobs: Iterable[json_values.JsonObject]) -> Iterator[json_values.JsonObject | None]:
    """See `LocalEngine.answers`; there are no reports before the end of a shard.

    A task whose process or machine is lost is run again.
    """
    task = self._ray.remote(num_cpus=1)(_write_or_report)
    here = os.uname().nodename
    left = iter(jobs)
    while True:
      for job in itertools.islice(left, max(0, self._most_waiting() - len(self._waiting))):
        self._waiting[task.remote(job, official_ext.__version__, here)] = job['name']
      if not self._waiting:
        return
      done, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=_RAY_POLL_SECONDS)
      if not done:
        yield None
      for reference in done:
        name = self._waiting.pop(reference)
        try:
          answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
          answer = {'name': name, 'end': shards.FAILED, 'message': f'{name}: {_reported(error)}'}
        yield answer

  def _most_waiting(self) -> int:
    """How many tasks Ray is given at once: enough for its cores, which may become more meanwhile."""
    return self._num_workers or max(_LEAST_WAITING, 2 * int(self._ray.cluster_resources().get('CPU', 0)))


def _write_or_report(job: json_values.JsonObject, version: str, caller: str) -> json_values.JsonObject:
  """`shards.write_or_report` in a process of Ray's.

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
    answer = shards.write_or_report(job)
  here = os.uname().nodename
  if 'message' in answer and here != caller:
    answer['message'] += f' (on {here}; input and output must exist under the same paths as on {caller})'
  return answer


def _reported(error: Exception) -> str:
  """The last line of Ray's error, which holds the traceback of the task."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  return lines[-1][:_MAX_MESSAGE] if lines else type(error).__name__
