"""Trains every experiment of this repository to its end, as its command says, and prints one table.

usage: python benchmarks/all_experiments.py [--folder=runs] [train.py's flags ...]

Run NAME is kept in FOLDER/NAME; one that is there already goes on from where it stands. The time is that of the whole
process. The exit status is 1 where a run has failed.
"""

import argparse
import inspect
import pathlib
import re
import subprocess
import sys
import time
from typing import Any, Dict, List, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import official_ext  # noqa: F401  Before tensorflow.

from official_ext.core import config_parser
from official_ext.monitoring import json_lines, progress
import registry_imports  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parent.parent


def names() -> List[str]:
  """The experiments that come from this repository, as they are registered."""
  registered = config_parser.experiment_names()
  return [name for name in registered if config_parser.factory_of(name).__module__.startswith('experiments.')]


def stated_result(name: str) -> str:
  """What the experiment's docstring promises."""
  match = re.search(r'^Result: (.*)$', inspect.getdoc(config_parser.factory_of(name)) or '', re.MULTILINE)
  return match.group(1) if match else ''


def run(name: str, folder: pathlib.Path, flags: Sequence[str]) -> Dict[str, str]:
  """Trains one experiment; returns its row of the table."""
  model_dir = folder / name
  command = [
    sys.executable, str(ROOT / 'train.py'), f'--experiment={name}', '--mode=train_and_eval', f'--model_dir={model_dir}',
    *flags,
  ]
  start = time.perf_counter()
  status = subprocess.run(command, check=False).returncode
  seconds = time.perf_counter() - start
  result = _last_metrics(model_dir) if status == 0 else f'failed with status {status}'
  return {'experiment': name, 'seconds': f'{seconds:.0f}', 'result': result, 'stated': stated_result(name)}


def _last_metrics(model_dir: pathlib.Path) -> str:
  events = json_lines.read_events(str(model_dir / 'events.jsonl'))
  evaluations: List[Dict[str, Any]] = [event for event in events if event['event'] == 'eval']
  values = {key: value for key, value in evaluations[-1].items() if key not in ('time', 'event', 'step', 'seconds')}
  return '  '.join(progress.format_values(values))


def table(rows: Sequence[Dict[str, str]]) -> str:
  """Rows as text, a column for each key."""
  lines = [list(rows[0]), *(list(row.values()) for row in rows)]
  widths = [max(map(len, column)) for column in zip(*lines)]
  return '\n'.join('   '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def main() -> int:
  """Runs all, one after the other; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--folder', default='runs', type=pathlib.Path)
  arguments, flags = parser.parse_known_args()
  rows = [run(name, arguments.folder, flags) for name in names()]
  print(f'\n{table(rows)}', flush=True)
  return int(any(row['result'].startswith('failed') for row in rows))


if __name__ == '__main__':
  sys.exit(main())
