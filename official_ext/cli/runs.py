"""official-ext runs: which of its commands is meant, and their common part. No TensorFlow."""

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import run_arguments
from official_ext.cli import run_imports
from official_ext.cli import run_keeping
from official_ext.cli import run_processes
from official_ext.cli import run_queries
from official_ext.cli import run_reports
from official_ext.cli import run_views

_DESCRIPTION = 'Works on the folders of runs below RUNS_DIR. A RUN is named by its path there. docs/how_to/runs.md.'


def run(arguments: list[str]) -> None:
  """Runs `official-ext runs ARGUMENTS`."""
  parser = arguments_lib.Parser('official-ext runs', _DESCRIPTION)
  commands = parser.add_commands()
  for module in (run_views, run_reports, run_queries, run_imports, run_processes, run_keeping):
    module.add_commands(commands)
  try:
    options = parser.parse_args(arguments)
    options.function(options)
  except errors.UserError as error:  # Names of folders are in it.
    raise errors.UserErrors(run_arguments.lines_of(error)) from error
  except errors.StorageError as error:
    raise errors.StorageError(run_arguments.lines_of(error)[0]) from error
  except KeyboardInterrupt:
    if options.command != 'log':  # Which ends so.
      raise
