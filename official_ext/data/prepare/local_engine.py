"""Shards by several processes of this machine."""

from collections.abc import Iterable, Iterator
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading

import official_ext
from official_ext.base import json_types
from official_ext.data.prepare import shards

_END_SECONDS = 10.0
_POLL_SECONDS = 0.2


class LocalEngine:
  """Processes that write shards. Use it as a context: at its end they are gone."""

  def __init__(self, num_workers: int):
    """Takes the number of processes."""
    self._num_workers = num_workers
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

  def answers(self, jobs: Iterable[dict[str, object]]) -> Iterator[json_types.JsonObject | None]:
    """The answers of `shards.write_or_tell` to jobs, as they come; None every now and then, while there is none."""
    left = iter(jobs)
    self._threads = [threading.Thread(target=self._serve, args=(left,), daemon=True) for _ in range(self._num_workers)]
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
      else:
        yield answer

  def _serve(self, jobs: Iterator[dict[str, object]]) -> None:
    """Gives one process its jobs, one after the other."""
    job: json_types.JsonObject | None = None
    try:
      process = None
      while (job := self._next(jobs)) is not None:
        if process is None:
          process = self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job) + '\n')
        process.stdin.flush()
        self._answers.put(json.loads(process.stdout.readline()))
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
    threads = max(1, num_cores() // self._num_workers)
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
  """Those that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
