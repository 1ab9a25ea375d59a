"""Training on more devices: computed for up to 4,096 GPUs, measured on this machine.

python -m benchmarks.scaling                          the tables of docs/concepts/scaling.md, which are a calculation
python -m benchmarks.scaling --measure [EXPERIMENT]   steps of train.py on 1, 2, 4 replicas and in 2 processes

All replicas and processes of a measurement share the cores of this machine: it measures the cost of splitting, not
the gain of more machines. It needs a machine that does nothing else.
"""

import argparse
from collections.abc import Sequence
import pathlib
import tempfile

from benchmarks.scaling import cases
from benchmarks.scaling import measuring


def main(arguments: Sequence[str] | None = None) -> None:
  """Prints tables."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('experiments', nargs='*', metavar='EXPERIMENT', help='to measure; all without any')
  parser.add_argument('--measure', action='store_true')
  given = parser.parse_args(arguments)
  unknown = set(given.experiments) - measuring.SUBJECTS.keys()
  if unknown:
    parser.error(f'{", ".join(sorted(unknown))}: no such experiment; there are {", ".join(measuring.SUBJECTS)}')
  if given.experiments and not given.measure:
    parser.error('experiments are measured: add --measure')
  if given.measure:
    with tempfile.TemporaryDirectory() as folder:
      print('\n'.join(measuring.table(given.experiments or list(measuring.SUBJECTS), pathlib.Path(folder))))
    return
  for name in cases.CASES:
    print(f'{name}\n\n' + '\n'.join(cases.table(name)) + '\n')


if __name__ == '__main__':
  main()
