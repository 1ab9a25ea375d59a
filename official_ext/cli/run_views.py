"""official-ext runs list, show, log, compare, config, checkpoints, events, export, table, report, query.

They read runs, and change nothing.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import csv
import dataclasses
import datetime
import functools
import io
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.cli import runs_common
from official_ext.operations.runs import artifacts
from official_ext.operations.runs import commands as commands_lib
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import event_log
from official_ext.operations.runs import run_comparison
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import selection
from official_ext.operations.runs import statuses
from official_ext.operations.runs import trash

if TYPE_CHECKING:
  from official_ext.operations.curves import sql_tables
  from official_ext.operations.curves import timing


def _query(options: argparse.Namespace) -> None:
  from official_ext.operations.curves import sql_tables  # pylint: disable=g-import-not-at-top

  sql = sys.stdin.read() if options.sql == '-' else options.sql
  known = runs_common.index_of(options, only_summaries=False)
  _QUERY_FORMATS[options.format](sql_tables.query(known.root, sql, known))


def _query_text(result: 'sql_tables.Result') -> None:
  header = [runs_common.harmless(name) for name in result.columns]
  runs_common.print_lines(runs_common.text_table([header, *_query_cells(result, runs_common.harmless)]))


def _query_markdown(result: 'sql_tables.Result') -> None:
  rows = [
    [runs_common.markdown_cell(name) for name in result.columns],
    *_query_cells(result, runs_common.markdown_cell),
  ]
  runs_common.print_lines(runs_common.markdown_table(rows, ['---'] * len(result.columns)))


def _query_cells(result: 'sql_tables.Result', escape: Callable[[object], str]) -> Iterator[list[str]]:
  for row in result.rows:
    plain = map(_plain_value, row)
    yield [runs_common.number_text(value) if isinstance(value, float | None) else escape(value) for value in plain]


def _query_csv(result: 'sql_tables.Result') -> None:
  writer = csv.writer(sys.stdout, lineterminator='\n')
  writer.writerow(map(runs_common.csv_cell, result.columns))
  for row in result.rows:
    writer.writerow([runs_common.csv_cell(_plain_value(value)) for value in row])


def _query_json(result: 'sql_tables.Result') -> None:
  json_output.print_document([dict(zip(result.columns, map(_plain_value, row))) for row in result.rows])


def _plain_value(value: Any) -> Any:
  """A value of JSON: moments by ISO 8601, lists with commas, other types as their text."""
  if value is None or isinstance(value, str | bool | int | float):
    return value
  if isinstance(value, datetime.datetime):
    return value.isoformat(sep=' ', timespec='seconds')
  if isinstance(value, Sequence) and not isinstance(value, bytes):
    return ','.join(map(str, value))
  return str(value)


_QUERY_FORMATS = {'text': _query_text, 'markdown': _query_markdown, 'csv': _query_csv, 'json': _query_json}


def add_query_command(commands: Any) -> None:
  """Adds this command to `official-ext runs`."""
  text = 'run SQL (of DuckDB) over the tables runs, params, metrics and best_metrics: docs/how_to/query_runs.md'
  found = runs_common.add_command(commands, 'query', _query, text, runs='', takes_remote=True)
  found.add_argument('sql', metavar='SQL', help='the statement; - reads it from stdin')
  found.add_argument('--format', choices=tuple(_QUERY_FORMATS), default='text', help='default: text')
  _add_json_format(found)


def _add_json_format(parser: arguments_lib.Parser) -> None:
  parser.add_argument(json_output.FLAG, dest='format', action='store_const', const='json', help='as --format=json')


_MAX_FIELDS = 8
_LATEX = {each: f'\\{each}' for each in '#$%&_{}'} | {
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '<': r'\textless{}',
  '>': r'\textgreater{}',
  '|': r'\textbar{}',
  # After \\ these would be read as its arguments.
  **{each: f'{{{each}}}' for each in '[]*'},
}


def _table(options: argparse.Namespace) -> None:
  runs = runs_common.index_of(options)
  known = [each for each in runs.summaries() if not each.is_archived]
  statuses = runs_common.split_words(options.status) or ['finished']
  chosen = selection.Selection(
    statuses,
    runs_common.split_words(options.experiment),
    runs_common.split_words(options.tag),
    options.filter,
  ).choose(known, runs.params)
  if not chosen:
    raise errors.UserError(
      f'{options.root}: 0 of {len(known)} runs match --status={",".join(statuses)} and the other flags; change them'
    )
  if len(chosen) < len(known):
    text = f'{len(chosen)} of {len(known)} runs match --status={",".join(statuses)} and the other flags'
    print(runs_common.harmless(text), file=sys.stderr)
  metrics = [run_comparison.parse_metric(text) for text in runs_common.split_words(options.metric)]
  if not metrics:
    raise errors.UserError('--metric: name one or more, such as --metric=accuracy,validation_loss')
  params = runs.params()
  by = runs_common.split_words(options.group) or _table_fields(chosen, params)
  found = run_comparison.group_runs(chosen, by, metrics, lambda: params)
  if options.format == 'json':
    json_output.print_document([_table_as_dict(each, by, metrics) for each in found])
  else:
    print(_TABLE_FORMATS[options.format](found, by, metrics))


def _table_fields(runs: Sequence[run_index.RunSummary], params: Mapping[str, json_values.JsonMapping]) -> list[str]:
  """The fields in which runs differ, if they are few.

  Raises:
    UserError: they are many, or a run has no configuration.
  """
  lacking = next((run.name for run in runs if not params.get(run.name)), None)
  if lacking is not None:
    raise errors.UserError(f'{lacking}: has no params.yaml that can be read; name the fields: --group=A,B')
  found = run_comparison.fields_that_differ({run.name: params[run.name] for run in runs})
  if len(found) > _MAX_FIELDS:
    raise errors.UserError(
      f'--group: the runs differ in {len(found)} fields, such as {found[0]}; name some: --group=A,B'
    )
  return found


def _table_as_dict(group: run_comparison.Group, by: Sequence[str], metrics: Sequence[run_comparison.Metric]) -> dict:
  spreads = {
    metric.name: each and {'mean': each.mean, 'std': each.deviation, 'count': each.count, 'is_best': each.is_best}
    for metric, each in zip(metrics, group.spreads)
  }
  return {'group': dict(zip(by, group.values)), 'runs': list(group.names), 'metrics': spreads}


def _table_cell(spread: run_comparison.Spread | None, group: run_comparison.Group, sign: str) -> str:
  """`mean sign deviation`: the deviation to two digits or more, the mean to as many decimals; else to four digits."""
  if spread is None:
    return '-'
  if spread.deviation and spread.deviation > 1e-9 * abs(spread.mean) and 1e-6 <= abs(spread.mean) < 1e6:
    decimals = max(0, 1 - math.floor(math.log10(spread.deviation)))
    text = f'{spread.mean:.{decimals}f} {sign} {spread.deviation:.{decimals}f}'
  else:
    text = runs_common.number_text(float(spread.mean))
    text += '' if spread.deviation is None else f' {sign} {spread.deviation:.2g}'
  return text if spread.count == len(group.names) else f'{text} (n={spread.count})'


def _table_rows(
  groups: Sequence[run_comparison.Group],
  by: Sequence[str],
  metrics: Sequence[run_comparison.Metric],
  escape: Callable[[object], str],
  mark: Callable[[str], str],
  sign: str = '±',
) -> list[list[str]]:
  """The header and a row for each group; `mark` is applied to the best of each metric."""
  rows = [[*map(escape, by), 'runs', *(escape(each.name) for each in metrics)]]
  for group in groups:
    cells = [(_table_cell(each, group, sign), each is not None and each.is_best) for each in group.spreads]
    values = [escape('-' if value is None else value) for value in group.values]
    rows.append([*values, str(len(group.names)), *(mark(text) if is_best else text for text, is_best in cells)])
  return rows


def _table_text(groups, by, metrics) -> str:
  """A table for a terminal; the best has a star."""
  return '\n'.join(
    runs_common.text_table(_table_rows(groups, by, metrics, runs_common.harmless, lambda text: f'{text} *'))
  )


def _table_markdown(groups, by, metrics) -> str:
  """A table of GitHub's Markdown; the best is bold."""
  rows = _table_rows(groups, by, metrics, runs_common.markdown_cell, lambda text: f'**{text}**')
  return '\n'.join(runs_common.markdown_table(rows, ['---'] * len(by) + ['---:'] * (1 + len(metrics))))


def _table_latex(groups, by, metrics) -> str:
  r"""A tabular of LaTeX; the best is \textbf."""

  def escape(value: object) -> str:
    return ''.join(_LATEX.get(each, each) for each in runs_common.harmless(value))

  rows = _table_rows(groups, by, metrics, escape, lambda text: rf'\textbf{{{text}}}', sign=r'$\pm$')
  lines = [' & '.join(row) + r' \\' for row in rows]
  columns = 'l' * len(by) + 'r' * (1 + len(metrics))
  body = [lines[0], r'\hline', *lines[1:]]
  return '\n'.join([rf'\begin{{tabular}}{{{columns}}}', r'\hline', *body, r'\hline', r'\end{tabular}'])


def _table_csv(groups, by, metrics) -> str:
  """Comma-separated values with full precision: NAME_mean, NAME_std and NAME_count of each metric."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  writer.writerow([*by, 'runs', *(f'{each.name}_{part}' for each in metrics for part in ('mean', 'std', 'count'))])
  for group in groups:
    cells: list[object] = []
    for each in group.spreads:
      cells += (
        ['', '', 0] if each is None else [each.mean, '' if each.deviation is None else each.deviation, each.count]
      )
    writer.writerow([*map(runs_common.csv_cell, group.values), len(group.names), *cells])
  return file.getvalue().removesuffix('\n')


def _report(options: argparse.Namespace) -> None:
  from official_ext.operations.curves import column_store  # pylint: disable=g-import-not-at-top  # NumPy, as the next.
  from official_ext.operations.curves import report  # pylint: disable=g-import-not-at-top

  root, runs = runs_common.runs_of(options)
  title = options.title or os.path.basename(paths.real(root) if paths.is_remote(root) else os.path.abspath(root))
  text = report.page(column_store.ColumnStore(), runs, title, runs_common.split_words(options.metric), options.x)
  output = paths.expand_home(options.output, '--output')
  try:
    paths.write_atomically(output, text.encode())
  except OSError as error:
    raise errors.StorageError(f'--output={output}: cannot be written: {error.strerror or error}') from error
  print(runs_common.harmless(f'{output}: {len(runs)} runs, {len(text) / 1e6:.1f} MB'))
  if options.json:
    json_output.print_document({'output': output, 'runs': [each.name for each in runs], 'bytes': len(text.encode())})


_TABLE_FORMATS = {'text': _table_text, 'markdown': _table_markdown, 'csv': _table_csv, 'latex': _table_latex}


def add_table_commands(commands: Any) -> None:
  """Adds this command to `official-ext runs`."""
  text = 'print metrics over groups of runs: mean and standard deviation, such as over seeds'
  found = runs_common.add_command(commands, 'table', _table, text, runs='', takes_remote=True)
  fields = 'the fields of a group, tag, or folder; default: all fields that differ but seeds'
  found.add_argument('--group', action='append', default=[], metavar='A,B', help=fields)
  metrics = 'the metrics; NAME:min or NAME:max if the name does not imply which values are better'
  found.add_argument('--metric', action='append', default=[], metavar='A,B', help=metrics)
  formats = 'default: text, in which a star marks the best'
  found.add_argument('--format', choices=(*_TABLE_FORMATS, 'json'), default='text', help=formats)
  _add_json_format(found)
  found.add_argument('--status', action='append', default=[], metavar='A,B', help='default: finished')
  found.add_argument('--experiment', action='append', default=[], metavar='A,B', help='of any of these experiments')
  found.add_argument('--tag', action='append', default=[], metavar='A,B', help='with all these tags')
  condition = 'as of `runs list`'
  found.add_argument('--filter', action='append', default=[], metavar='CONDITION', help=condition)
  text = 'write metrics, curves, configurations and wall times of runs as one HTML file, which needs no server'
  found = runs_common.add_command(commands, 'report', _report, text, as_json=True, takes_remote=True)
  found.add_argument('--output', metavar='FILE', default='report.html', help='default: report.html')
  found.add_argument('--title', metavar='TEXT', help='default: the name of RUNS_DIR')
  names = 'the curves, such as eval/accuracy; default: all metrics'
  found.add_argument('--metric', action='append', default=[], metavar='A,B', help=names)
  axis = 'the axis: step, time, active, wall, examples, or a curve such as train/tokens; default: step'
  found.add_argument('--x', metavar='NAME', default='step', help=axis)


_LOG_LINES = 10
_EVENTS, _EVENT_LINES = 100, 8  # Skipped updates share a line.


def _list(options: argparse.Namespace) -> None:
  root = paths.expanded(options.root)  # A missing file is reported below.
  if options.trash:
    gone = trash.deleted(runs_common.root_of(options))
    if options.json:
      json_output.print_document([{'name': each.name, 'deleted': each.deleted, 'key': each.key} for each in gone])
    else:
      runs_common.print_lines(runs_common.trash_table(gone) if gone else ['The trash is empty.'])
    return
  runs = runs_common.index_of(options) if paths.is_remote(root) else run_index.RunIndex(root)
  known = runs.summaries(options.hung_minutes * 60)
  found = [each for each in known if each.is_archived == options.archived]
  chosen = selection.Selection(
    runs_common.split_words(options.status),
    runs_common.split_words(options.experiment),
    runs_common.split_words(options.tag),
    options.filter,
  ).choose(found, runs.params)
  chosen = chosen if options.sort == 'name' else selection.in_order(chosen, options.sort, runs.params)
  if options.json:
    json_output.print_document([{**each.as_dict(), 'best': _best_of(runs, each)} for each in chosen])
  elif chosen:
    runs_common.print_lines(runs_common.runs_table(chosen, runs_common.split_words(options.metrics)))
  else:
    print(runs_common.harmless(_no_runs(root, len(found), len(known), options.archived)))


def _best_of(runs: run_index.RunIndex, each: run_index.RunSummary) -> json_values.JsonObject | None:
  """The best value of the metric of a run's best checkpoint."""
  run = run_folders.find_run(runs.root, each.name)  # None: it was deleted meanwhile.
  found = None if run is None else run_comparison.best_of(run)
  return found and dict(zip(('metric', 'value', 'step'), found))


def _no_runs(root: str, num_found: int, num_known: int, archived: bool) -> str:
  """Why a list is empty."""
  if num_found:
    return f'None of {num_found} runs is meant.'
  if archived:
    return f'{root}: no archived runs; `official-ext runs archive` takes runs out of the list.'
  others = f', but {num_known} archived: --archived shows them' if num_known else ''
  return f'{root}: no runs{others}; train.py --model_dir={root}/NAME makes one.'


def _show(options: argparse.Namespace) -> None:
  _, runs = runs_common.runs_of(options)
  values: list[dict[str, object]] = []
  for number, one in enumerate(runs):
    summary = run_index.summary_of(one)
    record = one.first_record() or one.started() or {}
    lines, title = run_processes.log_tail(one, _LOG_LINES), 'log'
    if not lines:  # Of a custom driver, an imported run, or an older version.
      lines, title = runs_common.event_lines(event_log.newest_events(one, _EVENTS))[-_EVENT_LINES:], 'events'
    best, checkpoints = (
      run_comparison.best_of(one),
      [each for each in artifacts.find_checkpoints(one) if not each.damage],
    )
    completions, spent = next(iter(event_log.read_completions(one, 1)), None), _goodput(one)
    if options.json:
      found: json_values.JsonObject = {'best': best, 'checkpoints': [each.name for each in checkpoints]}
      found |= {'completions': completions, 'goodput': spent and dataclasses.asdict(spent)}
      values.append(
        {**summary.as_dict(), **found, 'record': record, 'params': run_folders.read_params(one), 'log': lines}
      )
    else:
      runs_common.print_lines(
        [''] * bool(number) + runs_common.run_lines(summary, record, best, checkpoints, lines, spent, title)
      )
      if completions is not None:
        runs_common.print_lines(runs_common.completions_table(completions))
  runs_common.print_json_of(values)


def _goodput(run: run_folders.Run) -> 'timing.Goodput | None':
  from official_ext.operations.curves import column_store  # pylint: disable=g-import-not-at-top  # NumPy, as the next.
  from official_ext.operations.curves import timing  # pylint: disable=g-import-not-at-top

  store = column_store.ColumnStore()
  found = timing.read_goodput(store, run)
  store.trim()  # Keeps what was read, for the next time.
  return found


def _log(options: argparse.Namespace) -> None:
  _, runs = runs_common.runs_of(options)
  one = runs[0]
  path = one.log_path(options.mode)
  if len(runs) > 1:
    raise errors.UserError('runs log: one run at a time')
  if not os.path.lexists(path):
    raise errors.UserError(
      f'{one.name}: has no {os.path.basename(path)}: a driver that is neither train.py nor started detached prints '
      'where it was started'
    )
  try:
    local_files.check_regular(path)
  except OSError as error:
    raise errors.UserError(f'{path}: {error.strerror}; a run keeps its output there, move it away') from None
  if options.follow and one.origin:
    raise errors.UserError(f'--follow: {one.origin}: is remote, and its copy does not grow; leave --follow out')
  if not options.follow:
    lines = run_processes.log_tail(one, options.lines, options.mode)
    runs_common.print_lines(lines)
    _print_log(one, path, lines, options)
    return
  lines, place, _ = run_processes.lines_since(path, None, options.lines)
  runs_common.print_lines(lines)
  sys.stdout.flush()
  for line in run_processes.follow_file(path, lambda: not statuses.is_alive(one, options.mode), place=place):
    print(line, flush=True)
  _print_log(one, path, run_processes.log_tail(one, options.lines, options.mode), options)


def _print_log(one: run_folders.Run, path: str, lines: Iterable[str], options: argparse.Namespace) -> None:
  if options.json:
    json_output.print_document({'name': one.name, 'path': path, 'lines': list(lines)})


def _compare(options: argparse.Namespace) -> None:
  _, runs = runs_common.runs_of(options, at_least=2)
  found = run_comparison.compare_runs(runs)
  if options.json:
    json_output.print_document(found.as_dict())
  else:
    runs_common.print_lines(runs_common.comparison_tables(found))


def _export(options: argparse.Namespace) -> None:
  _, runs = runs_common.runs_of(options)

  def fill(one: run_folders.Run) -> json_values.JsonObject:
    output_dir = options.output_dir and paths.expanded(options.output_dir)
    if one.origin and output_dir is None:
      raise errors.UserError(f'--output_dir: {one.origin}: is remote; name a local folder for the files')
    count, path = event_log.export_csv(one, output_dir)
    print(runs_common.harmless(f'{one.name}: {count} events: {path}'), flush=True)
    return {'name': one.name, 'events': count, 'path': path}

  runs_common.do_with_each(runs, fill, options.json)


def _config(options: argparse.Namespace) -> None:
  one = runs_common.run_of(options)
  values = run_folders.read_params(one)
  if values is None:
    raise errors.UserError(f'{one.name}: has no {run_folders.PARAMS} that can be read')
  shown = commands_lib.given_fields(one, values) if options.given else list(values)
  if options.changed:
    with driver_lib.Driver(registry=options.registry) as driver:
      try:
        changed = driver_lib.changed_fields(one, values, driver)
      except driver_lib.DriverError as error:
        raise errors.UserError(f'{one.name}: {error}') from error
    shown = [path for path in shown if path in changed]
  if options.json:
    json_output.print_document({path: values[path] for path in shown})
  else:
    runs_common.print_lines([runs_common.harmless(f'{path}: {values[path]}') for path in shown])


def _checkpoints(options: argparse.Namespace) -> None:
  one = runs_common.run_of(options)
  evaluations = run_comparison.read_evaluations(one.file(run_folders.EVENTS))
  found = artifacts.with_evaluations(artifacts.find_checkpoints(one), evaluations)
  if options.json:
    json_output.print_document([vars(each) for each in found])
  else:
    runs_common.print_lines(runs_common.checkpoints_table(found) if found else ['No checkpoints.'])


def _events(options: argparse.Namespace) -> None:
  from official_ext.operations.curves import column_store  # pylint: disable=g-import-not-at-top  # NumPy, as the next.
  from official_ext.operations.curves import timing  # pylint: disable=g-import-not-at-top

  found = timing.read_timeline(column_store.ColumnStore(), runs_common.run_of(options))
  if options.json:
    json_output.print_document([each.as_dict() for each in found.events])
  else:
    runs_common.print_lines(runs_common.timeline_table(found))


def add_view_commands(commands: Any) -> None:
  """Adds these commands to `official-ext runs`."""
  add = runs_common.add_command
  view = functools.partial(add, as_json=True, takes_remote=True)
  _add_list(commands)
  view(commands, 'show', _show, 'print all about a run, and the end of its log')
  found = view(commands, 'log', _log, text='print the end of the output of a run, of run.log')
  found.add_argument('--lines', type=arguments_lib.at_least(0), default=20, metavar='N', help='default: 20')
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
  found = runs_common.add_command(commands, 'list', _list, text, runs='', as_json=True, takes_remote=True)
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
  minutes = statuses.HUNG_SECONDS / 60
  found.add_argument('--hung_minutes', type=arguments_lib.number_from(0), default=minutes, metavar='N', help=hung)


def _add_export(commands: Any) -> None:
  text = 'write the events of runs as tables'
  found = runs_common.add_command(commands, 'export', _export, text, as_json=True, takes_remote=True)
  found.add_argument('--to', choices=('csv',), required=True, help='events.csv')
  found.add_argument('--output_dir', metavar='DIR', help="for NAME.csv; default: events.csv in the run's folder")
