"""Measures the experiments of this repository in every execution: `python -m benchmarks.shapes [EXPERIMENT ...]`.

Each has a separate process, in which the executions take turns. The measurements are written to benchmarks/shapes.json,
with the rule's input: it should pick nearly the fastest.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from benchmarks import all_experiments
from benchmarks.shapes import records

RECORDS = pathlib.Path(__file__).parents[1] / 'shapes.json'
OWN_LOOPS = ('script',)  # Whose steps are not this library's.


def main() -> int:
  """Measures, and prints a table; returns 1 if one has failed."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('experiments', nargs='*', help='all without any')
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--seconds', type=float, default=0.5, help='of a turn')
  parser.add_argument('--records', type=pathlib.Path, default=RECORDS)
  arguments = parser.parse_args()
  names = arguments.experiments or [name for name in all_experiments.names() if name not in OWN_LOOPS]
  failed = False
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    for name in names:
      command = [sys.executable, '-m', 'benchmarks.shapes.worker', str(arguments.rounds), str(arguments.seconds)]
      flags = all_experiments.flags_in(name, folder)
      prepare(name, folder)
      finished = subprocess.run(
        [*command, f'--experiment={name}', *flags], cwd=RECORDS.parents[1], capture_output=True, text=True, check=False
      )
      if finished.returncode:
        print(f'{name}: failed: {finished.stderr[-300:]}', flush=True)
        failed = True
        continue
      found = {name: json.loads(finished.stdout.splitlines()[-1])}
      records.write(arguments.records, {**records.read(arguments.records), **found})
      print('\n'.join(records.table(found)), flush=True)
  return int(failed)


def prepare(name: str, folder: pathlib.Path) -> None:
  """Begins the runs that the command of an experiment reads."""
  for needed in all_experiments.read_runs(name):
    if not (folder / needed).exists():
      prepare(needed, folder)
      steps = ('train_steps=2', 'trainer.steps_per_loop=1', 'trainer.validation_steps=1')
      all_experiments.run(needed, folder, [f'--set={step}' for step in steps])


if __name__ == '__main__':
  sys.exit(main())
