"""Trains every experiment of this repository to its end, as its command says, and prints one table.

usage: python benchmarks/all_experiments.py [--folder=runs] [--minutes=30] [train.py's flags ...]

Run NAME is kept in FOLDER/NAME; one that exists already is resumed. The time is that of the whole
process. A run that takes longer than MINUTES is stopped, and saves. The exit status is 1 where a run has failed.
"""

import argparse
from collections.abc import Sequence
import inspect
import itertools
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import official_ext  # noqa: F401  Before tensorflow.
from official_ext.training.config import parser as parser_lib
from official_ext.training.writers import progress
from official_ext.training.writers import writers
import registry_imports  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parent.parent
_FOLDER = 'runs'  # Of the commands in docstrings.
_CELL_WIDTH = 36


def names() -> list[str]:
  """The experiments that come from this repository, each after those whose runs its command reads."""
  registered = parser_lib.experiment_names()
  left = [name for name in registered if parser_lib.factory_of(name).__module__.startswith('experiments.')]
  ordered: list[str] = []
  while left:
    ready = [name for name in left if not read_runs(name) & set(left)]
    ordered += ready
    left = [name for name in left if name not in ready]
    assert ready, f'Each of these reads the run of another: {left}.'
  return ordered


def stated(name: str, what: str) -> str:
  """The text of the experiment's docstring under 'Result' or 'Reference', on one line; '' where it does not."""
  match = re.search(rf'^{what}: (.*)$', _docstring(name), re.MULTILINE)
  return match.group(1) if match else ''


def own_flags(name: str) -> list[str]:
  """The flags of the command in the experiment's docstring, besides those that every command has."""
  match = re.search(r'^Command: (.*?)(?=^\S|\Z)', _docstring(name), re.MULTILINE | re.DOTALL)
  words = shlex.split(match.group(1)) if match else []
  common = ('--experiment=', '--mode=', '--model_dir=')
  return [word for word in words if word.startswith('--') and not word.startswith(common)]


def flags_in(name: str, folder: pathlib.Path) -> list[str]:
  """`own_flags`, with the runs that they name in `folder`."""
  return [flag.replace(f'={_FOLDER}/', f'={folder}/') for flag in own_flags(name)]


def _docstring(name: str) -> str:
  return inspect.getdoc(parser_lib.factory_of(name)) or ''


def read_runs(name: str) -> set[str]:
  """The experiments whose runs the experiment's command reads."""
  return set(re.findall(rf'={_FOLDER}/(\w+)', ' '.join(own_flags(name))))


def run(name: str, folder: pathlib.Path, flags: Sequence[str], minutes: float = 30) -> dict[str, str]:
  """Trains one experiment; returns its row of the table."""
  model_dir = folder / name
  command = [
    sys.executable,
    str(ROOT / 'train.py'),
    f'--experiment={name}',
    '--mode=train_and_eval',
    f'--model_dir={model_dir}',
    *flags_in(name, folder),
    *flags,
  ]
  start = time.perf_counter()
  result = _run(command, minutes) or _last_metrics(model_dir)
  seconds = time.perf_counter() - start
  return {
    'experiment': name,
    'seconds': f'{seconds:.0f}',
    'result': result,
    'stated': stated(name, 'Result'),
    'reference': stated(name, 'Reference'),
  }


def _run(command: Sequence[str], minutes: float) -> str:
  """Runs a command; the reason if it failed, '' if it has."""
  with subprocess.Popen(command) as process:
    try:
      status = process.wait(60 * minutes)
    except subprocess.TimeoutExpired:
      process.terminate()  # It saves, and resumes from there the next time.
      try:
        process.wait(120)
      except subprocess.TimeoutExpired:
        process.kill()
      return f'failed: stopped after {minutes:g} minutes'
  return f'failed with status {status}' if status else ''


def _last_metrics(model_dir: pathlib.Path) -> str:
  events = writers.read_events(str(model_dir / 'events.jsonl'))
  evaluations: list[dict[str, Any]] = [event for event in events if event['event'] == 'eval']
  values = {key: value for key, value in evaluations[-1].items() if key not in ('time', 'event', 'step', 'seconds')}
  return '\n'.join(progress.format_values(values))


def table(rows: Sequence[dict[str, str]]) -> str:
  """Rows as text, a column for each key; a cell of more than `_CELL_WIDTH` characters continues in lines below."""
  lines: list[Sequence[str]] = []
  for cells in [list(rows[0]), *(list(row.values()) for row in rows)]:
    wrapped = [[part for line in cell.splitlines() for part in textwrap.wrap(line, _CELL_WIDTH)] for cell in cells]
    lines += itertools.zip_longest(*wrapped, fillvalue='')
  widths = [max(map(len, column)) for column in zip(*lines)]
  return '\n'.join('   '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def main() -> int:
  """Runs all, one after the other; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--folder', default=_FOLDER, type=lambda text: pathlib.Path(text).expanduser())
  parser.add_argument('--minutes', default=30.0, type=float)
  arguments, flags = parser.parse_known_args()
  rows = [run(name, arguments.folder, flags, arguments.minutes) for name in names()]
  print(f'\n{table(rows)}', flush=True)
  return int(any(row['result'].startswith('failed') for row in rows))


if __name__ == '__main__':
  sys.exit(main())
