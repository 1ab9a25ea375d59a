"""official-ext runs table and report: results of several runs for papers and readers. No TensorFlow."""

import argparse
from collections.abc import Callable, Mapping, Sequence
import csv
import io
import math
import os
import sys
from typing import Any

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.cli import run_arguments
from official_ext.cli import run_tables
from official_ext.operations.runs import grouped_metrics
from official_ext.operations.runs import index
from official_ext.operations.runs import selection
from official_ext.operations.runs import summaries

_MAX_FIELDS = 8
_LATEX = {each: f'\\{each}' for each in '#$%&_{}'} | {
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '<': r'\textless{}',
  '>': r'\textgreater{}',
  '|': r'\textbar{}',
  # Behind a line's end these would be its arguments.
  **{each: f'{{{each}}}' for each in '[]*'},
}


def _table(options: argparse.Namespace) -> None:
  runs = index.RunIndex(run_arguments.root_of(options))
  known = [each for each in runs.summaries() if not each.is_archived]
  statuses = run_arguments.words(options.status) or ['finished']
  chosen = selection.Selection(
    statuses,
    run_arguments.words(options.experiment),
    run_arguments.words(options.tag),
    options.filter,
  ).choose(known, runs.params)
  if not chosen:
    raise errors.UserError(
      f'{options.root}: 0 of {len(known)} runs match --status={",".join(statuses)} and the other flags; change them'
    )
  if len(chosen) < len(known):
    text = f'{len(chosen)} of {len(known)} runs match --status={",".join(statuses)} and the other flags'
    print(run_tables.harmless(text), file=sys.stderr)
  metrics = [grouped_metrics.parse_metric(text) for text in run_arguments.words(options.metric)]
  if not metrics:
    raise errors.UserError('--metric: name one or more, such as --metric=accuracy,validation_loss')
  params = runs.params()
  by = run_arguments.words(options.group) or _fields(chosen, params)
  found = grouped_metrics.group(chosen, by, metrics, lambda: params)
  if options.format == 'json':
    run_arguments.print_json([_as_dict(each, by, metrics) for each in found])
  else:
    print(_FORMATS[options.format](found, by, metrics))


def _fields(runs: Sequence[summaries.RunSummary], params: Mapping[str, json_types.JsonMapping]) -> list[str]:
  """The fields in which runs differ, if they are few.

  Raises:
    UserError: they are many, or a run has no configuration.
  """
  lacking = next((run.name for run in runs if not params.get(run.name)), None)
  if lacking is not None:
    raise errors.UserError(f'{lacking}: has no params.yaml that can be read; name the fields: --group=A,B')
  found = grouped_metrics.fields_that_differ({run.name: params[run.name] for run in runs})
  if len(found) > _MAX_FIELDS:
    raise errors.UserError(
      f'--group: the runs differ in {len(found)} fields, such as {found[0]}; name some: --group=A,B'
    )
  return found


def _as_dict(group: grouped_metrics.Group, by: Sequence[str], metrics: Sequence[grouped_metrics.Metric]) -> dict:
  spreads = {
    metric.name: each and {'mean': each.mean, 'std': each.deviation, 'count': each.count, 'is_best': each.is_best}
    for metric, each in zip(metrics, group.spreads)
  }
  return {'group': dict(zip(by, group.values)), 'runs': list(group.names), 'metrics': spreads}


def _cell(spread: grouped_metrics.Spread | None, group: grouped_metrics.Group, sign: str) -> str:
  """`mean sign deviation`: the deviation to two digits or more, the mean to as many decimals; else to four digits."""
  if spread is None:
    return '-'
  if spread.deviation and spread.deviation > 1e-9 * abs(spread.mean) and 1e-6 <= abs(spread.mean) < 1e6:
    decimals = max(0, 1 - math.floor(math.log10(spread.deviation)))
    text = f'{spread.mean:.{decimals}f} {sign} {spread.deviation:.{decimals}f}'
  else:
    text = run_tables.number(float(spread.mean))
    text += '' if spread.deviation is None else f' {sign} {spread.deviation:.2g}'
  return text if spread.count == len(group.names) else f'{text} (n={spread.count})'


def _rows(
  groups: Sequence[grouped_metrics.Group],
  by: Sequence[str],
  metrics: Sequence[grouped_metrics.Metric],
  escape: Callable[[object], str],
  mark: Callable[[str], str],
  sign: str = '±',
) -> list[list[str]]:
  """The header and a row for each group; `mark` is applied to the best of each metric."""
  rows = [[*map(escape, by), 'runs', *(escape(each.name) for each in metrics)]]
  for group in groups:
    cells = [(_cell(each, group, sign), each is not None and each.is_best) for each in group.spreads]
    values = [escape('-' if value is None else value) for value in group.values]
    rows.append([*values, str(len(group.names)), *(mark(text) if is_best else text for text, is_best in cells)])
  return rows


def _text(groups, by, metrics) -> str:
  """A table for a terminal; the best has a star."""
  return '\n'.join(run_tables.table(_rows(groups, by, metrics, run_tables.harmless, lambda text: f'{text} *')))


def _markdown(groups, by, metrics) -> str:
  """A table of GitHub's Markdown; the best is bold."""
  rows = _rows(groups, by, metrics, run_tables.markdown_cell, lambda text: f'**{text}**')
  return '\n'.join(run_tables.markdown(rows, ['---'] * len(by) + ['---:'] * (1 + len(metrics))))


def _latex(groups, by, metrics) -> str:
  r"""A tabular of LaTeX; the best is \textbf."""

  def escape(value: object) -> str:
    return ''.join(_LATEX.get(each, each) for each in run_tables.harmless(value))

  rows = _rows(groups, by, metrics, escape, lambda text: rf'\textbf{{{text}}}', sign=r'$\pm$')
  lines = [' & '.join(row) + r' \\' for row in rows]
  columns = 'l' * len(by) + 'r' * (1 + len(metrics))
  body = [lines[0], r'\hline', *lines[1:]]
  return '\n'.join([rf'\begin{{tabular}}{{{columns}}}', r'\hline', *body, r'\hline', r'\end{tabular}'])


def _csv(groups, by, metrics) -> str:
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
    writer.writerow([*map(run_tables.csv_cell, group.values), len(group.names), *cells])
  return file.getvalue().removesuffix('\n')


def _report(options: argparse.Namespace) -> None:
  from official_ext.operations.curves import column_store  # pylint: disable=g-import-not-at-top  # NumPy, as the next.
  from official_ext.operations.curves import report  # pylint: disable=g-import-not-at-top

  root, runs = run_arguments.runs_of(options)
  title = options.title or os.path.basename(os.path.abspath(root))
  text = report.page(column_store.ColumnStore(), runs, title, run_arguments.words(options.metric), options.x)
  output = paths.expand_home(options.output, '--output')
  try:
    paths.write_atomically(output, text.encode())
  except OSError as error:
    raise errors.StorageError(f'--output={output}: cannot be written: {error.strerror or error}') from error
  print(run_tables.harmless(f'{output}: {len(runs)} runs, {len(text) / 1e6:.1f} MB'))


_FORMATS = {'text': _text, 'markdown': _markdown, 'csv': _csv, 'latex': _latex}


def add_commands(commands: Any) -> None:
  """Adds this command to `official-ext runs`."""
  text = 'print metrics over groups of runs: mean and standard deviation, such as over seeds'
  found = run_arguments.add_command(commands, 'table', _table, text, runs='')
  fields = 'the fields of a group, tag, or folder; default: all fields that differ but seeds'
  found.add_argument('--group', action='append', default=[], metavar='A,B', help=fields)
  metrics = 'the metrics; NAME:min or NAME:max if the name does not imply which values are better'
  found.add_argument('--metric', action='append', default=[], metavar='A,B', help=metrics)
  formats = 'default: text, in which a star marks the best'
  found.add_argument('--format', choices=(*_FORMATS, 'json'), default='text', help=formats)
  found.add_argument('--status', action='append', default=[], metavar='A,B', help='default: finished')
  found.add_argument('--experiment', action='append', default=[], metavar='A,B', help='of any of these experiments')
  found.add_argument('--tag', action='append', default=[], metavar='A,B', help='with all these tags')
  condition = 'as of `runs list`'
  found.add_argument('--filter', action='append', default=[], metavar='CONDITION', help=condition)
  text = 'write metrics, curves, configurations and wall times of runs as one HTML file, which needs no server'
  found = run_arguments.add_command(commands, 'report', _report, text)
  found.add_argument('--output', metavar='FILE', default='report.html', help='default: report.html')
  found.add_argument('--title', metavar='TEXT', help='default: the name of RUNS_DIR')
  names = 'the curves, such as eval/accuracy; default: all metrics'
  found.add_argument('--metric', action='append', default=[], metavar='A,B', help=names)
  axis = 'the axis: step, time, active, wall, examples, or a curve such as train/tokens; default: step'
  found.add_argument('--x', metavar='NAME', default='step', help=axis)
