"""official-ext: lists, describes, checks, makes and exports experiments, and manages runs.

Each command imports what it needs when it runs: TensorFlow takes seconds.
"""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import importlib
import os
import sys
import types
from typing import Any

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.cli import experiment_cache
from official_ext.cli import launch
from official_ext.cli import usage
from official_ext.training.devices import preemption

_HELP = {'--help', '-h', '-help', '--helpfull', '--helpshort'}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command.

  Args:
    argv: the arguments without the program's name; by default those of the process.

  Returns:
    The exit status: 0; or 2 after a mistake, 1 after another error, which is printed in one line on stderr.
  """
  arguments = list(sys.argv[1:] if argv is None else argv)
  if arguments[:1] == ['help'] and len(arguments) > 1:
    arguments = [arguments[1], '--help']
  if arguments[:1] == ['launch']:
    return launch.main(arguments[1:])
  own = arguments[: arguments.index('--')] if '--' in arguments else arguments  # What follows is another command's.
  if not arguments or arguments[0] == 'help' or _HELP & set(own):
    print(usage.of_command(arguments[0]) if arguments and arguments[0] in usage.COMMANDS else usage.overview())
    return 0 if arguments else errors.UserError.exit_status
  commands: dict[str, Callable[[list[str]], int | None]] = {
    'list': _list,
    'describe': _describe,
    'new': _new,
    'check': _check,
    'export': _export,
    'convert': _convert,
    'predict': _predict,
    'generate': _generate,
    'chat': _chat,
    'runs': _runs,
    'queue': _queue,
    'console': _console,
    'sweep': _sweep,
    'submit': _submit,
    'prepare': _prepare,
    'data_service': _data_service,
  }
  try:
    if arguments[0] not in commands:
      raise errors.UserError(f'{arguments[0]}: no such command; there are {", ".join([*commands, "launch"])}')
    # Fields of a configuration may hold passwords. What a model says is its user's.
    out = sys.stdout if arguments[0] in ('generate', 'chat') else credentials.MaskedStream(sys.stdout)
    with contextlib.redirect_stdout(out):
      status = commands[arguments[0]](arguments[1:])
      sys.stdout.flush()
      return status or 0
  except errors.UserError as error:
    for message in errors.lines_of(error):
      print(f'error: {credentials.mask(message)}', file=sys.stderr)
    return errors.UserError.exit_status
  except errors.StorageError as error:
    print(f'error: {credentials.mask(str(error))}', file=sys.stderr)
    return 1
  except errors.PreemptedError as error:
    print(f'preempted: {credentials.mask(str(error))}', file=sys.stderr)
    return errors.PreemptedError.exit_status
  except BrokenPipeError:
    # The reader, such as `head`, has closed the pipe. Python must not flush into it again when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except BaseException as error:  # pylint: disable=broad-except  # Anything may be in a task.
    return _module('official_ext.cli.exit_status').report(error)
  return 0


def _list(arguments: list[str]) -> None:
  _print_cached('list', arguments, lambda: _module('official_ext.cli.describe').experiment_lines())


def _describe(arguments: list[str]) -> None:
  flags_of = [argument for argument in _with_experiment(arguments) if argument != '--yaml']

  def lines() -> Iterable[str]:
    params, flags = _params()
    if '--yaml' in arguments:
      return _module('official_ext.base.yaml_text').dump(params.as_dict()).splitlines()
    return _module('official_ext.cli.describe').field_lines(params, flags.experiment)

  # Other flags name files, or are values that are worth no file in the cache.
  if all(argument == '--yaml' or argument.startswith('--registry=') for argument in arguments[1:]):
    _print_cached('describe', arguments, lines, flags_of)
    return
  _parse(flags_of)
  for line in lines():
    print(line)


def _print_cached(
  command: str, arguments: list[str], make: Callable[[], Iterable[str]], flags_of: list[str] | None = None
) -> None:
  """Prints the lines of a command: those of an earlier process if nothing has changed since.

  Args:
    command: its name.
    arguments: that it was given.
    make: the lines, once all experiments are registered.
    flags_of: the flags that its arguments stand for; None if they are flags themselves.
  """
  cache = experiment_cache.ExperimentCache(command, arguments)
  lines = cache.read()
  if lines is None:
    cache.watch()
    ext_flags = _parse(arguments if flags_of is None else flags_of)
    lines = [credentials.mask(line) for line in make()]
    cache.write(lines, ext_flags.ENTRY_POINTS)
  for line in lines:
    print(line)


def _new(arguments: list[str]) -> None:
  _parse([])
  _module('official_ext.cli.new').run(arguments)


def _check(arguments: list[str]) -> None:
  _parse([*_with_experiment(arguments), '--dry_run'])
  _module('official_ext.training.diagnosis.dry_run').run(_params()[0])


def _module(name: str) -> types.ModuleType:
  return importlib.import_module(name)


def _params() -> Any:
  """The configuration that the flags define, and the flags."""
  flags = _module('absl.flags').FLAGS
  return _module('official_ext.training.config.parser').parse_configuration(flags, print_return=False), flags


def _export(arguments: list[str]) -> None:
  if any(argument == '--to' or argument.startswith('--to=') for argument in arguments):  # What has no TensorFlow.
    _runs(['export', *arguments])
    return
  _module('official_ext.cli.flags').define_for_command()
  with preemption.interrupting():
    _module('official_ext.cli.trained_runs').run(arguments)


def _convert(arguments: list[str]) -> None:
  with preemption.interrupting():
    _module('official_ext.cli.convert').run(arguments)


def _predict(arguments: list[str]) -> None:
  _module('official_ext.cli.predict').run(arguments)


def _generate(arguments: list[str]) -> None:
  _module('official_ext.cli.generate').run(arguments)


def _chat(arguments: list[str]) -> None:
  _module('official_ext.cli.chat').run(arguments)


def _runs(arguments: list[str]) -> None:
  _module('official_ext.cli.runs').run(arguments)


def _queue(arguments: list[str]) -> int:
  return _module('official_ext.cli.queue').run(arguments)


def _console(arguments: list[str]) -> int:
  return _module('official_ext.cli.console').run(arguments)


def _sweep(arguments: list[str]) -> int:
  return _module('official_ext.cli.sweep').run(arguments)


def _submit(arguments: list[str]) -> int:
  return _module('official_ext.cli.submit').run(arguments)


def _prepare(arguments: list[str]) -> None:
  _module('official_ext.cli.prepare').run(arguments)


def _data_service(arguments: list[str]) -> None:
  own, rest = _module('official_ext.cli.data_service').split_arguments(arguments)
  _parse(_with_experiment(rest))
  params, flags = _params()
  _module('official_ext.cli.data_service').run(own, params, flags.experiment)


def _with_experiment(arguments: list[str]) -> list[str]:
  if not arguments or arguments[0].startswith('-'):
    raise errors.UserError('the name of an experiment must follow the command; `official-ext list` shows them')
  return [f'--experiment={arguments[0]}', *arguments[1:]]


def _parse(arguments: list[str]) -> types.ModuleType:
  """Parses flags and imports what registers experiments, registry_imports of the current directory first.

  Returns:
    The module of the flags.
  """
  ext_flags = _module('official_ext.cli.flags')
  ext_flags.define_for_command()
  ext_flags.parse(['official-ext', *arguments])
  flags = _module('absl.flags').FLAGS
  ext_flags.import_experiments(flags.registry, flags.experiment)
  return ext_flags


if __name__ == '__main__':
  sys.exit(main())
