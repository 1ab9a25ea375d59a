"""official-ext sweep: searches parameters by many runs of the queue.

Only the check of the points imports TensorFlow, in another process: sweep_check.py. Text from a file is escaped.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import json
import os
import subprocess
import sys
from typing import Any

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import hardware
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import metric_direction
from official_ext.base.safe_text import printable as harmless
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.cli import runs_common
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import commands as commands_lib
from official_ext.operations.runs import driver
from official_ext.operations.sweeps import samplers
from official_ext.operations.sweeps import sweep_changes
from official_ext.operations.sweeps import sweep_controller
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder
from official_ext.operations.sweeps import sweep_points

_BAR = 30


def sweeps_table(sweeps: Sequence[json_values.JsonMapping]) -> list[str]:
  """A table of sweeps, a line each: entries as `sweep list --json` has them."""
  rows = [['SWEEP', 'STATUS', 'METHOD', 'POINTS', 'BEST', '']]
  for each in sweeps:
    if each['status'] == 'unreadable':
      rows.append([harmless(each['name']), 'unreadable', '', '', '', harmless(each['reason'])])
      continue
    best = each['best']
    shown = '' if best is None else f'{harmless(each["metric"]["name"])} {runs_common.number_text(best["value"])}'
    rows.append(
      [
        harmless(each['name']),
        each['status'],
        each['method'],
        _progress_text(each['counts'], each['num_points']),
        shown,
        '' if best is None else harmless(best['run']),
      ]
    )
  return runs_common.text_table(rows)


def sweep_lines(values: json_values.JsonMapping, order: Sequence[int]) -> list[str]:
  """All about a sweep: `sweep show`.

  Args:
    values: see sweep_points.py, with `importances`.
    order: numbers of points, in the order of the table.
  """
  metric = values['metric']
  goal = '' if metric is None else f'{metric["goal"]} {harmless(metric["name"])} ({metric["summary"]} evaluation)'
  counts = ', '.join(f'{count} {status}' for status, count in values['counts'].items())
  lines = runs_common.text_table(
    [
      ['status', values['status'] + (f' ({values["controller"]})' if values['controller'] else '')],
      ['method', values['method']],
      ['goal', goal or 'none'],
      ['points', f'{counts or "none"}; of {values["num_points"] or "any number"}'],
    ]
  )
  names = [each['name'] for each in values['parameters'] if not each['is_constant']]
  rows = [['POINT', 'STATUS', 'STEP', '' if metric is None else harmless(metric['name']), *map(harmless, names), '']]
  points = {point['point']: point for point in values['points']}
  for number in order:
    point = points[number]
    cells = [_value_text(point['parameters'].get(name)) for name in names]
    shown = runs_common.number_text(point['value']) if metric else ''
    step = '' if point['step'] is None else str(point['step'])
    rows.append([str(number), point['status'], step, shown, *cells, harmless(point['reason'])])
  return [
    *lines,
    '',
    *runs_common.text_table(rows),
    *_group_lines(values['seed_groups']),
    *_importance_lines(values['importances']),
  ]


def _group_lines(groups: Sequence[json_values.JsonMapping]) -> list[str]:
  if not groups:
    return []
  rows = [['MEAN', 'DEVIATION', 'POINTS', 'PARAMETERS']]
  for group in groups:
    text = ', '.join(f'{harmless(name)}={_value_text(value)}' for name, value in group['parameters'].items())
    numbers = ','.join(map(str, group['points']))
    rows.append([runs_common.number_text(group['mean']), runs_common.number_text(group['deviation']), numbers, text])
  return ['', *runs_common.text_table(rows)]


def _importance_lines(found: Mapping[str, float] | str) -> list[str]:
  if isinstance(found, str):
    return ['', f'importance of parameters: {found}']
  rows = [[harmless(name), f'{share:.2f}', '#' * round(_BAR * share)] for name, share in found.items()]
  return ['', 'importance of parameters:', *runs_common.text_table(rows)]


def _progress_text(counts: Mapping[str, int], total: int | None) -> str:
  known = sum(counts.values())
  over = known - sum(counts.get(status, 0) for status in ('new', 'queued', 'paused', 'starting', 'running', 'stopping'))
  return f'{over}/{total or known}'


def _value_text(value: object) -> str:
  return (
    '-'
    if value is None
    else runs_common.number_text(value)
    if isinstance(value, float)
    else harmless(config_text.setting_text(value))
  )


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
  text = 'show the points, the best first, the importance of parameters, the spread by seeds'
  found = _command(commands, 'show', _show, text)
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
  json_output.add_flag(found)
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
  json_output.add_flag(found, 'print JSON: of --start the process, else the sweep at the end')


# Starting, and resuming.


def _start(options: argparse.Namespace) -> int:
  values, text, runs_dir, name = _source(options)
  changed = _with_flags(values, options, options.behind)
  if changed != values or not text:
    text = config_text.dump(changed)
  sweep = sweep_file.parse(changed)
  _warn_of_goal(sweep)
  folder = sweep_folder.SweepFolder(runs_dir, sweep.name or name or f'{sweep.experiment or "a"}-sweep')
  write(folder, sweep, text, options.slots)
  slots = options.slots or folder.settings().get('slots') or max(1, len(hardware.visible_gpus()))
  if options.start:
    pid = folder.start_controller(slots)
    print(f'sweep {folder.name}: its controller is process {pid}; it writes to {folder.log_path}')
    if options.json:
      values = {'sweep': folder.name, 'path': folder.path, 'pid': pid, 'log': str(folder.log_path)}
      json_output.print_document(values)
    return 0
  start_dispatcher = lambda count: folder.queue.start_dispatcher(count, until_empty=True)
  status = sweep_controller.Controller(folder, slots, start_dispatcher).run()
  if options.json:
    json_output.print_document(sweep_points.describe_sweep(folder))
  return status


def _warn_of_goal(sweep: sweep_file.SweepFile) -> None:
  """Prints what is assumed of a metric without a goal whose name does not imply one."""
  if (
    sweep.metric is None
    or _mapping(sweep.values.get('metric')).get('goal')
    or metric_direction.direction(sweep.metric.name)
  ):
    return
  name, goal = sweep.metric.name, sweep.metric.goal
  line = f'the name {name} does not imply whether higher or lower is better, and {goal} is assumed; set it'
  print(f'warning: metric.goal: {line}', file=sys.stderr, flush=True)


def _source(options: argparse.Namespace) -> tuple[json_values.JsonObject, str, str, str]:
  """The contents of a sweep's file: its values, its text, the folder of the runs, and a name."""
  places = [paths.expanded(place) for place in options.places]
  if places and os.path.isfile(os.path.join(places[0], sweep_folder.FILE)):
    path = os.path.abspath(places[0])
    if len(places) > 1:
      raise errors.UserError(f'{places[1]}: the sweep in {places[0]} has its folder of runs; leave it out')
    found = _sweep_at(path)
    file = found.file(sweep_folder.FILE)
    return sweep_file.read(file), paths.read(file, local_files.MAX_RECORD).decode(), found.runs_dir, found.name
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
  return values, paths.read(places[0], local_files.MAX_RECORD).decode(), runs_dir, name


def _with_flags(
  values: Mapping[str, object], options: argparse.Namespace, flags: Sequence[str]
) -> json_values.JsonObject:
  """The values of a file overridden by the command line."""
  found = {**values, **{key: value for key in _KEYS if (value := getattr(options, key)) is not None}}
  if options.metric or options.goal:
    found['metric'] = {**_mapping(found.get('metric')), **({'name': options.metric} if options.metric else {})}
    found['metric'].update({'goal': options.goal} if options.goal else {})
  for text in options.set:
    name, equals, value = text.partition('=')
    if not name or not equals:
      raise errors.UserError(f'--set={text}: expected NAME=VALUE,VALUE')
    choices = config_text.load(f'[{value}]', f'--set={name}')
    if not choices:
      raise errors.UserError(f'--set={text}: expected at least one value')
    found['parameters'] = {
      **_mapping(found.get('parameters')),
      name: {'values': choices} if len(choices) > 1 else {'value': choices[0]},
    }
  if flags:
    found['flags'] = [*found.get('flags', []), *flags]
  return found


def _mapping(value: object) -> json_values.JsonObject:
  return value if isinstance(value, dict) else {}


def write(folder: sweep_folder.SweepFolder, sweep: sweep_file.SweepFile, text: str, slots: int | None) -> None:
  """Makes a sweep, or applies the changes of its file, after the driver has checked it.

  Raises:
    UserError: the driver refuses a value, or the sweep has points that another file has made.
  """
  if sweep.method == 'bayes':
    samplers.require_optuna()
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
    UserError: it would fail for every point, as in a file made for Weights & Biases: it does not exist, is the driver
      without an experiment, or cannot take the driver's flags.
  """
  program = '' if sweep.command and not sweep.program else driver.find_program(sweep.program or driver.DEFAULT_PROGRAM)
  if sweep.experiment or sweep.command:
    return program
  name = sweep.program or driver.DEFAULT_PROGRAM
  if driver.is_driver(program):
    raise errors.UserError(f'experiment: is missing, and {name} is a driver; add `experiment: NAME` to the file')
  if not driver.reads_flag(program, 'model_dir'):
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


def _check(sweep: sweep_file.SweepFile, settings: json_values.JsonMapping) -> None:
  """Lets the driver check the first point, and each limit of the sampled values.

  Raises:
    UserErrors: its mistakes.
  """
  first = {parameter.name: parameter.at(0.5) for parameter in sweep.parameters}
  points = [first] + [{**first, each.name: value} for each in sweep.parameters for value in each.extremes()]
  if sweep.command or not sweep.experiment:  # Not a driver's: only that program can check its arguments.
    sweep_folder.point_command(sweep, '', '', first)
    return
  request = {
    'flags': [f'--experiment={sweep.experiment}', f'--mode={sweep.mode}', *sweep.flags],
    'points': [sweep_folder.setting_flags(point) for point in points],
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
  runs_dir = queue_folder.Queue(paths.expanded(options.runs_dir)).runs_dir  # Refuses a remote folder.
  if not os.path.isdir(runs_dir):
    raise errors.UserError(f'{runs_dir}: no such folder; name that of your runs')
  found = [sweep_points.describe_sweep(folder) for folder in sweep_folder.find_sweeps(runs_dir)]
  if options.json:
    json_output.print_document(found)
  else:
    runs_common.print_lines(
      sweeps_table(found) if found else [f'{runs_dir}: no sweeps; `official-ext sweep FILE` makes one']
    )
  return 0


def _show(options: argparse.Namespace) -> int:
  folder = _named(options.places, 'show')[0]
  sweep = folder.load()
  found = sweep_points.PointReader(folder).read(sweep)
  values = sweep_points.sweep_as_dict(folder, sweep, found, options.histories)
  if not options.json or options.importances:
    values['importances'] = sweep_points.importance_of_parameters(found, sweep)
  if options.json:
    json_output.print_document(values)
  else:
    order = [point.number for point in sweep_points.best_first(found, sweep)]
    runs_common.print_lines(sweep_lines(values, order))
  return 0


def _stop(options: argparse.Namespace) -> int:
  folder, _ = _named(options.places, 'stop')
  stopped = sweep_changes.stop(folder)
  print(f'sweep {folder.name}: is stopped; ' + (f'points {_numbers(stopped)} save and end' if stopped else 'none ran'))
  return _end(folder, stopped, options)


def _retry(options: argparse.Namespace) -> int:
  folder, numbers = _named(options.places, 'retry')
  again = sweep_changes.retry(folder, numbers)
  print(f'sweep {folder.name}: ' + (f'points {_numbers(again)} are queued again' if again else 'no point has failed'))
  _print_dispatcher_hint(folder, bool(again))
  return _end(folder, again, options)


def _resume(options: argparse.Namespace) -> int:
  folder, numbers = _named(options.places, 'resume', needs_points=True)
  for number in numbers:
    sweep_changes.resume(folder, number)
  print(f'sweep {folder.name}: points {_numbers(numbers)} are queued, and continue')
  _print_dispatcher_hint(folder, True)
  return _end(folder, numbers, options)


def _delete(options: argparse.Namespace) -> int:
  folder, numbers = _named(options.places, 'delete', needs_points=True)
  for number in numbers:
    sweep_changes.delete(folder, number)
    print(f'point {number}: is in the trash; `official-ext runs restore` brings it back')
  return _end(folder, numbers, options)


def _end(folder: sweep_folder.SweepFolder, points: Sequence[int], options: argparse.Namespace) -> int:
  if options.json:
    json_output.print_document({'sweep': folder.name, 'path': folder.path, 'points': list(points)})
  return 0


def _print_dispatcher_hint(folder: sweep_folder.SweepFolder, has_jobs: bool) -> None:
  if has_jobs and folder.queue.dispatcher() is None:
    print(f'no dispatcher runs; `official-ext sweep {folder.path}` starts queued points')


def _named(
  places: Sequence[str], command: str, needs_points: bool = False
) -> tuple[sweep_folder.SweepFolder, list[int]]:
  """The sweep that is named, by RUNS_DIR and its name or by its folder, and the numbers of points."""
  if not places:
    raise errors.UserError(f'sweep {command}: name the folder of the runs and the sweep')
  first = queue_folder.Queue(paths.expanded(places[0])).runs_dir  # Refuses a remote folder.
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
