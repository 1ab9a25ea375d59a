"""Starts the workers of a run on this machine, and restarts them when one is lost."""

from collections.abc import Sequence
import math
import sys

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.cli import output
from official_ext.operations import launch
from official_ext.operations.runs import driver

_DESCRIPTION = """Starts NUM_WORKERS processes of train.py on this machine, which train together over loopback ports.

Each line that worker N prints begins with [N]. SIGTERM, SIGINT and SIGHUP are passed on to the workers, which then save
and stop. When a worker stops with status 75 (preempted, or hung) or crashes, the others are stopped and all are started
again: they continue from the newest checkpoint. GPUs are divided evenly. The exit status is that of the run: 0, or the
status of the worker that stopped it; after bad usage (2) or divergence (3), nothing is started again.

Workers need no credentials, nor do TensorFlow's connections between them: on a machine that others use too,
--private_network keeps everybody else out (docs/concepts/security.md)."""


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs `official-ext launch`.

  Args:
    arguments: of the command, `--num_workers=2 -- --experiment=...`.

  Returns:
    The exit status.
  """
  with output.outliving_readers():
    return _main(list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
  parser = arguments_lib.Parser('official-ext launch', _DESCRIPTION, behind='FLAGS OF train.py')
  parser.add_argument('--num_workers', type=int, default=2, metavar='N', help='processes (default: 2)')
  parser.add_argument('--max_restarts', type=int, default=3, metavar='N', help='how often to restart all (default: 3)')
  grace = 'time for the others to stop after one was lost, before they are killed (default: 60)'
  parser.add_argument('--grace_seconds', type=float, default=60.0, metavar='S', help=grace)
  network = 'a private network, which nobody else can reach and which can reach nothing else (Linux)'
  parser.add_argument('--private_network', action='store_true', help=network)
  program = 'the program of a worker (default: train.py of this folder, or else `official-ext train`)'
  parser.add_argument('--program', default=driver.DEFAULT_PROGRAM, metavar='PATH', help=program)
  json_output.add_flag(parser, 'print the exit status as JSON; the output of the workers goes to stderr')
  try:
    options = parser.parse_args(arguments)
    for name, least in (('num_workers', 1), ('max_restarts', 0), ('grace_seconds', 0)):
      if not least <= getattr(options, name) < math.inf:
        raise errors.UserError(f'--{name}={getattr(options, name)}: expected {least} or more')
    if not options.behind:
      raise errors.UserError('launch: the flags of train.py must follow --')
    program = driver.find_program(options.program)
    if options.private_network:
      launch.enter_private_network('--private_network')
    command = [sys.executable, *driver.program_words(program), *options.behind]
    launcher = launch.Launcher(command, options.num_workers, options.max_restarts, options.grace_seconds)
    status = launcher.run()
    if options.json:
      json_output.print_document({'exit_status': status, 'workers': options.num_workers})
    return status
  except errors.UserError as error:
    if json_output.is_wanted(arguments):
      json_output.print_error(list(errors.lines_of(error)), json_output.code_of(error))
      return error.exit_status
    print(f'error: {error}', file=sys.stderr)
    return error.exit_status


if __name__ == '__main__':
  sys.exit(main())
