"""official-ext: what there is, what it is made of, and whether it would run."""

import contextlib
import importlib
import os
import sys
from typing import List, Optional, Sequence

from absl import flags

from official_ext.cli import describe
from official_ext.cli import exit_status
from official_ext.cli import flags as ext_flags
from official_ext.cli import launch
from official_ext.core import config_parser
from official_ext.core import errors
from official_ext.core import yaml_text
from official_ext.monitoring import credentials

USAGE = """Usage:
  official-ext list                        the experiments that --experiment can name
  official-ext describe NAME [--yaml]      every field: path, type, value, short name, meaning
  official-ext new NAME [--like=OTHER]     writes experiments/NAME with its test; --package: a package of its own
  official-ext check NAME                  looks for mistakes in the task, and runs it once, small
  official-ext launch --num_workers=N -- FLAGS
                                           trains with N processes of this machine; `launch --help` tells more

describe and check take the flags of train.py too: --set, --config_file, --params_override, --registry, ..."""


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs one command.

  Args:
    argv: the arguments, those of the process by default, without the program's name.

  Returns:
    The exit status: 0; 2 after a mistake, 1 after another error, which are printed in one line on stderr.
  """
  arguments = list(sys.argv[1:] if argv is None else argv)
  if arguments[:1] == ['launch']:
    return launch.main(arguments[1:])
  if not arguments or arguments[0] == 'help' or {'--help', '-h'} & set(arguments):
    print(USAGE)
    return 0 if arguments else errors.UserError.exit_status
  commands = {'list': _list, 'describe': _describe, 'new': _new, 'check': _check}
  try:
    if arguments[0] not in commands:
      raise errors.UserError(f'{arguments[0]}: no such command; there are {", ".join([*commands, "launch"])}')
    # Fields of a configuration may hold passwords.
    with contextlib.redirect_stdout(credentials.MaskedStream(sys.stdout)):
      commands[arguments[0]](arguments[1:])
      sys.stdout.flush()
  except errors.UserError as error:
    for message in errors.lines_of(error):
      print(f'error: {credentials.mask(message)}', file=sys.stderr)
    return errors.UserError.exit_status
  except BrokenPipeError:
    # The reader, such as `head`, has seen enough. Python must not flush into the closed pipe once more at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except Exception as error:  # pylint: disable=broad-except  # Anything may be in a task.
    return exit_status.tell(error)
  return 0


def _list(arguments: List[str]) -> None:
  _parse(arguments)
  for line in describe.experiment_lines():
    print(line)


def _describe(arguments: List[str]) -> None:
  as_yaml = '--yaml' in arguments
  _parse(_with_experiment([argument for argument in arguments if argument != '--yaml']))
  params = config_parser.parse_configuration(flags.FLAGS, print_return=False)
  if as_yaml:
    print(yaml_text.dump(params.as_dict()), end='')
    return
  for line in describe.field_lines(params, flags.FLAGS.experiment):
    print(line)


def _new(arguments: List[str]) -> None:
  _parse([])
  importlib.import_module('official_ext.cli.new').run(arguments)


def _check(arguments: List[str]) -> None:
  _parse([*_with_experiment(arguments), '--dry_run'])
  params = config_parser.parse_configuration(flags.FLAGS, print_return=False)
  dry_run = importlib.import_module('official_ext.checks.dry_run')
  dry_run.run(params)


def _with_experiment(arguments: List[str]) -> List[str]:
  if not arguments or arguments[0].startswith('-'):
    raise errors.UserError('the name of an experiment must follow the command; `official-ext list` shows them')
  return [f'--experiment={arguments[0]}', *arguments[1:]]


def _parse(arguments: List[str]) -> None:
  """Parses flags and imports what registers experiments, registry_imports of the current directory first."""
  ext_flags.define_flags()
  ext_flags.parse(['official-ext', *arguments])
  if sys.path[0] != os.getcwd():
    sys.path.insert(0, os.getcwd())
  ext_flags.import_registry('registry_imports', 'import')
  ext_flags.import_registries(flags.FLAGS.registry)


if __name__ == '__main__':
  sys.exit(main())
