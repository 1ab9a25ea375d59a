"""official-ext runs list, show, log, compare, config, checkpoints, events, export. No TensorFlow."""

import argparse
import dataclasses
import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import run_arguments
from official_ext.cli import run_tables
from official_ext.operations.runs import comparing
from official_ext.operations.runs import default_fields
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import given_fields
from official_ext.operations.runs import index
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import params
from official_ext.operations.runs import run_checkpoints
from official_ext.operations.runs import run_completions
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import run_log
from official_ext.operations.runs import selection
from official_ext.operations.runs import trash
from official_ext.operations.trackers import tracker_export

if TYPE_CHECKING:
  from official_ext.operations.curves import goodput  # NumPy.

_LOG_LINES = 10
_EVENT_LINES = 5


def _list(options: argparse.Namespace) -> None:
  root = os.path.expanduser(options.root)  # A missing file is reported below.
  if options.trash:
    gone = trash.deleted(root)
    if options.json:
      run_arguments.print_json([{'name': each.name, 'deleted': each.deleted, 'key': each.key} for each in gone])
    else:
      run_arguments.print_lines(run_tables.of_trash(gone) if gone else ['The trash is empty.'])
    return
  runs = index.RunIndex(root)
  known = runs.summaries(options.hung_minutes * 60)
  found = [each for each in known if each.is_archived == options.archived]
  chosen = selection.Selection(
    run_arguments.words(options.status),
    run_arguments.words(options.experiment),
    run_arguments.words(options.tag),
    options.filter,
  ).choose(found, runs.params)
  chosen = chosen if options.sort == 'name' else selection.in_order(chosen, options.sort, runs.params)
  if options.json:
    run_arguments.print_json([each.as_dict() for each in chosen])
  elif chosen:
    run_arguments.print_lines(run_tables.of_runs(chosen, run_arguments.words(options.metrics)))
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


def _show(options: argparse.Namespace) -> None:
  root, runs = run_arguments.runs_of(options)
  values: list[dict[str, object]] = []
  for number, one in enumerate(runs):
    summary = index.summary_of(one)
    if paths.is_remote(root):
      summary = dataclasses.replace(summary, path=[root, *options.runs][number])
    record = one.first_record() or one.started() or {}
    # Of a run started from a shell, the output that it would have printed there.
    lines = run_log.tail(one, _LOG_LINES) or run_log.tail_of_file(one.file(run_folder.EVENTS), _EVENT_LINES)
    best, checkpoints = comparing.best_of(one), [each for each in run_checkpoints.find(one) if not each.damage]
    completions, spent = next(iter(run_completions.read(one, 1)), None), _goodput(one)
    if options.json:
      found: json_types.JsonObject = {'best': best, 'checkpoints': [each.name for each in checkpoints]}
      found |= {'completions': completions, 'goodput': spent and dataclasses.asdict(spent)}
      values.append({**summary.as_dict(), **found, 'record': record, 'params': params.read(one), 'log': lines})
    else:
      run_arguments.print_lines(
        [''] * bool(number) + run_tables.of_run(summary, record, best, checkpoints, lines, spent)
      )
      if completions is not None:
        run_arguments.print_lines(run_tables.of_completions(completions))
  run_arguments.print_json_of(values)


def _goodput(run: run_folder.Run) -> 'goodput.Goodput | None':
  from official_ext.operations.curves import column_store  # pylint: disable=g-import-not-at-top  # NumPy, as the next.
  from official_ext.operations.curves import goodput  # pylint: disable=g-import-not-at-top

  store = column_store.ColumnStore()
  found = goodput.read(store, run)
  store.trim()  # Keeps what was read, for the next time.
  return found


def _log(options: argparse.Namespace) -> None:
  _, runs = run_arguments.runs_of(options)
  one = runs[0]
  path = one.log_path(options.mode)
  if len(runs) > 1:
    raise errors.UserError('runs log: one run at a time')
  if not os.path.lexists(path):
    raise errors.UserError(
      f'{one.name}: has no {os.path.basename(path)}: it was not started detached, and prints where it was started'
    )
  try:
    regular_files.check(path)
  except OSError as error:
    raise errors.UserError(f'{path}: {error.strerror}; a run keeps its output there, move it away') from None
  if not options.follow:
    run_arguments.print_lines(run_log.tail(one, options.lines, options.mode))
    return
  lines, place, _ = run_log.since(path, None, options.lines)
  run_arguments.print_lines(lines)
  sys.stdout.flush()
  for line in run_log.follow(path, lambda: not judged_status.is_alive(one, options.mode), place=place):
    print(line, flush=True)


def _compare(options: argparse.Namespace) -> None:
  _, runs = run_arguments.runs_of(options, at_least=2)
  found = comparing.compare(runs)
  if options.json:
    run_arguments.print_json(found.as_dict())
  else:
    run_arguments.print_lines(run_tables.of_comparison(found))


def _export(options: argparse.Namespace) -> None:
  root, runs = run_arguments.runs_of(options)

  def fill(one: run_folder.Run) -> None:
    output_dir = options.output_dir and os.path.expanduser(options.output_dir)
    done = tracker_export.export(
      one, root, options.to, options.tracking_uri, options.project, output_dir, options.artifacts
    )
    print(run_tables.harmless(f'{one.name}: {done}'), flush=True)

  run_arguments.each(runs, fill)


def _config(options: argparse.Namespace) -> None:
  one = run_arguments.run_of(options)
  values = params.read(one)
  if values is None:
    raise errors.UserError(f'{one.name}: has no {run_folder.PARAMS} that can be read')
  shown = given_fields.of_run(one, values) if options.given else list(values)
  if options.changed:
    with driver_lib.Driver(registry=options.registry) as driver:
      try:
        changed = default_fields.of_run(one, values, driver)
      except driver_lib.DriverError as error:
        raise errors.UserError(f'{one.name}: {error}') from error
    shown = [path for path in shown if path in changed]
  if options.json:
    run_arguments.print_json({path: values[path] for path in shown})
  else:
    run_arguments.print_lines([run_tables.harmless(f'{path}: {values[path]}') for path in shown])


def _checkpoints(options: argparse.Namespace) -> None:
  one = run_arguments.run_of(options)
  evaluations = comparing.read_evaluations(one.file(run_folder.EVENTS))
  found = run_checkpoints.with_evaluations(run_checkpoints.find(one), evaluations)
  if options.json:
    run_arguments.print_json([vars(each) for each in found])
  else:
    run_arguments.print_lines(run_tables.of_checkpoints(found) if found else ['No checkpoints.'])


def _events(options: argparse.Namespace) -> None:
  from official_ext.operations.curves import column_store  # pylint: disable=g-import-not-at-top  # NumPy, as the next.
  from official_ext.operations.curves import timeline  # pylint: disable=g-import-not-at-top

  found = timeline.read(column_store.ColumnStore(), run_arguments.run_of(options))
  if options.json:
    run_arguments.print_json([each.as_dict() for each in found.events])
  else:
    run_arguments.print_lines(run_tables.of_timeline(found))


def add_commands(commands: Any) -> None:
  """Adds these commands to `official-ext runs`."""
  add = run_arguments.add_command
  view = functools.partial(add, as_json=True, takes_remote=True)
  _add_list(commands)
  view(commands, 'show', _show, 'print all about a run, and the end of its log')
  found = add(commands, 'log', _log, 'print the output of a run that was started detached')
  found.add_argument('--lines', type=run_arguments.number(0, int), default=20, metavar='N', help='default: 20')
  found.add_argument('--follow', action='store_true', help='print further lines until the run ends')
  found.add_argument('--mode', default='train', metavar='MODE', help='the process beside others; default: train')
  view(commands, 'compare', _compare, 'print fields that differ, last and best metrics, versions')
  found = view(commands, 'config', _config, 'print the configuration, a line for each field')
  found.add_argument('--given', action='store_true', help='only fields of the command')
  changed = "only fields that differ from the experiment's defaults; requires TensorFlow"
  found.add_argument('--changed', action='store_true', help=changed)
  arguments_lib.add_registry(found)
  view(commands, 'checkpoints', _checkpoints, 'list the checkpoints: step, size, metrics, damage')
  view(commands, 'events', _events, 'list the events: starts, evaluations, checkpoints, rollbacks, ...')
  _add_export(commands)


def _add_list(commands: Any) -> None:
  text = 'list all runs: status, step, time left, metrics'
  found = run_arguments.add_command(commands, 'list', _list, text, runs='', as_json=True)
  for name, each in (
    ('status', 'of any of these statuses'),
    ('experiment', 'likewise'),
    ('tag', 'with all these tags'),
  ):
    found.add_argument(f'--{name}', action='append', default=[], metavar='A,B', help=each)
  found.add_argument('--metrics', action='append', default=[], metavar='A,B', help='the metrics to show')
  condition = f'such as learning_rate=1e-3, accuracy>0.9 or name~resnet; {arguments_lib.REPEATED}'
  found.add_argument('--filter', action='append', default=[], metavar='CONDITION', help=condition)
  order = 'a metric (the best first), a field, step, started, ...; -NAME: in reverse; default: name'
  found.add_argument('--sort', default='name', metavar='NAME', help=order)
  found.add_argument('--archived', action='store_true', help='list archived runs instead')
  found.add_argument('--trash', action='store_true', help='list deleted runs instead')
  hung = 'a run that has done no step for this long hangs; default: %(default)g'
  minutes = judged_status.HUNG_SECONDS / 60
  found.add_argument('--hung_minutes', type=run_arguments.number(0), default=minutes, metavar='N', help=hung)


def _add_export(commands: Any) -> None:
  found = run_arguments.add_command(commands, 'export', _export, 'write the values that a tracker lacks')
  to = 'wandb: files for `wandb sync`; csv: events.csv'
  found.add_argument('--to', choices=tracker_export.TARGETS, required=True, help=to)
  uri = "of MLflow; default: the configuration's, MLFLOW_TRACKING_URI, or RUNS_DIR/mlflow.db"
  found.add_argument('--tracking_uri', default='', metavar='URI', help=uri)
  project = "of W&B, or MLflow's experiment; default: the configuration's"
  found.add_argument('--project', default='', metavar='NAME', help=project)
  found.add_argument('--output_dir', metavar='DIR', help="for files of wandb or csv; default: the run's folder")
  artifacts = 'add params.yaml, run.json, events.jsonl and run.log'
  found.add_argument('--artifacts', action='store_true', help=artifacts)
