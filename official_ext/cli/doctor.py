"""official-ext doctor: checks this machine and environment. TensorFlow is imported only in another process."""

from collections.abc import Iterator
import dataclasses

from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.operations import doctor


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
  parser.add_argument(json_output.FLAG, action='store_true', help='print a list of {name, level, text, fix}')
  seconds = 'the time limit for the import of TensorFlow (default: 120)'
  parser.add_argument('--seconds', type=arguments_lib.number_from(0), default=120.0, metavar='S', help=seconds)
  options = parser.parse_args(arguments)
  found = []
  for finding in _check(options.seconds):
    found.append(finding)
    if not options.json:
      print(finding, flush=True)
  if options.json:
    json_output.print_document([dataclasses.asdict(finding) for finding in found])
  return int(any(finding.level == doctor.PROBLEM for finding in found))


def _check(seconds: float) -> Iterator[doctor.CheckResult]:
  """All findings; the quick checks first."""
  yield doctor.check_python()
  yield from doctor.check_packages()
  yield doctor.check_memory()
  yield from doctor.check_disk()
  yield doctor.check_ports()
  yield from doctor.check_extras()
  of_machine, wrong = doctor.read_gpus()
  yield from wrong
  finding, values = doctor.probe_tensorflow(seconds)
  yield finding
  yield from doctor.check_gpus(of_machine, values)
