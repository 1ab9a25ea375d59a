"""official-ext runs stop, resume, clone, evaluate, tensorboard: what concerns the processes of runs. No TensorFlow."""

import argparse
from collections.abc import Sequence
import os
import sys

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import run_arguments
from official_ext.cli import run_contents
from official_ext.cli import run_tables
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import commands
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import new_runs
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import signals


def _stop_parser(command: str) -> arguments_lib.Parser:
  found = run_arguments.parser(command)
  found.add_argument('--now', action='store_true')
  found.add_argument('--mode')
  found.add_argument('--wait', type=run_arguments.number(0), default=0.0)
  return found


def _stop(options: argparse.Namespace) -> None:
  _, runs = run_arguments.runs_of(options)

  def stop(one: run_folder.Run) -> None:
    found = signals.stop(one, options.now, options.mode)
    if options.wait > 0:
      if not signals.wait_for_end(one, options.wait, found.process):
        raise errors.UserError(f'{one.name}: still runs after {options.wait:g} s; --now ends it at once, unsaved')
      found = judged_status.of_run(one, mode=options.mode)
    reason = f' ({found.reason})' if found.reason else ''
    print(run_tables.harmless(f'{one.name}: {found.status}{reason}'), flush=True)

  run_arguments.each(runs, stop)


def _resume_parser(command: str) -> arguments_lib.Parser:
  found = run_arguments.parser(command)
  found.add_argument('--print', action='store_true')
  return found


def _resume(options: argparse.Namespace) -> None:
  _, runs = run_arguments.runs_of(options)
  run_arguments.each(runs, lambda one: _print_or_start(one.name, commands.to_resume(one), not options.print))


def _clone_parser(command: str) -> arguments_lib.Parser:
  found = run_arguments.parser(command)
  found.add_argument('--name')
  found.add_argument('--set', action='append', default=[])
  found.add_argument('--start', action='store_true')
  found.add_argument('--queue', action='store_true')
  return found


def _clone(options: argparse.Namespace) -> None:
  root, runs = run_arguments.runs_of(options)
  if len(runs) > 1:
    raise errors.UserError('runs clone: one run at a time')
  if options.start and options.queue:
    raise errors.UserError('--queue: not together with --start')
  if options.set:
    _check_changes(runs[0], root, options.name, options.set)
  command = commands.make_clone(runs[0], root, options.name, options.set)
  name = os.path.relpath(command.model_dir, root)
  if options.queue:
    job = queue_changes.add(queue_folder.Queue(root), command.whole_words(), command.cwd, command.model_dir)
    print(f'{name}: job {job.number} is queued')
  else:
    _print_or_start(name, command, options.start)


def _check_changes(run: run_folder.Run, root: str, name: str | None, changes: Sequence[str]) -> None:
  """Asks the driver of a run, in a process of its own, what it says to changes, before a folder is made.

  Raises:
    UserError: what it says.
  """
  wanted = new_runs.NewRun(os.path.abspath(root), name or new_runs.UNNAMED, sets=tuple(changes), original=run)
  if name:
    wanted.check_name()
  program = wanted.program()
  if os.path.basename(program) not in ('', 'train.py'):
    return  # A driver of the user's own, which may know other experiments.
  with driver_lib.Driver(os.path.dirname(program), program=program or 'train.py') as driver:
    try:
      lines = [line['text'] for line in wanted.check(driver)['lines']]
    except driver_lib.DriverError as error:  # The run's start will tell.
      print(f'warning: {error}', file=sys.stderr)
      return
  if lines:
    raise errors.UserErrors(lines)


def _print_or_start(name: str, command: commands.Command, starts: bool) -> None:
  if not starts:
    print(command.in_shell())
    return
  process = command.start()
  log_path = run_folder.Run(command.model_dir, name).log_path(command.mode)
  print(run_tables.harmless(f'{name}: started as {process}; its output: {log_path}'), flush=True)


def _evaluate_parser(command: str) -> arguments_lib.Parser:
  found = run_arguments.parser(command)
  found.add_argument('--checkpoint')
  found.add_argument('--print', action='store_true')
  return found


def _evaluate(options: argparse.Namespace) -> None:
  one = run_arguments.run_of(options)
  _print_or_start(one.name, run_contents.evaluation(one, options.checkpoint), not options.print)


def _tensorboard_parser(command: str) -> arguments_lib.Parser:
  found = run_arguments.parser(command)
  found.add_argument('--stop', action='store_true')
  return found


def _tensorboard(options: argparse.Namespace) -> None:
  print(run_contents.tensorboard(run_arguments.run_of(options), options.stop))


COMMANDS: run_arguments.Commands = {
  'stop': (_stop_parser, _stop),
  'resume': (_resume_parser, _resume),
  'clone': (_clone_parser, _clone),
  'evaluate': (_evaluate_parser, _evaluate),
  'tensorboard': (_tensorboard_parser, _tensorboard),
}
