"""official-ext: trains, lists, describes, checks, makes and exports experiments, and manages runs.

Each command imports its modules when it runs: TensorFlow takes seconds.
"""

from collections.abc import Sequence
import contextlib
import importlib
import os
import sys

from official_ext import base
from official_ext.base import errors
from official_ext.base import safe_text
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.cli import train_help

# Group -> command -> (its function, module:name; its line in the list of commands).
_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
  'Experiments': {
    'train': ('train:run_command', 'train, evaluate or export an experiment: the flags of train.py'),
    'list': ('experiments:run_list', 'list the experiments'),
    'describe': ('experiments:run_describe', 'print every field: path, type, value, short name, meaning'),
    'new': ('experiments:run_new', 'write an experiment with its test'),
    'check': ('experiments:run_check', 'look for mistakes in a task, and run it once, small'),
  },
  'Models': {
    'export': ('export:run', 'write the model of a run as a SavedModel, for LiteRT or for ONNX, and verify it'),
    'convert': ('convert:run', 'write a Hugging Face folder of a run, of adapters or of another folder'),
    'evaluate': ('models:run_evaluate', 'print and draw figures and mistakes of a run on data'),
    'predict': ('models:run_predict', 'print the outputs of a SavedModel'),
    'serve': ('servers:run_serve', 'answer predictions over HTTP'),
    'generate': ('models:run_generate', 'continue a text by a language model'),
    'chat': ('models:run_chat', 'talk to a language model'),
  },
  'Runs': {
    'runs': ('runs:run', 'list, stop, resume, clone, compare, export and delete runs'),
    'queue': ('queue:run', 'queue runs, and start them in turn'),
    'console': ('servers:run_console', 'show the runs of a folder in a browser'),
    'mcp': ('servers:run_mcp', 'serve the runs of a folder to a coding agent'),
    'sweep': ('sweep:run', 'search parameters by many runs'),
    'submit': ('submit:run', 'train on SLURM, Ray or Kubernetes'),
    'launch': ('launch:main', 'train with several processes on this machine'),
  },
  'Machine': {
    'doctor': ('doctor:run', 'check Python, TensorFlow, GPUs, memory, disk, ports and extras'),
  },
  'Data': {
    'prepare': ('prepare:run', 'write shards of texts, records or images to train on'),
    'preview': (
      'experiments:run_preview',
      'show examples of an experiment: images with their labels, texts with learned tokens',
    ),
    'data_service': ('experiments:run_data_service', 'make batches for runs on other machines: tf.data service'),
  },
}
_COMMANDS = {name: command for group in _GROUPS.values() for name, command in group.items()}
# Their output is a model's, a protocol's, or several processes'. In the output of others, passwords are masked.
_UNMASKED = ('generate', 'chat', 'launch', 'mcp')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command.

  Args:
    argv: the arguments without the program's name; by default the process's.

  Returns:
    The exit status: 0; or 2 after a mistake, 1 after another error, which is printed in one line on stderr.
  """
  arguments = list(sys.argv[1:] if argv is None else argv)
  if arguments[:1] == ['help']:
    arguments = [*arguments[1:2], '--help']
  if arguments[:1] == ['train'] and train_help.is_wanted(arguments[1:]):
    train_help.print_help('official-ext train')
    return 0
  if arguments[:1] == ['train']:  # It ends the process, with its own output and exit status.
    importlib.import_module('official_ext.cli.train').run_command(arguments[1:])
  try:
    if arguments == ['--version']:
      print(f'official_ext {base.__version__}', flush=True)
      return 0
    if not arguments or arguments[0] in arguments_lib.HELP:
      print(_overview(), flush=True)
      return 0 if arguments else errors.UserError.exit_status
    return _run(arguments[0], arguments[1:])
  except arguments_lib.HelpPrinted:
    return 0
  except (errors.UserError, errors.StorageError, errors.PreemptedError) as error:
    lines = list(errors.lines_of(error)) if isinstance(error, errors.UserError) else [str(error)]
    if json_output.is_wanted(arguments):
      json_output.print_error(lines, json_output.code_of(error))
      return error.exit_status
    for line in lines:
      label = 'preempted' if isinstance(error, errors.PreemptedError) else 'error'
      print(f'{label}: {safe_text.mask(line)}', file=sys.stderr)
    return error.exit_status
  except BrokenPipeError:
    # The reader, such as `head`, has closed the pipe. Python must not flush into it again when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except BaseException as error:  # pylint: disable=broad-except  # Anything may be in a task.
    report = importlib.import_module('official_ext.cli.exit_status').report
    return json_output.report(report, error) if json_output.is_wanted(arguments) else report(error)
  return 0


def _run(command: str, arguments: list[str]) -> int:
  if command not in _COMMANDS:
    hint = errors.did_you_mean(command, _COMMANDS, after=' ')
    raise errors.UserError(f'{command}: no such command; {hint}there are {", ".join(_COMMANDS)}')
  module, _, function = _COMMANDS[command][0].partition(':')
  run = getattr(importlib.import_module(f'official_ext.cli.{module}'), function)
  gin = sys.modules.get('gin')  # A program that has read bindings, as by train.py's `main`, has locked it for imports.
  unlocked = contextlib.nullcontext() if gin is None else gin.unlock_config()
  own = arguments[: arguments.index('--')] if '--' in arguments else arguments
  is_unmasked = command in _UNMASKED or bool(set(own) & set(arguments_lib.HELP))
  out = sys.stderr if json_output.is_wanted(arguments) else sys.stdout
  with (
    unlocked,
    json_output.documents_to(sys.stdout),
    contextlib.redirect_stdout(out if is_unmasked else safe_text.MaskedStream(out)),
  ):
    status = run(arguments)
    sys.stdout.flush()
    return status or 0


def _overview() -> str:
  """The help of official-ext itself."""
  lines = ['Usage: official-ext COMMAND [ARGUMENTS]']
  for group, commands in _GROUPS.items():
    lines += ['', f'{group}:', *(f'  official-ext {name:<14}{summary}' for name, (_, summary) in commands.items())]
  lines += [
    '',
    '`official-ext COMMAND --help` lists the arguments of a command; docs/ explains them. --version: the version.',
  ]
  return '\n'.join(lines)


if __name__ == '__main__':
  sys.exit(main())
