"""official-ext runs: lists, shows, stops, resumes, clones, compares, tags, archives and deletes runs. No TensorFlow."""

import argparse
from collections.abc import Callable, Sequence
import json
import math
import os
import sys
from typing import Any

from official_ext import errors
from official_ext import suggestions
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import run_contents
from official_ext.cli import run_tables
from official_ext.queue import queue_changes
from official_ext.queue import queue_folder
from official_ext.runs import commands
from official_ext.runs import comparing
from official_ext.runs import driver as driver_lib
from official_ext.runs import export
from official_ext.runs import index
from official_ext.runs import log
from official_ext.runs import new_runs
from official_ext.runs import notes
from official_ext.runs import params
from official_ext.runs import run_folder
from official_ext.runs import selection
from official_ext.runs import signals
from official_ext.runs import status
from official_ext.runs import summaries
from official_ext.runs import trash

_LOG_LINES = 10
_EVENT_LINES = 5


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
    raise errors.UserErrors(_lines(error)) from error
  except errors.StorageError as error:
    raise errors.StorageError(_lines(error)[0]) from error
  except KeyboardInterrupt:
    if command != 'log':  # Which ends so.
      raise


def _lines(error: Exception) -> list[str]:
  """The lines of an error, each harmless for a terminal and a line indeed."""
  return [run_tables.harmless(line) for line in getattr(error, 'lines', None) or [str(error)]]


def _number(least: float, kind: type = float) -> Callable[[str], float]:
  """The `type` of an argument that is a number, and not below another."""

  def number(text: str) -> float:
    value = kind(text)
    if not least <= value < math.inf:
      raise argparse.ArgumentTypeError(f'{text}: expected a number from {least:g}')
    return value

  number.__name__ = 'whole number' if kind is int else 'number'  # In messages.
  return number


def _parser(command: str, runs: str | None = '+', as_json: bool = False) -> arguments_lib.Parser:
  found = arguments_lib.Parser(f'runs {command}')
  found.add_argument('root', metavar='RUNS_DIR', type=arguments_lib.folder)
  if runs:
    found.add_argument('runs', metavar='RUN', nargs='*', type=arguments_lib.folder)
  if as_json:
    found.add_argument('--json', action='store_true')
  return found


def _found(options: Any, at_least: int = 1) -> tuple[str, list[run_folder.Run]]:
  """The folder with the runs, and those that are named. RUNS_DIR may itself be a run, and the first one."""
  root, names = _root(options), list(options.runs)
  if run_folder.is_run(root) and not (names and all(_is_below(root, name) for name in names)):
    names, root = [root, *names], os.path.dirname(os.path.abspath(root))
  found = {run.path: run for run in (run_folder.get_run(root, name) for name in names)}  # Each once.
  if len(found) < at_least:
    raise errors.UserError(f'{root}: name {"a run" if at_least == 1 else "two runs or more"} in this folder')
  return root, list(found.values())


def _root(options: Any) -> str:
  root = os.path.expanduser(options.root)
  if not os.path.isdir(root):
    raise errors.UserError(f'{root}: no such folder; name the one that has your runs')
  return root


def _is_below(root: str, name: str) -> bool:
  path = os.path.abspath(os.path.join(root, name))
  return run_folder.is_run(path) and run_folder.paths_below(os.path.abspath(root), path)


def _each(runs: Sequence[Any], do: Callable[[Any], None]) -> None:
  """Does something with each of some runs, and tells of all that went wrong in the end."""
  failures: list[str] = []
  for one in runs:
    try:
      do(one)
    except (errors.UserError, errors.StorageError) as error:
      if len(runs) == 1:
        raise
      failures += _lines(error)
  if failures:
    raise errors.UserErrors(failures)


def _print(lines: Sequence[str]) -> None:
  for line in lines:
    print(line)


def _print_json(values: Any) -> None:
  print(json.dumps(summaries.json_values(values), indent=2, allow_nan=False))


def _print_json_of(values: Sequence[Any]) -> None:
  """Prints one thing for one run, a list for several, nothing for none."""
  if values:
    _print_json(values[0] if len(values) == 1 else values)


# Looking.


def _list_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command, runs=None, as_json=True)
  for name in ('status', 'experiment', 'tag', 'metrics'):
    found.add_argument(f'--{name}', action='append', default=[])
  found.add_argument('--filter', action='append', default=[])
  found.add_argument('--sort', default='name')
  found.add_argument('--archived', action='store_true')
  found.add_argument('--trash', action='store_true')
  found.add_argument('--hung_minutes', type=_number(0), default=status.HUNG_SECONDS / 60)
  return found


def _list(options: Any) -> None:
  root = os.path.expanduser(options.root)  # That it is not there is told below.
  if options.trash:
    gone = trash.deleted(root)
    if options.json:
      _print_json([{'name': each.name, 'deleted': each.deleted, 'key': each.key} for each in gone])
    else:
      _print(run_tables.of_trash(gone) if gone else ['The trash is empty.'])
    return
  runs = index.RunIndex(root)
  known = runs.summaries(options.hung_minutes * 60)
  found = [each for each in known if each.is_archived == options.archived]
  chosen = selection.Selection(
    _words(options.status), _words(options.experiment), _words(options.tag), options.filter
  ).choose(found, runs.params)
  chosen = chosen if options.sort == 'name' else selection.in_order(chosen, options.sort, runs.params)
  if options.json:
    _print_json([each.as_dict() for each in chosen])
  elif chosen:
    _print(run_tables.of_runs(chosen, _words(options.metrics)))
  else:
    print(run_tables.harmless(_none(root, len(found), len(known), options.archived)))


def _none(root: str, num_found: int, num_known: int, archived: bool) -> str:
  """Why a list is empty."""
  if num_found:
    return f'None of {num_found} runs is meant.'
  if archived:
    return f'{root}: no archived runs; `official-ext runs archive` takes runs out of the list.'
  others = f', but {num_known} archived: --archived shows them' if num_known else ''
  return f'{root}: no runs{others}; train.py --model_dir={root}/NAME makes one.'


def _words(values: Sequence[str]) -> list[str]:
  return [word for value in values for word in value.split(',') if word]


def _show(options: Any) -> None:
  _, runs = _found(options)
  values: list[dict[str, Any]] = []
  for number, one in enumerate(runs):
    summary = index.summary_of(one)
    record = next((found for found in map(one.record, one.modes()) if found is not None), one.started() or {})
    # Of one that a shell has started, what it would have printed there.
    lines = log.tail(one, _LOG_LINES) or log.tail_of_file(one.file(run_folder.EVENTS), _EVENT_LINES)
    if options.json:
      values.append({**summary.as_dict(), 'record': record, 'params': params.read(one), 'log': lines})
    else:
      _print(['', *run_tables.of_run(summary, record, lines)] if number else run_tables.of_run(summary, record, lines))
  _print_json_of(values)


def _log_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command)
  found.add_argument('--lines', type=_number(0, int), default=20)
  found.add_argument('--follow', action='store_true')
  found.add_argument('--mode', default='train')
  return found


def _log(options: Any) -> None:
  _, runs = _found(options)
  one = runs[0]
  path = one.log_path(options.mode)
  if len(runs) > 1:
    raise errors.UserError('runs log: one run at a time')
  if not os.path.exists(path):
    raise errors.UserError(
      f'{one.name}: has no {os.path.basename(path)}: it was not started detached, and prints where it was started'
    )
  if not options.follow:
    _print(log.tail(one, options.lines, options.mode))
    return
  lines, place, _ = log.since(path, None, options.lines)
  _print(lines)
  sys.stdout.flush()
  for line in log.follow(path, lambda: not status.is_alive(one, options.mode), place=place):
    print(line, flush=True)


def _compare(options: Any) -> None:
  _, runs = _found(options, at_least=2)
  found = comparing.compare(runs)
  if options.json:
    _print_json(found.as_dict())
  else:
    _print(run_tables.of_comparison(found))


def _export_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command)
  found.add_argument('--to', choices=export.TARGETS, required=True)
  found.add_argument('--tracking_uri', default='')
  found.add_argument('--project', default='')
  found.add_argument('--output_dir')
  found.add_argument('--artifacts', action='store_true')
  return found


def _export(options: Any) -> None:
  root, runs = _found(options)

  def fill(one: run_folder.Run) -> None:
    output_dir = options.output_dir and os.path.expanduser(options.output_dir)
    done = export.export(one, root, options.to, options.tracking_uri, options.project, output_dir, options.artifacts)
    print(run_tables.harmless(f'{one.name}: {done}'), flush=True)

  _each(runs, fill)


# Processes.


def _stop_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command)
  found.add_argument('--now', action='store_true')
  found.add_argument('--mode')
  found.add_argument('--wait', type=_number(0), default=0.0)
  return found


def _stop(options: Any) -> None:
  _, runs = _found(options)

  def stop(one: run_folder.Run) -> None:
    found = signals.stop(one, options.now, options.mode)
    if options.wait > 0:
      if not signals.wait_for_end(one, options.wait, found.process):
        raise errors.UserError(f'{one.name}: still runs after {options.wait:g} s; --now ends it at once, unsaved')
      found = status.of_run(one, mode=options.mode)
    reason = f' ({found.reason})' if found.reason else ''
    print(run_tables.harmless(f'{one.name}: {found.status}{reason}'), flush=True)

  _each(runs, stop)


def _resume_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command)
  found.add_argument('--print', action='store_true')
  return found


def _resume(options: Any) -> None:
  _, runs = _found(options)
  _each(runs, lambda one: _print_or_start(one.name, commands.to_resume(one), not options.print))


def _clone_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command)
  found.add_argument('--name')
  found.add_argument('--set', action='append', default=[])
  found.add_argument('--start', action='store_true')
  found.add_argument('--queue', action='store_true')
  return found


def _clone(options: Any) -> None:
  root, runs = _found(options)
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


# What a run has made.


def _one(options: Any) -> run_folder.Run:
  _, runs = _found(options)
  if len(runs) > 1:
    raise errors.UserError(f'{options.root}: one run at a time, and {len(runs)} are named')
  return runs[0]


def _config_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command, as_json=True)
  found.add_argument('--given', action='store_true')
  found.add_argument('--changed', action='store_true')
  found.add_argument('--registry', action='append', default=[])
  return found


def _config(options: Any) -> None:
  values = run_contents.config(_one(options), options.given, options.changed, options.registry)
  if options.json:
    _print_json(values)
  else:
    _print([run_tables.harmless(f'{path}: {value}') for path, value in values.items()])


def _checkpoints(options: Any) -> None:
  found = run_contents.checkpoints(_one(options))
  if options.json:
    _print_json([vars(each) for each in found])
  else:
    _print(run_tables.of_checkpoints(found) if found else ['No checkpoints.'])


def _events(options: Any) -> None:
  found = run_contents.events(_one(options))
  if options.json:
    _print_json([each.as_dict() for each in found.events])
  else:
    _print(run_tables.of_timeline(found))


def _evaluate_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command)
  found.add_argument('--checkpoint')
  found.add_argument('--print', action='store_true')
  return found


def _evaluate(options: Any) -> None:
  one = _one(options)
  _print_or_start(one.name, run_contents.evaluation(one, options.checkpoint), not options.print)


def _tensorboard_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command)
  found.add_argument('--stop', action='store_true')
  return found


def _tensorboard(options: Any) -> None:
  print(run_contents.tensorboard(_one(options), options.stop))


# Notes, and what becomes of runs.


def _tag_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command, as_json=True)
  found.add_argument('--tag', action='append', default=[])
  found.add_argument('--untag', action='append', default=[])
  found.add_argument('--note')
  return found


def _tag(options: Any) -> None:
  _, runs = _found(options)
  values: list[dict[str, Any]] = []

  def change(one: run_folder.Run) -> None:
    found = notes.read(one)
    if options.tag or options.untag or options.note is not None:
      found = notes.change(one, _words(options.tag), _words(options.untag), options.note)
    if options.json:
      values.append({'name': one.name, 'tags': found.tags, 'note': found.note})
    else:
      print(
        run_tables.harmless(
          f'{one.name}: {", ".join(found.tags) or "no tags"}' + (f'; {found.note}' * bool(found.note))
        )
      )

  try:
    _each(runs, change)
  finally:
    _print_json_of(values)


def _archive(options: Any) -> None:
  _, runs = _found(options)

  def archive(one: run_folder.Run) -> None:
    trash.archive(one)
    _tell(one.name, 'is archived, and stays where it is; `official-ext runs restore` brings it back into the list')

  _each(runs, archive)


def _tell(name: str, what: str) -> None:
  print(run_tables.harmless(f'{name}: {what}'), flush=True)


def _delete_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command)
  found.add_argument('--forever', action='store_true')
  return found


def _delete(options: Any) -> None:
  if options.forever:
    _delete_forever(_root(options), options.runs)
    return
  root, runs = _found(options)

  def delete(one: run_folder.Run) -> None:
    trash.delete(root, one)
    _tell(one.name, 'is in the trash; `official-ext runs restore` brings it back')

  _each(runs, delete)


def _delete_forever(root: str, names: Sequence[str]) -> None:
  if not names:
    raise errors.UserError('--forever: name what is in the trash; `official-ext runs list --trash` shows it')

  def delete(name: str) -> None:
    each = trash.find_deleted(root, name)
    trash.delete_forever(each)
    _tell(each.name, 'is deleted, and cannot be brought back')

  _each(names, delete)


def _restore_parser(command: str) -> arguments_lib.Parser:
  found = _parser(command)
  found.add_argument('--name')
  return found


def _restore(options: Any) -> None:
  root = _root(options)
  if not options.runs or (options.name and len(options.runs) > 1):
    raise errors.UserError('runs restore: name the run; `official-ext runs list --trash` and `--archived` show them')

  def restore(name: str) -> None:
    one = run_folder.find_run(root, name)
    if one is not None and os.path.exists(one.file(trash.ARCHIVED)):
      if options.name:
        raise errors.UserError(f'--name={options.name}: {one.name} is archived, and keeps its name')
      trash.unarchive(one)
    else:
      one = trash.restore(root, trash.find_deleted(root, name), options.name)
    _tell(one.name, 'is in the list again')

  _each(options.runs, restore)


_COMMANDS: dict[str, tuple[Callable[[str], arguments_lib.Parser], Callable[[Any], None]]] = {
  'list': (_list_parser, _list),
  'show': (lambda command: _parser(command, as_json=True), _show),
  'log': (_log_parser, _log),
  'stop': (_stop_parser, _stop),
  'resume': (_resume_parser, _resume),
  'clone': (_clone_parser, _clone),
  'export': (_export_parser, _export),
  'checkpoints': (lambda command: _parser(command, as_json=True), _checkpoints),
  'config': (_config_parser, _config),
  'events': (lambda command: _parser(command, as_json=True), _events),
  'evaluate': (_evaluate_parser, _evaluate),
  'tensorboard': (_tensorboard_parser, _tensorboard),
  'compare': (lambda command: _parser(command, as_json=True), _compare),
  'tag': (_tag_parser, _tag),
  'archive': (_parser, _archive),
  'delete': (_delete_parser, _delete),
  'restore': (_restore_parser, _restore),
}
