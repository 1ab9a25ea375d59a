"""official-ext sweep: searches parameters by many runs of the queue. No TensorFlow, but for the check of the points."""

import argparse
from collections.abc import Callable, Mapping, Sequence
import json
import os
import subprocess
import sys
from typing import Any

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import yaml_text
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.processes import visible_gpus
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import run_arguments
from official_ext.cli import sweep_tables
from official_ext.operations.queue import dispatcher_start
from official_ext.operations.runs import commands as commands_lib
from official_ext.operations.runs import programs
from official_ext.operations.sweeps import controller_start
from official_ext.operations.sweeps import optuna_study
from official_ext.operations.sweeps import point_commands
from official_ext.operations.sweeps import points as points_lib
from official_ext.operations.sweeps import sweep_changes
from official_ext.operations.sweeps import sweep_controller
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder
from official_ext.operations.sweeps import sweep_results

_RUNS_DIR = 'runs'
_BEHIND = 'FLAGS OF train.py'
_PLACES = 'the folder of the runs and the name of the sweep, or its folder; the numbers of points'
_MAX_MISTAKES = 20
# Flags that set a key of the file.
_KEYS = ('experiment', 'mode', 'method', 'run_cap', 'seed', 'name', 'description')


def run(arguments: Sequence[str]) -> int:
  """Runs `official-ext sweep ARGUMENTS`, and returns the exit status."""
  options = _parser().parse_args(arguments)
  return options.function(options)


def _parser() -> arguments_lib.Parser:
  parser = arguments_lib.Parser(
    'official-ext sweep',
    'Searches parameters by many runs, which the queue of RUNS_DIR starts. FILE is a sweep.yaml with the keys of '
    'Weights & Biases, and `experiment`. RUNS_DIR SWEEP may be written as one path, RUNS_DIR/SWEEP. '
    'docs/how_to/sweep.md.\n\n'
    '  official-ext sweep FILE [RUNS_DIR]      start a sweep, or resume it\n'
    '  official-ext sweep [RUNS_DIR] --set=NAME=V1,V2 --experiment=NAME\n'
    '                                          without a file: a grid, or the --method\n'
    '  official-ext sweep RUNS_DIR/SWEEP       resume an existing sweep\n\n'
    '`official-ext sweep start --help` lists the flags of these.',
  )
  commands = parser.add_commands(default='start')
  _add_start(commands)
  found = _command(commands, 'list', _list, 'list the sweeps', places=False)
  found.add_argument(
    'runs_dir',
    nargs='?',
    default=_RUNS_DIR,
    type=arguments_lib.folder,
    metavar='RUNS_DIR',
    help=f'default: {_RUNS_DIR}',
  )
  found.add_argument('--json', action='store_true', help='print JSON')
  text = 'show the points, the best first, the importance of parameters, the spread by seeds'
  found = _command(commands, 'show', _show, text)
  found.add_argument('--json', action='store_true', help='print JSON')
  found.add_argument('--histories', action='store_true', help='with --json: the values of the metric at each step')
  found.add_argument('--importances', action='store_true', help='with --json: the importance of parameters')
  _command(commands, 'stop', _stop, 'start no further points; running ones save and stop, and resume with the sweep')
  _command(commands, 'retry', _retry, 'retry failed points')
  _command(commands, 'resume', _resume, 'resume points that were ended early or stopped')
  _command(commands, 'delete', _delete, 'move the runs of points to the trash; they are not retried')
  return parser


def _command(commands: Any, name: str, function: Callable[[Any], int], text: str, places: bool = True) -> Any:
  found = arguments_lib.add_command(commands, name, function, text)
  if places:
    found.add_argument('places', nargs='*', type=arguments_lib.folder, metavar='RUNS_DIR SWEEP POINT', help=_PLACES)
  return found


def _add_start(commands: Any) -> None:
  text = 'start or resume a sweep in the foreground; the default command'
  found = arguments_lib.add_command(commands, 'start', _start, text, prog='official-ext sweep', behind=_BEHIND)
  found.add_argument(
    'places', nargs='*', type=arguments_lib.folder, metavar='FILE RUNS_DIR', help='default of RUNS_DIR: runs'
  )
  values = f"a parameter and its values, beside or instead of the file's; {arguments_lib.REPEATED}"
  found.add_argument('--set', action='append', default=[], metavar='NAME=V1,V2', help=values)
  for key in _KEYS:
    found.add_argument(f'--{key}', type=int if key in ('run_cap', 'seed') else str, help='as in the file')
  found.add_argument('--metric', metavar='NAME', help='the metric to optimize')
  found.add_argument('--goal', choices=['minimize', 'maximize'], help='of the metric')
  slots = 'runs at the same time; default: as before, or the number of GPUs, or 1'
  found.add_argument('--slots', type=arguments_lib.at_least(1), metavar='N', help=slots)
  found.add_argument('--start', action='store_true', help='run in the background')


# Starting, and resuming.


def _start(options: argparse.Namespace) -> int:
  values, text, runs_dir, name = _source(options)
  changed = _with_flags(values, options, options.behind)
  if changed != values or not text:
    text = yaml_text.dump(changed)
  sweep = sweep_file.parse(changed)
  folder = sweep_folder.SweepFolder(runs_dir, sweep.name or name or f'{sweep.experiment or "a"}-sweep')
  write(folder, sweep, text, options.slots)
  slots = options.slots or folder.settings().get('slots') or max(1, len(visible_gpus.names()))
  if options.start:
    pid = controller_start.start(folder, slots)
    print(f'sweep {folder.name}: its controller is process {pid}; it writes to {controller_start.log_path(folder)}')
    return 0
  start_dispatcher = lambda count: dispatcher_start.start(folder.queue, count, until_empty=True)
  return sweep_controller.Controller(folder, slots, start_dispatcher).run()


def _source(options: argparse.Namespace) -> tuple[json_types.JsonObject, str, str, str]:
  """The contents of a sweep's file: its values, its text, the folder of the runs, and a name."""
  places = [os.path.expanduser(place) for place in options.places]
  if places and os.path.isfile(os.path.join(places[0], sweep_folder.FILE)):
    path = os.path.abspath(places[0])
    if len(places) > 1:
      raise errors.UserError(f'{places[1]}: the sweep in {places[0]} has its folder of runs; leave it out')
    found = _sweep_at(path)
    file = found.file(sweep_folder.FILE)
    return sweep_file.read(file), paths.read(file, regular_files.MAX_RECORD).decode(), found.runs_dir, found.name
  is_file = bool(places) and (os.path.isfile(places[0]) or places[0].endswith(('.yaml', '.yml', '.json')))
  runs_dir = ''.join(places[1:2] if is_file else places[:1]) or _RUNS_DIR
  if len(places) > 1 + is_file:
    raise errors.UserError(f'{places[-1]}: expected a file and the folder of the runs, and no more')
  if not is_file:
    if not options.set:
      what = f'{places[0]}: no such file; ' if places else ''
      raise errors.UserError(f'{what}name the file of a sweep, or give --set=NAME=VALUE,VALUE')
    return {'method': 'grid'}, '', runs_dir, ''
  values = sweep_file.read(places[0])
  name = os.path.splitext(os.path.basename(places[0]))[0]
  return values, paths.read(places[0], regular_files.MAX_RECORD).decode(), runs_dir, name


def _with_flags(
  values: Mapping[str, object], options: argparse.Namespace, flags: Sequence[str]
) -> json_types.JsonObject:
  """The values of a file overridden by the command line."""
  found = {**values, **{key: value for key in _KEYS if (value := getattr(options, key)) is not None}}
  if options.metric or options.goal:
    found['metric'] = {**_mapping(found.get('metric')), **({'name': options.metric} if options.metric else {})}
    found['metric'].update({'goal': options.goal} if options.goal else {})
  for text in options.set:
    name, equals, value = text.partition('=')
    if not name or not equals:
      raise errors.UserError(f'--set={text}: expected NAME=VALUE,VALUE')
    choices = yaml_text.load(f'[{value}]', f'--set={name}')
    if not choices:
      raise errors.UserError(f'--set={text}: expected at least one value')
    found['parameters'] = {
      **_mapping(found.get('parameters')),
      name: {'values': choices} if len(choices) > 1 else {'value': choices[0]},
    }
  if flags:
    found['flags'] = [*found.get('flags', []), *flags]
  return found


def _mapping(value: object) -> json_types.JsonObject:
  return value if isinstance(value, dict) else {}


def write(folder: sweep_folder.SweepFolder, sweep: sweep_file.SweepFile, text: str, slots: int | None) -> None:
  """Makes a sweep, or applies the changes of its file, after the driver has checked it.

  Raises:
    UserError: the driver refuses a value, or the sweep has points that another file has made.
  """
  if sweep.method == 'bayes':
    optuna_study.require()
  settings = dict(folder.settings())
  if slots:
    settings['slots'] = slots
  program = program_of(sweep)
  if folder.exists():
    old = folder.load()
    if dict(old.values) != dict(sweep.values):
      _refuse_changes(folder, old, sweep)
      if old.parameters != sweep.parameters:
        _check(sweep, settings)
    if dict(old.values) != dict(sweep.values) or settings != folder.settings():
      _refuse_controlled(folder)
      folder.write(text, settings)
    return
  if set(paths.names(folder.path)) - {commands_lib.BASE_PARAMS}:  # That one is read by the flags of a file.
    raise errors.UserError(f'{folder.path}: exists already and is not a sweep; choose another name: --name=NAME')
  settings |= {'cwd': os.getcwd(), 'program': program}
  _check(sweep, settings)
  folder.write(text, settings)


def program_of(sweep: sweep_file.SweepFile) -> str:
  """Returns the program of the points; '' if their command names its own.

  Raises:
    UserError: it would fail for every point, as that of a file made for Weights & Biases: it does not exist, is the
      driver without an experiment, or cannot take the driver's flags.
  """
  program = '' if sweep.command and not sweep.program else programs.find(sweep.program or programs.DEFAULT)
  if sweep.experiment or sweep.command:
    return program
  name = sweep.program or programs.DEFAULT
  if programs.is_driver(program):
    raise errors.UserError(f'experiment: is missing, and {name} is a driver; add `experiment: NAME` to the file')
  if not programs.reads_flag(program, 'model_dir'):
    raise errors.UserError(
      f'program: {name} has no flag --model_dir; add a `command` with ${{args}} and ${{model_dir}}, in which the '
      'program writes its metrics as events.jsonl'
    )
  return program


def _refuse_controlled(folder: sweep_folder.SweepFolder) -> None:
  found = folder.controller()
  if found is not None:
    raise errors.UserError(f'{folder.name}: {found} controls it already')


def _refuse_changes(folder: sweep_folder.SweepFolder, old: sweep_file.SweepFile, new: sweep_file.SweepFile) -> None:
  changes = sweep_file.differences(old, new)
  if changes and folder.records():
    hint = (
      f'the points in {folder.path} are of another search; only run_cap may grow, and a grid; --name=NAME begins anew'
    )
    raise errors.UserErrors([*changes, hint])


def _check(sweep: sweep_file.SweepFile, settings: json_types.JsonMapping) -> None:
  """Lets the driver check the first point, and each limit of the sampled values.

  Raises:
    UserErrors: its mistakes.
  """
  first = {parameter.name: parameter.at(0.5) for parameter in sweep.parameters}
  points = [first] + [{**first, each.name: value} for each in sweep.parameters for value in each.extremes()]
  if sweep.command or not sweep.experiment:  # Not a driver's: only that program can check its arguments.
    point_commands.words(sweep, '', '', first)
    return
  request = {
    'flags': [f'--experiment={sweep.experiment}', f'--mode={sweep.mode}', *sweep.flags],
    'points': [point_commands.settings(point) for point in points],
  }
  process = subprocess.run(
    [sys.executable, '-m', 'official_ext.cli.sweep_check'],
    input=json.dumps(request),
    capture_output=True,
    text=True,
    cwd=settings['cwd'],
    check=False,
  )
  lines = process.stdout.splitlines()
  if process.returncode == errors.UserError.exit_status and lines:
    more = len(lines) - _MAX_MISTAKES
    raise errors.UserErrors(lines[:_MAX_MISTAKES] + ([f'sweep: {more} more mistakes'] if more > 0 else []))
  if process.returncode:
    reason = (process.stderr.strip().splitlines() or ['no reason given'])[-1]
    raise errors.StorageError(f'sweep: its points could not be checked: {reason}')


# The other commands.


def _list(options: argparse.Namespace) -> int:
  runs_dir = os.path.expanduser(options.runs_dir)
  if not os.path.isdir(runs_dir):
    raise errors.UserError(f'{runs_dir}: no such folder; name that of your runs')
  found = [sweep_results.describe(folder) for folder in sweep_folder.find(runs_dir)]
  if options.json:
    run_arguments.print_json(found)
  else:
    run_arguments.print_lines(
      sweep_tables.of_sweeps(found) if found else [f'{runs_dir}: no sweeps; `official-ext sweep FILE` makes one']
    )
  return 0


def _show(options: argparse.Namespace) -> int:
  folder = _named(options.places, 'show')[0]
  sweep = folder.load()
  found = points_lib.PointReader(folder).read(sweep)
  values = sweep_results.as_dict(folder, sweep, found, options.histories)
  if not options.json or options.importances:
    values['importances'] = sweep_results.importances(found, sweep)
  if options.json:
    run_arguments.print_json(values)
  else:
    order = [point.number for point in sweep_results.in_order(found, sweep)]
    run_arguments.print_lines(sweep_tables.of_sweep(values, order))
  return 0


def _stop(options: argparse.Namespace) -> int:
  folder, _ = _named(options.places, 'stop')
  stopped = sweep_changes.stop(folder)
  print(f'sweep {folder.name}: is stopped; ' + (f'points {_numbers(stopped)} save and end' if stopped else 'none ran'))
  return 0


def _retry(options: argparse.Namespace) -> int:
  folder, numbers = _named(options.places, 'retry')
  again = sweep_changes.retry(folder, numbers)
  print(f'sweep {folder.name}: ' + (f'points {_numbers(again)} are queued again' if again else 'no point has failed'))
  return _tell_how_to_go_on(folder, bool(again))


def _resume(options: argparse.Namespace) -> int:
  folder, numbers = _named(options.places, 'resume', needs_points=True)
  for number in numbers:
    sweep_changes.resume(folder, number)
  print(f'sweep {folder.name}: points {_numbers(numbers)} are queued, and continue')
  return _tell_how_to_go_on(folder, True)


def _delete(options: argparse.Namespace) -> int:
  folder, numbers = _named(options.places, 'delete', needs_points=True)
  for number in numbers:
    sweep_changes.delete(folder, number)
    print(f'point {number}: is in the trash; `official-ext runs restore` brings it back')
  return 0


def _tell_how_to_go_on(folder: sweep_folder.SweepFolder, has_jobs: bool) -> int:
  if has_jobs and folder.queue.dispatcher() is None:
    print(f'no dispatcher runs; `official-ext sweep {folder.path}` starts queued points')
  return 0


def _named(
  places: Sequence[str], command: str, needs_points: bool = False
) -> tuple[sweep_folder.SweepFolder, list[int]]:
  """The sweep that is named, by RUNS_DIR and its name or by its folder, and the numbers of points."""
  if not places:
    raise errors.UserError(f'sweep {command}: name the folder of the runs and the sweep')
  first = os.path.expanduser(places[0])
  if os.path.isfile(os.path.join(first, sweep_folder.FILE)):
    folder, rest = _sweep_at(first), places[1:]
  elif len(places) < 2:
    raise errors.UserError(f'{first}: is not a sweep; name the folder of the runs and the sweep')
  else:
    folder, rest = sweep_folder.SweepFolder(first, places[1]), places[2:]
    folder.load()
  for word in rest:
    if not word.isdigit():
      raise errors.UserError(f'{word}: expected the number of a point; `official-ext sweep show` lists them')
  if needs_points and not rest:
    raise errors.UserError(f'sweep {command}: name the number of a point; `official-ext sweep show` lists them')
  return folder, [int(word) for word in rest]


def _sweep_at(path: str) -> sweep_folder.SweepFolder:
  """The sweep in a folder. Its runs_dir is the nearest folder above with a queue, or the one above."""
  path = os.path.abspath(path)
  above = os.path.dirname(path)
  runs_dir = above
  while os.path.dirname(runs_dir) != runs_dir:
    if os.path.isdir(os.path.join(runs_dir, '.queue')):
      return sweep_folder.SweepFolder(runs_dir, os.path.relpath(path, runs_dir))
    runs_dir = os.path.dirname(runs_dir)
  return sweep_folder.SweepFolder(above, os.path.basename(path))


def _numbers(numbers: Sequence[int]) -> str:
  return ', '.join(map(str, numbers))
