"""How long curves take, from the files to the screen: python -m benchmarks.console_curves [--runs=20] [--points=50000]

It makes runs of as many training events, in one of which there are one spike and one NaN, and measures one curve of all
of them: on the server without any cache, with the cache on disk in a new process's place, and in memory; then in
Chromium, from the click on a link to the page with the runs to the painted chart, with each of these caches. Then a
live run: from the event in its file to the point on the screen. No TensorFlow.

Chromium is Debian's, driven by Playwright; without them only the server is measured.
"""

import argparse
from collections.abc import Iterator
import json
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

from benchmarks import runs_list
from official_ext.operations.curves import column_filler
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves
from official_ext.operations.runs import run_folders

_CHROMIUM = os.environ.get('CHROMIUM', '/usr/bin/chromium')
_NAME = 'train/training_loss'
# Waits for charts that are drawn, of samples or of whole files, and for the frame in which they are.
_PAINTED = """([runs, isWhole]) => new Promise((resolve) => {
  const look = () => {
    const chart = document.querySelector('.plot[aria-label="loss"]');
    const isSample = isWhole && document.querySelector('.coarse:not([hidden])');
    if (chart?.dataset.ready && chart.plot.series.length > runs && !isSample) {
      requestAnimationFrame(() => setTimeout(() => resolve(performance.now()), 0));
    } else {
      requestAnimationFrame(look);
    }
  };
  look();
})"""


def make(root: pathlib.Path, num_runs: int, num_points: int) -> None:
  """Makes the folders of runs: every file is another, as large as that of a real run."""
  lines = runs_list._events(num_points, 100).splitlines(keepends=True)
  for number in range(num_runs):
    folder = root / f'run{number}'
    folder.mkdir(parents=True)
    own = list(lines)
    if not number:
      own[num_points // 3] = _changed(own[num_points // 3], 1e6)
      own[num_points // 2] = _changed(own[num_points // 2], 'NaN')
    (folder / 'events.jsonl').write_bytes(b''.join(own))
    (folder / 'params.yaml').write_text(f'runtime:\n  seed: {number}\n')


def _changed(line: bytes, loss: Any) -> bytes:
  return json.dumps({**json.loads(line), 'event': 'train', 'training_loss': loss}).encode() + b'\n'


def measure_server(root: str, cache_folder: str) -> Iterator[tuple[str, float]]:
  """Seconds that one curve of all runs takes, as JSON."""
  runs = run_folders.find_runs(root)

  def times(title: str, store: column_store.ColumnStore) -> Iterator[tuple[str, float]]:
    start, begun = time.perf_counter(), time.process_time()
    json.dumps(curves.as_dict(curves.read(store, runs, [_NAME])))
    yield f'server, {title}: time of the processor', time.process_time() - begun
    yield f'server, {title}: on the clock', time.perf_counter() - start

  for path in pathlib.Path(cache_folder).glob('*'):
    path.unlink()
  yield from times('nothing read before', column_store.ColumnStore(cache_folder))
  store = column_store.ColumnStore(cache_folder)
  yield from times('cache on disk', store)
  yield from times('cache in memory', store)


def check_marks(root: str, cache_folder: str) -> str:
  """The spike and the NaN in 500 buckets."""
  run = run_folders.get_run(root, 'run0')
  curve = curves.read(column_store.ColumnStore(cache_folder), [run], [_NAME]).curves['run0', _NAME]
  assert curve.high.max() == 1e6 and curve.num_marks == {'NaN': 1}, 'the spike or the NaN is gone'
  return f'1 spike and 1 NaN of {curve.num_points} points are in the {len(curve.x)} buckets'


def measure_browser(root: str, cache_folder: str) -> Iterator[tuple[str, float]]:
  """Seconds from a link to the page with all runs to the painted chart, and from an event to the screen."""
  from playwright import sync_api

  from tests.operations.console import servers

  names = [run.name for run in run_folders.find_runs(root)]
  link = '/compare?chart=loss&' + '&'.join(f'run={name}' for name in names)
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=['--no-sandbox', '--disable-gpu'])
    for title, clears in (('no cache', True), ('cache on disk', False), ('cache in memory', False)):
      if title != 'cache in memory':
        store = column_store.ColumnStore(cache_folder, fill=column_filler.run)
        console = servers.Console(root, columns=store)
      for path in pathlib.Path(cache_folder).glob('*') if clears else ():
        path.unlink()
      page = browser.new_page()
      page.goto(f'{console.url}/runs')
      page.evaluate('import("/static/pages/compare.js")')  # The files of the page are cached, as after the first visit.
      start = page.evaluate(
        '(link) => { const a = document.createElement("a"); a.href = link; a.textContent = "go";'
        ' document.body.append(a); const now = performance.now(); a.click(); return now; }',
        link,
      )
      for what, is_whole in (('to a first chart', False), ('to the chart of all points', True)):
        painted = page.evaluate(_PAINTED, [len(names), is_whole])
        yield f'page, {title}: {len(names)} runs from the click {what}', (painted - start) / 1000
      page.close()
    page = browser.new_page()
    page.goto(f'{console.url}/run?run=run0&chart=loss')
    page.evaluate(_PAINTED, [1, True])
    taken = [_event_to_screen(page, pathlib.Path(root, 'run0', 'events.jsonl')) for _ in range(5)]
    yield 'page of a run: event to screen, the longest of 5', max(taken)
    browser.close()
    console.close()


def _event_to_screen(page: Any, path: pathlib.Path) -> float:
  step = page.evaluate('document.querySelector(".plot").plot.scales.x.max')
  event = {'time': time.time(), 'event': 'train', 'step': int(step) + 100, 'training_loss': 0.5}
  with path.open('a') as file:
    file.write(json.dumps(event) + '\n')
  start = time.perf_counter()
  page.wait_for_function('(step) => document.querySelector(".plot").plot.scales.x.max > step', arg=step)
  page.evaluate('new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)))')
  return time.perf_counter() - start


def main() -> int:
  """Makes the runs, if --folder has none, and prints the table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--runs', type=int, default=20)
  parser.add_argument('--points', type=int, default=50_000)
  parser.add_argument('--folder', help='where the runs are, or are made; default: a temporary folder')
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as temporary:
    root = pathlib.Path(options.folder or temporary, 'curves')
    if not root.exists():
      make(root, options.runs, options.points)
    cache_folder = os.path.join(temporary, 'cache')
    for name, value in measure_server(str(root), cache_folder):
      print(f'{name:<62} {value:8.3f} s', flush=True)
    print(check_marks(str(root), cache_folder), flush=True)
    if not os.access(_CHROMIUM, os.X_OK):
      print(f'{_CHROMIUM}: is missing, so that no page is measured')
      return 0
    for name, value in measure_browser(str(root), cache_folder):
      print(f'{name:<62} {value:8.3f} s', flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())
