"""How long it takes to list many runs: python -m benchmarks.runs_list [--runs=1000] [--events=10000]

It makes folders of runs as a training leaves them, half of them with an evaluation every 100 events and half with one
every 1,000, one in ten live in this process, and measures `RunIndex`: without its cache, with it in a new process's
place, and in memory; then a filter by a field of the configuration, and a sort. No TensorFlow.
"""

import argparse
from collections.abc import Callable, Iterator
import json
import os
import pathlib
import resource
import sys
import tempfile
import time

from official_ext.base import json_values
from official_ext.base import processes
from official_ext.operations.runs import run_index
from official_ext.operations.runs import selection

_PARAMS = """runtime:
  seed: 0
task:
  train_data:
    global_batch_size: 64
trainer:
  train_steps: 10000
  optimizer_config:
    learning_rate:
      cosine:
        initial_learning_rate: {rate}
      type: cosine
"""


def make(root: pathlib.Path, num_runs: int, num_events: int) -> None:
  """Makes the folders of runs in an empty folder."""
  sources = [root / '.events100', root / '.events1000']
  root.mkdir(parents=True)
  for source, interval in zip(sources, (100, 1000)):
    source.write_bytes(_events(num_events, interval))
  for number in range(num_runs):
    folder = root / f'sweep{number % 10}' / f'run{number}'
    (folder / 'train').mkdir(parents=True)
    (folder / 'params.yaml').write_text(_PARAMS.format(rate=10 ** -(1 + number % 4)) + _padding())
    (folder / 'events.jsonl').hardlink_to(sources[number % 2])  # The same to a reader, and 3 GB less.
    now = json_values.timestamp_now()
    record = {
      'status': 'finished' if number % 10 else 'running',
      'stage': 'train',
      'step': num_events,
      'error': None,
      'mode': 'train_and_eval',
      **processes.own_identity().as_dict(),
      'command': f'python train.py --experiment=digits --mode=train_and_eval --model_dir={folder}',
      'versions': {f'package{i}': '1.0' for i in range(9)},
      'train_steps': 2 * num_events,
      'attempt': 1,
      'started': now,
      'updated': now,
      'heartbeat': now,
      'finished': None,
      'experiment': 'digits',
      'short_names': {
        'learning_rate': 'trainer.optimizer_config.learning_rate.cosine.initial_learning_rate',
        **{f'name{i}': f'task.field{i}' for i in range(30)},
      },
    }
    (folder / 'run.json').write_text(json.dumps(record, indent=2))


def _padding() -> str:
  """As many fields as a real configuration has."""
  return 'other:\n' + ''.join(f'  field{i}: {i / 7}\n' for i in range(150))


def _events(count: int, interval: int) -> bytes:
  lines = []
  for step in range(1, count + 1):
    event = {'time': 1.7e9 + step, 'event': 'train', 'step': step, 'accuracy': 1 - 1 / step, 'training_loss': 1 / step}
    event.update(learning_rate=1e-3, grad_norm=0.58634191751, optimizer_iterations=step, model_global_step=step)
    event.update(
      percent=step / count * 50, epoch=step / 22.4, steps_per_second=452.77920, examples_per_second=28977.869
    )
    event.update(data_wait=0.09103952, eta_seconds=(2 * count - step) / 452.8)
    lines.append(json.dumps(event))
    if step % interval == 0:
      values = {'accuracy': 1 - 1.1 / step, 'validation_loss': 1.2 / step, 'seconds': 1.19}
      lines.append(json.dumps({'time': 1.7e9 + step, 'event': 'eval', 'step': step, **values}))
  return ('\n'.join(lines) + '\n').encode()


def _seconds(function: Callable[[], object], times: int = 3) -> float:
  """The least time of this processor that a function takes: other work of the machine only adds."""
  taken = []
  for _ in range(times):
    start = time.process_time()
    function()
    taken.append(time.process_time() - start)
  return min(taken)


def measure(root: str, cache_folder: str) -> Iterator[tuple[str, float]]:
  """Times in seconds, and the size of this process in MB, each with its name."""

  def cold() -> None:
    for path in pathlib.Path(cache_folder).glob('*'):
      path.unlink()
    run_index.RunIndex(root, cache_folder).summaries()

  yield 'no cache', _seconds(cold)
  yield 'cache in a file', _seconds(lambda: run_index.RunIndex(root, cache_folder).summaries())
  runs = run_index.RunIndex(root, cache_folder)
  listed = runs.summaries()
  yield 'cache in memory', _seconds(runs.summaries)
  yield 'configurations, no cache', _seconds(runs.params, 1)
  yield 'configurations, cache in a file', _seconds(lambda: run_index.RunIndex(root, cache_folder).params())
  params = runs.params()
  chosen = selection.Selection(filters=('learning_rate=1e-3',))
  assert len(chosen.choose(listed, lambda: params)) == len(listed) // 4
  yield 'filter by a field', _seconds(lambda: chosen.choose(listed, lambda: params))
  yield 'sort by a metric', _seconds(lambda: selection.in_order(listed, 'accuracy', lambda: params))
  yield 'size of the process, MB', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
  """Makes the runs, if --folder has none, and prints the table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--runs', type=int, default=1000)
  parser.add_argument('--events', type=int, default=10_000)
  parser.add_argument('--folder', help='where the runs are, or are made; default: a temporary folder')
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as temporary:
    root = pathlib.Path(options.folder or temporary, 'runs')
    if not root.exists():
      make(root, options.runs, options.events)
    cache_folder = os.path.join(temporary, 'cache')
    for name, value in measure(str(root), cache_folder):
      print(f'{name:<34} {value:8.3f}', flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())
