"""official-ext runs stop, resume, clone, evaluate, tensorboard: commands for the processes of runs. No TensorFlow."""

import argparse
from collections.abc import Sequence
import os
import sys
from typing import Any

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import run_arguments
from official_ext.cli import run_tables
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import commands
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import new_runs
from official_ext.operations.runs import programs
from official_ext.operations.runs import run_checkpoints
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import signals
from official_ext.operations.runs import tensorboard_server


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


def _resume(options: argparse.Namespace) -> None:
  _, runs = run_arguments.runs_of(options)

  def resume(one: run_folder.Run) -> None:
    _print_or_start(one.name, commands.to_resume(one, options.train_steps), not options.print)

  run_arguments.each(runs, resume)


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
  """Asks the driver of a run, in a separate process, to check changes, before a folder is made.

  Raises:
    UserError: its message.
  """
  wanted = new_runs.NewRun(os.path.abspath(root), name or new_runs.UNNAMED, sets=tuple(changes), original=run)
  if name:
    wanted.check_name()
  program, folder = wanted.program()
  if os.path.basename(program) not in ('', programs.DEFAULT, programs.INSTALLED):
    return  # Another driver, which may know other experiments.
  with driver_lib.Driver(folder, program=program or programs.DEFAULT) as driver:
    try:
      lines = [line['text'] for line in wanted.check(driver)['lines']]
    except driver_lib.DriverError as error:  # The run's start will report it.
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


def _evaluate(options: argparse.Namespace) -> None:
  one = run_arguments.run_of(options)
  newest = [each for each in run_checkpoints.find(one) if each.kind == 'training' and not each.damage][-1:]
  if not options.checkpoint and not newest:
    raise errors.UserError(f'{one.name}: has no checkpoint to evaluate; --checkpoint=NAME names one of another kind')
  path = run_checkpoints.path_of(one, options.checkpoint or newest[0].name)
  _print_or_start(one.name, commands.to_evaluate(one, path), not options.print)


def _tensorboard(options: argparse.Namespace) -> None:
  one = run_arguments.run_of(options)
  if options.stop:
    print(f'{one.name}: TensorBoard {"ends" if tensorboard_server.stop(one) else "does not run"}')
  else:
    print(tensorboard_server.start(one).url)


def add_commands(commands: Any) -> None:
  """Adds these commands to `official-ext runs`."""
  add = run_arguments.add_command
  found = add(commands, 'stop', _stop, 'let runs save and stop')
  found.add_argument('--now', action='store_true', help='stop at once, without a save')
  found.add_argument('--mode', metavar='MODE', help='eval: an evaluation beside the training, instead of that')
  found.add_argument(
    '--wait', type=run_arguments.number(0), default=0.0, metavar='SECONDS', help='wait so long for the end'
  )
  found = add(commands, 'resume', _resume, 'resume or extend runs, detached')
  longer = 'train to this step, also if a run has finished'
  found.add_argument('--train_steps', type=run_arguments.number(1, int), metavar='N', help=longer)
  found.add_argument('--print', action='store_true', help='print the command instead')
  found = add(commands, 'clone', _clone, 'make the folder of a similar run, and print the command that starts it')
  found.add_argument('--name', metavar='NEW', help='its name; default: a free one')
  change = f'a change, as for train.py, which checks it first; {arguments_lib.REPEATED}'
  found.add_argument('--set', action='append', default=[], metavar='NAME=VALUE', help=change)
  found.add_argument('--start', action='store_true', help='start it, detached')
  found.add_argument('--queue', action='store_true', help='add it to the queue of RUNS_DIR')
  found = add(commands, 'evaluate', _evaluate, 'evaluate the newest checkpoint of a run, detached')
  checkpoint = 'another one: a step, or a name in the list of `runs checkpoints`, such as best/best_ckpt-100'
  found.add_argument('--checkpoint', metavar='NAME', help=checkpoint)
  found.add_argument('--print', action='store_true', help='print the command instead')
  found = add(commands, 'tensorboard', _tensorboard, 'start TensorBoard for a run, and print its address')
  found.add_argument('--stop', action='store_true', help='end it')
