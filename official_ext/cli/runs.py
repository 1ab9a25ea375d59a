"""official-ext runs, and its commands that change runs.

These are stop, resume, clone, evaluate, tensorboard; import; tag, archive, delete, restore. run_views.py has the
others.
"""

import argparse
from collections.abc import Sequence
import os
import sys
import time
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.cli import run_views
from official_ext.cli import runs_common
from official_ext.operations import run_interface
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import artifacts
from official_ext.operations.runs import commands as commands_lib
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import new_runs
from official_ext.operations.runs import remote_runs
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses
from official_ext.operations.runs import tensorboard_server
from official_ext.operations.runs import trash


def _import(options: argparse.Namespace) -> None:
  from official_ext.operations.imports import run_import  # pylint: disable=g-import-not-at-top  # NumPy.

  for path, flag in ((options.source, 'SOURCE'), (options.to, '--to')):
    if paths.is_remote(path):
      raise errors.UserError(f'{flag}={path}: this command takes local folders; copy the files first')
  source, root = paths.expanded(options.source), paths.expanded(options.to)
  damage: list[str] = []
  found: list[json_values.JsonObject] = []
  for run in run_import.import_runs(run_import.find(source), root, damage):
    about = '' if run.num_values is None else f', {run.num_values} values'
    about += f'; superseded by a restart: {run.num_superseded}' if run.num_superseded else ''
    print(runs_common.harmless(f'{run.name}: {run.outcome} from TensorBoard{about}'), flush=True)
    damage += run.damage
    found.append({'name': run.name, 'outcome': run.outcome, 'values': run.num_values, 'superseded': run.num_superseded})
  if options.json:
    json_output.print_document(found)
  if damage:
    raise errors.UserErrors([runs_common.harmless(line) for line in damage])


def _add_import_command(commands: Any) -> None:
  """Adds this command to `official-ext runs`."""
  text = 'import runs of TensorBoard: docs/how_to/import_runs.md'
  found = arguments_lib.add_command(commands, 'import', _import, text)
  source = 'the folder of their files'
  found.add_argument('source', metavar='SOURCE', type=arguments_lib.folder, help=source)
  to = 'the folder of runs for them'
  found.add_argument('--to', metavar='RUNS_DIR', type=arguments_lib.folder, required=True, help=to)
  json_output.add_flag(found)


def _stop(options: argparse.Namespace) -> None:
  _, runs = runs_common.runs_of(options)

  def stop(one: run_folders.Run) -> json_values.JsonObject:
    found = run_processes.stop_run(one, options.now, options.mode)
    for mode in one.modes():
      remote_runs.push(one, run_folders.name_of_mode('stop', 'json', mode))
    if options.wait > 0:
      if not run_processes.wait_for_end(one, options.wait, found.process):
        raise errors.StateError(f'{one.name}: still runs after {options.wait:g} s; --now ends it at once, unsaved')
      ended = remote_runs.copied(one.origin, one.name) if one.origin else one
      found = statuses.of_run(ended, mode=options.mode)
    reason = f' ({found.reason})' if found.reason else ''
    print(runs_common.harmless(f'{one.name}: {found.status}{reason}'), flush=True)
    return {'name': one.name, 'status': found.status, 'reason': found.reason}

  runs_common.do_with_each(runs, stop, options.json)


def _wait(options: argparse.Namespace) -> int:
  """Waits for all named runs; the time is that of all together."""
  root, runs = runs_common.runs_of(options)
  deadline = None if options.timeout is None else time.monotonic() + options.timeout
  has_reached = True
  found: list[json_values.JsonObject] = []
  for one in runs:
    run = run_interface.Run(one, root)
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    reached = run.wait(options.until, left)
    summary = run.summary()
    is_good = reached and (options.until != run_interface.ENDED or summary.status == 'finished')
    has_reached &= is_good
    reason = f' ({summary.reason})' if summary.reason else ''
    is_late = '' if reached or not run.is_alive else '; the time is over'
    print(runs_common.harmless(f'{one.name}: {summary.status}{reason}{is_late}'), flush=True)
    values = {'name': one.name, 'reached': reached, 'status': summary.status, 'reason': summary.reason}
    found.append({**values, 'step': summary.step})
  if options.json:
    runs_common.print_json_of(found)
  return 0 if has_reached else json_output.NOT_REACHED


def _resume(options: argparse.Namespace) -> None:
  _, runs = runs_common.runs_of(options)

  def resume(one: run_folders.Run) -> json_values.JsonObject:
    return _print_or_start(one.name, commands_lib.to_resume(one, options.train_steps), not options.print)

  runs_common.do_with_each(runs, resume, options.json)


def _clone(options: argparse.Namespace) -> None:
  root, runs = runs_common.runs_of(options)
  if len(runs) > 1:
    raise errors.UserError('runs clone: one run at a time')
  if options.start and options.queue:
    raise errors.UserError('--queue: not together with --start')
  if options.start and paths.is_remote(root):
    raise errors.UserError(f'--start: {root}: is remote, and a detached process needs a local folder; leave it out')
  queue = queue_folder.Queue(root) if options.queue else None  # Refuses a remote folder before anything is made.
  if options.set:
    _check_changes(runs[0], root, options.name, options.set)
  command = commands_lib.make_clone(runs[0], root, options.name, options.set)
  name = os.path.relpath(command.model_dir, root)
  if queue is not None:
    job = queue_changes.add(queue, command.whole_words(), command.cwd, command.model_dir)
    print(f'{name}: job {job.number} is queued')
    found: json_values.JsonObject = {'name': name, 'path': command.model_dir, 'job': job.number}
  else:
    found = _print_or_start(name, command, options.start)
  if options.json:
    json_output.print_document(found)


def _check_changes(run: run_folders.Run, root: str, name: str | None, changes: Sequence[str]) -> None:
  """Asks the driver of a run, in a separate process, to check changes, before a folder is made.

  Raises:
    UserError: its message.
  """
  wanted = new_runs.NewRun(paths.absolute(root), name or new_runs.UNNAMED, sets=tuple(changes), original=run)
  if name:
    wanted.check_name()
  program, folder = wanted.program()
  if os.path.basename(program) not in ('', driver_lib.DEFAULT_PROGRAM, driver_lib.INSTALLED_PROGRAM):
    return  # Another driver, which may know other experiments.
  with driver_lib.Driver(folder, program=program or driver_lib.DEFAULT_PROGRAM) as driver:
    try:
      lines = [line['text'] for line in wanted.check(driver)['lines']]
    except driver_lib.DriverError as error:  # The run's start will report it.
      print(f'warning: {error}', file=sys.stderr)
      return
  if lines:
    raise errors.UserErrors(lines)


def _print_or_start(name: str, command: commands_lib.Command, starts: bool) -> json_values.JsonObject:
  """Starts a command, or prints it; returns its JSON document."""
  document: json_values.JsonObject = {'name': name, 'path': command.model_dir, 'command': command.in_shell()}
  if not starts:
    print(command.in_shell())
    return {**document, 'pid': None, 'log': None}
  process = command.start()
  log_path = run_folders.Run(command.model_dir, name).log_path(command.mode)
  print(runs_common.harmless(f'{name}: started as {process}; its output: {log_path}'), flush=True)
  return {**document, 'pid': process.pid, 'log': log_path}


def _evaluate(options: argparse.Namespace) -> None:
  one = runs_common.run_of(options)
  newest = [each for each in artifacts.find_checkpoints(one) if each.kind == 'training' and not each.damage][-1:]
  if not options.checkpoint and not newest:
    raise errors.UserError(f'{one.name}: has no checkpoint to evaluate; --checkpoint=NAME names one of another kind')
  path = artifacts.checkpoint_path(one, options.checkpoint or newest[0].name).replace(one.path, one.place, 1)
  found = _print_or_start(one.name, commands_lib.to_evaluate(one, path), not options.print)
  if options.json:
    json_output.print_document(found)


def _tensorboard(options: argparse.Namespace) -> None:
  one = runs_common.run_of(options)
  if options.stop:
    url = ''
    print(f'{one.name}: TensorBoard {"ends" if tensorboard_server.stop(one) else "does not run"}')
  else:
    url = tensorboard_server.start(one).url
    print(url)
  if options.json:
    json_output.print_document({'name': one.name, 'url': url})


def _add_process_commands(commands: Any) -> None:
  """Adds these commands to `official-ext runs`."""
  add = runs_common.add_command
  found = add(commands, 'stop', _stop, 'let runs save and stop', as_json=True, takes_remote=True)
  found.add_argument('--now', action='store_true', help='stop at once, without a save')
  found.add_argument('--mode', metavar='MODE', help='eval: an evaluation beside the training, instead of that')
  found.add_argument(
    '--wait', type=arguments_lib.number_from(0), default=0.0, metavar='SECONDS', help='wait so long for the end'
  )
  text = f'wait for runs; status {json_output.NOT_REACHED}: not all have finished, or the condition does not hold'
  found = add(commands, 'wait', _wait, text, as_json=True)
  until = 'ended (default), or a condition such as accuracy>0.9 or step>=100'
  found.add_argument('--until', default=run_interface.ENDED, metavar='CONDITION', help=until)
  limit = 'wait so long at most, for all together'
  found.add_argument('--timeout', type=arguments_lib.number_from(0), metavar='SECONDS', help=limit)
  found = add(commands, 'resume', _resume, 'resume or extend runs, detached', as_json=True, takes_remote=True)
  longer = 'train to this step, also if a run has finished'
  found.add_argument('--train_steps', type=arguments_lib.at_least(1), metavar='N', help=longer)
  found.add_argument('--print', action='store_true', help='print the command instead')
  text = 'make the folder of a similar run, and print the command that starts it'
  found = add(commands, 'clone', _clone, text, as_json=True, takes_remote=True)
  found.add_argument('--name', metavar='NEW', help='its name; default: a free one')
  change = f'a change, as for train.py, which checks it first; {arguments_lib.REPEATED}'
  found.add_argument('--set', action='append', default=[], metavar='NAME=VALUE', help=change)
  found.add_argument('--start', action='store_true', help='start it, detached')
  found.add_argument('--queue', action='store_true', help='add it to the queue of RUNS_DIR')
  text = 'evaluate the newest checkpoint of a run, detached'
  found = add(commands, 'evaluate', _evaluate, text, as_json=True, takes_remote=True)
  checkpoint = 'another one: a step, or a name in the list of `runs checkpoints`, such as best/best_ckpt-100'
  found.add_argument('--checkpoint', metavar='NAME', help=checkpoint)
  found.add_argument('--print', action='store_true', help='print the command instead')
  text = 'start TensorBoard for a run, and print its address'
  found = add(commands, 'tensorboard', _tensorboard, text, as_json=True, takes_remote=True)
  found.add_argument('--stop', action='store_true', help='end it')


def _tag(options: argparse.Namespace) -> None:
  _, runs = runs_common.runs_of(options)

  def change(one: run_folders.Run) -> json_values.JsonObject:
    found = run_folders.read_notes(one)
    if options.tag or options.untag or options.note is not None:
      found = run_folders.change_notes(
        one, runs_common.split_words(options.tag), runs_common.split_words(options.untag), options.note
      )
      remote_runs.push(one, run_folders.NOTES)
    text = f'{one.name}: {", ".join(found.tags) or "no tags"}' + f'; {found.note}' * bool(found.note)
    print(runs_common.harmless(text))
    return {'name': one.name, 'tags': found.tags, 'note': found.note}

  runs_common.do_with_each(runs, change, options.json)


def _archive(options: argparse.Namespace) -> None:
  _, runs = runs_common.runs_of(options)

  def archive(one: run_folders.Run) -> json_values.JsonObject:
    trash.archive(one)
    remote_runs.push(one, trash.ARCHIVED)
    return runs_common.print_state(
      one.name, 'is archived, and stays where it is; `official-ext runs restore` brings it back into the list'
    )

  runs_common.do_with_each(runs, archive, options.json)


def _delete(options: argparse.Namespace) -> None:
  if options.forever:
    _delete_forever(runs_common.root_of(options), options.runs, options.json)
    return
  root, runs = runs_common.runs_of(options)

  def delete(one: run_folders.Run) -> json_values.JsonObject:
    trash.delete(root, one)
    return runs_common.print_state(one.name, 'is in the trash; `official-ext runs restore` brings it back')

  runs_common.do_with_each(runs, delete, options.json)


def _delete_forever(root: str, names: Sequence[str], as_json: bool) -> None:
  if not names:
    raise errors.UserError('--forever: name runs in the trash; `official-ext runs list --trash` shows it')

  def delete(name: str) -> json_values.JsonObject:
    each = trash.find_deleted(root, name)
    trash.delete_forever(each)
    return runs_common.print_state(each.name, 'is deleted, and cannot be brought back')

  runs_common.do_with_each(names, delete, as_json)


def _restore(options: argparse.Namespace) -> None:
  if any(map(paths.is_remote, (options.root, *options.runs))):
    _restore_remote(options)
    return
  root = runs_common.root_of(options)
  if not options.runs or (options.name and len(options.runs) > 1):
    raise errors.UserError('runs restore: name the run; `official-ext runs list --trash` and `--archived` show them')

  def restore(name: str) -> json_values.JsonObject:
    one = run_folders.find_run(root, name)
    if one is not None and os.path.exists(one.file(trash.ARCHIVED)):
      if options.name:
        raise errors.UserError(f'--name={options.name}: {one.name} is archived, and keeps its name')
      trash.unarchive(one)
    else:
      one = trash.restore(root, trash.find_deleted(root, name), options.name)
    return runs_common.print_state(one.name, 'is in the list again')

  runs_common.do_with_each(options.runs, restore, options.json)


def _restore_remote(options: argparse.Namespace) -> None:
  """Restores archived runs: remote storage has no trash."""
  _, runs = runs_common.runs_of(options)

  def restore(one: run_folders.Run) -> json_values.JsonObject:
    if options.name or not os.path.exists(one.file(trash.ARCHIVED)):
      raise errors.UserError(f'{one.place}: is not archived, and remote storage has no trash to restore it from')
    trash.unarchive(one)
    remote_runs.push(one, trash.ARCHIVED)
    return runs_common.print_state(one.name, 'is in the list again')

  runs_common.do_with_each(runs, restore, options.json)


def _add_keeping_commands(commands: Any) -> None:
  """Adds these commands to `official-ext runs`."""
  add = runs_common.add_command
  found = add(
    commands, 'tag', _tag, 'change the tags and the note of runs, and print them', as_json=True, takes_remote=True
  )
  found.add_argument('--tag', action='append', default=[], metavar='A,B', help='tags to add')
  found.add_argument('--untag', action='append', default=[], metavar='A,B', help='tags to remove')
  found.add_argument('--note', metavar='TEXT', help='the note')
  add(commands, 'archive', _archive, 'take runs out of the list', as_json=True, takes_remote=True)
  found = add(commands, 'delete', _delete, 'move runs to the trash', as_json=True)
  found.add_argument('--forever', action='store_true', help='delete runs of the trash')
  found = add(commands, 'restore', _restore, 'restore archived or deleted runs', as_json=True, takes_remote=True)
  found.add_argument('--name', metavar='NEW', help='a new name')


_DESCRIPTION = 'Works on the folders of runs below RUNS_DIR. A RUN is named by its path there. docs/how_to/runs.md.'


def run(arguments: list[str]) -> int | None:
  """Runs `official-ext runs ARGUMENTS`; returns the exit status, None for 0."""
  parser = arguments_lib.Parser('official-ext runs', _DESCRIPTION)
  commands = parser.add_commands()
  for add in (
    run_views.add_view_commands,
    run_views.add_table_commands,
    run_views.add_query_command,
    _add_import_command,
    _add_process_commands,
    _add_keeping_commands,
  ):
    add(commands)
  try:
    options = parser.parse_args(arguments)
    return options.function(options)
  except errors.UserError as error:  # Names of folders are in it.
    raise errors.joined(runs_common.error_lines(error), [error]) from error
  except errors.StorageError as error:
    raise errors.StorageError(runs_common.error_lines(error)[0]) from error
  except KeyboardInterrupt:
    if options.command != 'log':  # Which ends so.
      raise
    return None
