"""Cuts the power of recorded runs at every call, and compares the remains with the guarantees.

    make powercut

or `python -m tests.powercut [--scenario=NAME]... [--states=N] [--restores=N] [--seed=N]`. Ends with a table; the exit
status is 0 if no state has lost synced data, and every run that was done again ended as the undisturbed one.
"""

import argparse
from collections.abc import Sequence
import logging
import os
import pathlib
import shutil
import sys
import tempfile
import time

from absl import logging as absl_logging
import tensorflow as tf

from tests import train_processes
from tests.powercut import folder_scenarios
from tests.powercut import queue_scenarios
from tests.powercut import recording
from tests.powercut import training_scenarios
from tests.powercut import trial

_SCENARIOS: Sequence[trial.Scenario] = (
  *training_scenarios.SCENARIOS,
  *folder_scenarios.SCENARIOS,
  *queue_scenarios.SCENARIOS,
)
_BY_NAME = {scenario.name: scenario for scenario in _SCENARIOS}
_MEMORY = pathlib.Path('/dev/shm')  # Folders that are made anew thousands of times.


def power_cuts(names: Sequence[str], limits: trial.Limits, base: pathlib.Path) -> dict[str, trial.Row]:
  """Tries scenarios, and prints the results. Returns the counts of each."""
  rows = {}
  recorder = recording.Recorder(base)
  server = train_processes.Server()
  try:
    for number, name in enumerate(names):
      row = rows[name] = trial.Trial(_BY_NAME[name], base / str(number), limits, _print_line).run(recorder, server)
      for line in row.failures:
        _print_line(f'{name}: {line}')
      _print_line(f'{name}: {row.distinct} states, {row.restored} restored, {row.num_failures} failures')
      if not row.num_failures:
        shutil.rmtree(base / str(number))
  finally:
    server.close()
    recorder.close()
  return rows


def _print_line(line: str) -> None:
  print(line, flush=True)


def _print_table(rows: dict[str, trial.Row]) -> None:
  columns = ['scenario', 'calls', 'states', 'distinct', 'restored', 'failures', 'seconds']
  lines = [
    [name, row.calls, row.states, row.distinct, row.restored, row.num_failures, round(row.seconds)]
    for name, row in rows.items()
  ]
  lines.append(['all', *(sum(line[column] for line in lines) for column in range(1, len(columns)))])
  texts = [[str(value) for value in line] for line in [columns, *lines]]
  widths = [max(map(len, column)) for column in zip(*texts)]
  for line in texts:
    print('  '.join([line[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(line[1:], widths[1:]))]))


def main() -> None:
  """Reads the flags, tries the scenarios, exits."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--scenario', action='append', choices=sorted(_BY_NAME), help='by default all')
  parser.add_argument('--states', type=int, default=0, help='about so many states of each scenario; 0: all')
  parser.add_argument('--restores', type=int, default=6, help='how often each scenario is done again')
  parser.add_argument('--seed', type=int, default=None, help='draws states; by default another every time')
  arguments = parser.parse_args()
  reason = recording.why_not()
  if reason:
    sys.exit(f'error: {reason}')
  seed = time.time_ns() % 2**32 if arguments.seed is None else arguments.seed
  _print_line(f'seed {seed}')
  absl_logging.set_verbosity(absl_logging.FATAL)  # Of every damaged file there is a line.
  tf.get_logger().setLevel(logging.CRITICAL)
  base = pathlib.Path(tempfile.mkdtemp(prefix='powercut-', dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
  limits = trial.Limits(arguments.states, arguments.restores, seed)
  rows = power_cuts(arguments.scenario or list(_BY_NAME), limits, base)
  print()
  _print_table(rows)
  failed = any(row.num_failures for row in rows.values())
  if failed:
    print(f'What was recorded is left in {base}.')
  else:
    shutil.rmtree(base)
  sys.exit(1 if failed else 0)


if __name__ == '__main__':
  main()
