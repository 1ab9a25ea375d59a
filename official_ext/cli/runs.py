"""official-ext runs: which of its commands is meant, and what they have in common. No TensorFlow."""

from official_ext.base import errors
from official_ext.base import suggestions
from official_ext.cli import run_arguments
from official_ext.cli import run_keeping
from official_ext.cli import run_processes
from official_ext.cli import run_views

_COMMANDS: run_arguments.Commands = {**run_views.COMMANDS, **run_processes.COMMANDS, **run_keeping.COMMANDS}


def run(arguments: list[str]) -> None:
  """Runs `official-ext runs ARGUMENTS`."""
  command = arguments[0] if arguments else ''
  if command not in _COMMANDS:
    hint = suggestions.did_you_mean(command, _COMMANDS, before='; ')
    what = f'runs {command}: no such command{hint}' if command else 'runs: a command must follow'
    raise errors.UserError(f'{what}; there are {", ".join(_COMMANDS)}; `official-ext help runs` tells more')
  parser, function = _COMMANDS[command]
  try:
    function(parser(command).parse_args(arguments[1:]))
  except errors.UserError as error:  # Names of folders are in it.
    raise errors.UserErrors(run_arguments.lines_of(error)) from error
  except errors.StorageError as error:
    raise errors.StorageError(run_arguments.lines_of(error)[0]) from error
  except KeyboardInterrupt:
    if command != 'log':  # Which ends so.
      raise
