"""The cost of the console: python -m benchmarks.console [--runs=1000] [--events=10000] [--seconds=60]

It makes folders of runs as a training leaves them (runs_list.py), one in ten living in this process, serves them by a
separate process, as `official-ext console` is, and measures: the list without a cache and with one; a filter and a
sort; the size of the server; from an event to whoever listens; and, in a folder of ten runs that all write an event
every second, the share of a core that the server takes while all ten are watched. No TensorFlow.
"""

import argparse
from collections.abc import Callable, Iterator
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from benchmarks import runs_list

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_TICKS = os.sysconf('SC_CLK_TCK')


class Server:
  """`official-ext console` as a process."""

  def __init__(self, root: pathlib.Path, cache_folder: pathlib.Path):
    words = [sys.executable, '-m', 'official_ext.cli.main', 'console', str(root), '--port=0']
    env = {**os.environ, 'XDG_CACHE_HOME': str(cache_folder)}
    self.process = subprocess.Popen(words, cwd=_ROOT, env=env, stdout=subprocess.PIPE, text=True)
    assert self.process.stdout is not None
    found = re.search(r'http://127.0.0.1:(\d+)', self.process.stdout.readline())
    assert found is not None
    self.port = int(found[1])

  def get(self, path: str, **query: object) -> dict:
    """The JSON of a request."""
    connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
    connection.request('GET', f'{path}?{urllib.parse.urlencode(query, doseq=True)}')
    return json.loads(connection.getresponse().read())

  def listen(self, **query: object) -> Iterator[tuple[str, dict]]:
    """The messages of a stream."""
    connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
    connection.request('GET', f'/api/stream?{urllib.parse.urlencode(query, doseq=True)}')
    answer, kind = connection.getresponse(), ''
    while True:
      line = answer.readline().decode().rstrip()
      kind = line.removeprefix('event: ') if line.startswith('event: ') else kind
      if line.startswith('data: '):
        yield kind, json.loads(line.removeprefix('data: '))

  def cpu_seconds(self) -> float:
    """The processor time of its process."""
    fields = pathlib.Path(f'/proc/{self.process.pid}/stat').read_text().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS

  def megabytes(self, name: str = 'VmRSS') -> float:
    """The size of its process; VmHWM: the largest that it had."""
    text = pathlib.Path(f'/proc/{self.process.pid}/status').read_text()
    return int(text.partition(f'{name}:')[2].split()[0]) / 1024

  def end(self) -> None:
    """Ends it."""
    self.process.kill()
    self.process.wait()


def _seconds(function: Callable[[], object]) -> float:
  start = time.perf_counter()
  function()
  return time.perf_counter() - start


def _event_to_listener(server: Server, root: pathlib.Path, name: str, query: dict) -> float:
  """From a line in a file to a message, in seconds: the median of nine."""
  messages = server.listen(**query)
  next(messages)
  taken = []
  for number in range(9):
    time.sleep(0.1 + 0.07 * number)
    step = 1_000_000 + int(time.time() * 1000)
    start = time.perf_counter()
    _append(root / name, step)
    for _, values in messages:
      runs = [run for run in values.get('changed', []) if run['name'] == name and run['step'] == step]
      if runs or any(event['step'] == step for event in values.get('events', [])):
        break
    taken.append(time.perf_counter() - start)
  return sorted(taken)[4]


def _make_own(path: pathlib.Path) -> None:
  """Gives a run a separate file: runs_list.py makes links to one."""
  shutil.copy(path, path.with_name('own'))
  os.replace(path.with_name('own'), path)


def _append(folder: pathlib.Path, step: int) -> None:
  values = {'time': time.time(), 'event': 'train', 'step': step, 'training_loss': 0.5, 'steps_per_second': 10.0}
  with open(folder / 'events.jsonl', 'a') as file:
    file.write(json.dumps(values) + '\n')


def measure_many(root: pathlib.Path, temporary: pathlib.Path) -> Iterator[tuple[str, float, str]]:
  """Figures of a folder with many runs: (what, value, unit)."""
  _make_own(root / 'sweep0' / 'run0' / 'events.jsonl')
  cold = []
  for _ in range(3):
    shutil.rmtree(temporary / 'cache', ignore_errors=True)
    server = Server(root, temporary / 'cache')
    cold.append(_seconds(lambda server=server: server.get('/api/runs')))  # type: ignore[misc]
    server.end()
  yield 'list, no cache', min(cold), 's'
  server = Server(root, temporary / 'cache')
  yield 'list, cache in a file', _seconds(lambda: server.get('/api/runs')), 's'
  yield 'list, warm', min(_seconds(lambda: server.get('/api/runs')) for _ in range(5)), 's'
  server.get('/api/runs/fields')
  query = {'topics': 'runs'}
  messages = server.listen(**query)
  next(messages)
  by_metric = [_seconds(lambda: server.get('/api/runs/filter', filter='accuracy>0.5')) for _ in range(9)]
  yield 'filter by a metric, median', sorted(by_metric)[4], 's'
  by_field = [_seconds(lambda: server.get('/api/runs/filter', filter='learning_rate=1e-3')) for _ in range(9)]
  yield 'filter by a field, median', sorted(by_field)[4], 's'
  yield 'event of a run to the list', _event_to_listener(server, root, 'sweep0/run0', query), 's'
  before, start = server.cpu_seconds(), time.monotonic()
  time.sleep(20)
  share = (server.cpu_seconds() - before) / (time.monotonic() - start)
  yield 'watching the list, of a core', 100 * share, '%'
  yield 'size of the server', server.megabytes(), 'MB'
  yield 'its largest size', server.megabytes('VmHWM'), 'MB'
  server.end()


def measure_watching(root: pathlib.Path, temporary: pathlib.Path, seconds: int) -> Iterator[tuple[str, float, str]]:
  """Figures of ten runs that are watched."""
  server = Server(root, temporary / 'cache10')
  names = [run['name'] for run in server.get('/api/runs')['runs']]
  query = {'topics': 'runs', 'run': names}
  is_over = threading.Event()

  def write() -> None:
    step = 2_000_000
    while not is_over.wait(1):
      step += 1
      for name in names:
        _append(root / name, step)

  def read() -> None:
    with contextlib.suppress(OSError, http.client.HTTPException, IndexError):
      for _ in server.listen(**query):
        if is_over.is_set():
          return

  threads = [threading.Thread(target=write, daemon=True), threading.Thread(target=read, daemon=True)]
  for thread in threads:
    thread.start()
  time.sleep(3)
  before, start = server.cpu_seconds(), time.monotonic()
  time.sleep(seconds)
  share = (server.cpu_seconds() - before) / (time.monotonic() - start)
  yield f'{len(names)} watched runs, of a core', 100 * share, '%'
  is_over.set()
  threads[0].join()
  one = {'topics': '', 'run': names[0]}
  yield 'event of a watched run to its page', _event_to_listener(server, root, names[0], one), 's'
  server.end()


def main() -> int:
  """Makes the runs, and prints the table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--runs', type=int, default=1000)
  parser.add_argument('--events', type=int, default=10_000)
  parser.add_argument('--seconds', type=int, default=60, help='how long ten runs are watched')
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as name:
    temporary = pathlib.Path(name)
    many, ten = temporary / 'many', temporary / 'ten'
    runs_list.make(many, options.runs, options.events)
    runs_list.make(ten, 10, options.events)
    for path in ten.glob('*/*/events.jsonl'):
      _make_own(path)
    figures = [measure_many(many, temporary), measure_watching(ten, temporary, options.seconds)]
    for each in figures:
      for what, value, unit in each:
        print(f'{what:<40} {value:9.3f} {unit}', flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())
