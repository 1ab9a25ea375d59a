"""official-ext doctor: checks this machine and environment. TensorFlow is imported in another process alone."""

from collections.abc import Iterator
import dataclasses
import json

from official_ext.cli import arguments as arguments_lib
from official_ext.cli import run_arguments
from official_ext.operations.doctor import check_results
from official_ext.operations.doctor import gpus
from official_ext.operations.doctor import machine
from official_ext.operations.doctor import software


def run(arguments: list[str]) -> int:
  """Runs `official-ext doctor ARGUMENTS`.

  Returns:
    The exit status: 1 if there is a problem, else 0.
  """
  parser = arguments_lib.Parser(
    'official-ext doctor',
    'Checks Python, packages, TensorFlow, GPUs and their driver, memory, disk, ports and extras. Prints a line for '
    'each, with the fix. The exit status is 1 if there is a problem; a note is not a problem.',
  )
  parser.add_argument('--json', action='store_true', help='print a list of {name, level, text, fix}')
  seconds = 'the time limit for the import of TensorFlow (default: 120)'
  parser.add_argument('--seconds', type=run_arguments.number(0), default=120.0, metavar='S', help=seconds)
  options = parser.parse_args(arguments)
  found = []
  for finding in _check(options.seconds):
    found.append(finding)
    if not options.json:
      print(finding, flush=True)
  if options.json:
    print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=2))
  return int(any(finding.level == check_results.PROBLEM for finding in found))


def _check(seconds: float) -> Iterator[check_results.Result]:
  """All findings; the quick checks first."""
  yield software.python()
  yield from software.packages()
  yield machine.memory()
  yield from machine.disk()
  yield machine.ports()
  yield from software.extras()
  of_machine, wrong = gpus.read()
  yield from wrong
  finding, values = software.probe_tensorflow(seconds)
  yield finding
  yield from gpus.check(of_machine, values)
