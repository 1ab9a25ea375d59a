"""A report of runs as one HTML file that needs no server, no network and no script. No TensorFlow."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import html
import math
import time

import numpy as np

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import suggestions
from official_ext.base.harmless_text import harmless
from official_ext.base.run_folder import event_names
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves
from official_ext.operations.curves import decimation
from official_ext.operations.curves import goodput
from official_ext.operations.curves import svg_chart
from official_ext.operations.runs import comparing
from official_ext.operations.runs import run_folder

_BUCKETS = 300
_MAX_CHARTS = 60
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; border-bottom: 1px solid #8884; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.key { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; border-radius: 2px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 600; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } code { overflow-wrap: anywhere; }
:root { color-scheme: light dark; }
"""


def page(
  store: column_store.ColumnStore,
  runs: Sequence[run_folder.Run],
  title: str,
  metrics: Sequence[str] = (),
  x: str = 'step',
) -> str:
  """The HTML of a report: metrics, curves, fields that differ, wall time, commands.

  Args:
    store: keeps the columns read.
    runs: the runs.
    title: the heading.
    metrics: names of curves, such as `eval/accuracy`; by default all but values of progress and of the machine, the
      first 60.
    x: the axis of the curves, see curves.View.

  Raises:
    UserError: the name of a curve or of the axis is invalid, or no run has it.
  """
  found = comparing.compare(runs, lambda run: curves.evaluations(store, run))
  colours = [svg_chart.COLOURS[number % len(svg_chart.COLOURS)] for number in range(len(runs))]
  known = _names(store, runs)
  names = metrics or known[:_MAX_CHARTS]
  more = (
    '' if metrics or len(known) <= _MAX_CHARTS else f'<p>{len(known) - _MAX_CHARTS} further curves are left out.</p>'
  )
  made = time.strftime('%Y-%m-%d %H:%M', time.localtime())
  numbers = {name: [_number(value) for value in values] for name, values in found.last.items()}
  best = {
    name: ['-' if pair is None else f'{_number(pair[0])} (step {pair[1]:,})' for pair in pairs]
    for name, pairs in found.best.items()
  }
  parts = [
    f'<h1>{_text(title)}</h1><p>{len(runs)} runs, {made}</p>',
    _table([['run', 'status', 'step'], *zip(found.names, found.statuses, map(_number, found.steps))], colours),
    _section('Best metrics', _columns(found.names, best)),
    _section('Last metrics', _columns(found.names, numbers)),
    _section('Curves', _charts(store, runs, names, colours, x) + more),
    _section('Fields that differ', _columns(found.names, _masked(found.params))),
    _section('Versions and origins that differ', _columns(found.names, _masked(found.origins))),
    _section('Wall time', _goodput(store, runs)),
    _section('Commands', _commands(runs)),
  ]
  head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{_text(title)}</title>'
  return (
    f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{"".join(parts)}</body></html>\n'
  )


def _names(store: column_store.ColumnStore, runs: Sequence[run_folder.Run]) -> list[str]:
  found = dict.fromkeys(name for run in runs for name in curves.names(store, run))
  return [
    name
    for name in found
    if name.partition('/')[2] not in event_names.PROGRESS and not name.startswith(f'{event_names.SYSTEM}:')
  ]


def _charts(
  store: column_store.ColumnStore,
  runs: Sequence[run_folder.Run],
  names: Sequence[str],
  colours: Sequence[str],
  x: str,
) -> str:
  read = curves.read(store, runs, names, curves.View(x, buckets=_BUCKETS))
  found = read.curves
  if len(read.lacking) == len(runs):
    raise errors.UserError(f'--x={x}: no run has it{suggestions.did_you_mean(x, _names(store, runs), before="; ")}')
  lacking = next((name for name in names if not any(curve == name for _, curve in found)), None)
  if lacking is not None:
    raise errors.UserError(
      f'--metric={lacking}: no run has this curve{suggestions.did_you_mean(lacking, _names(store, runs), before="; ")}'
    )
  figures = []
  for name in names:
    lines = [
      svg_chart.Line(run.name, colour, *_points(found[run.name, name]), is_dotted=run.name in read.unordered)
      for run, colour in zip(runs, colours)
      if (run.name, name) in found
    ]
    picture = svg_chart.draw(name, lines, x)
    if picture:
      figures.append(f'<figure><figcaption>{_text(name)}</figcaption>{picture}</figure>')
  return f'<div class="charts">{"".join(figures)}</div>' if figures else ''


def _points(curve: decimation.Curve) -> tuple[list[float], list[float]]:
  """The points of a curve; of a long one the mean of each bucket, and its points that are not finite."""
  x, y = curve.x, np.asarray(curve.mean if curve.is_decimated else curve.y)
  marks = np.concatenate(list(curve.marks.values())) if curve.is_decimated and curve.marks else np.empty(0)
  order = np.argsort(np.concatenate([x, marks]), kind='stable')
  return np.concatenate([x, marks])[order].tolist(), np.concatenate([y, np.full(len(marks), np.nan)])[order].tolist()


def _goodput(store: column_store.ColumnStore, runs: Sequence[run_folder.Run]) -> str:
  rows: list[list[str]] = [['run', 'seconds', *goodput.PARTS]]
  for run in runs:
    spent = goodput.read(store, run)
    if spent is not None:
      values = dataclasses.asdict(spent)
      shares = [f'{values[name] / spent.seconds:.1%}' for name in goodput.PARTS]
      rows.append([run.name, f'{spent.seconds:,.0f}', *shares])
  return _table(rows) if len(rows) > 1 else ''


def _commands(runs: Iterable[run_folder.Run]) -> str:
  items = []
  for run in runs:
    command = credentials.mask(str((run.first_record() or {}).get('command') or ''))
    if command:
      items.append(f'<dt>{_text(run.name)}</dt><dd><code>{_text(command)}</code></dd>')
  return f'<dl>{"".join(items)}</dl>' if items else ''


def _masked(rows: Mapping[str, Sequence[json_types.Json]]) -> dict[str, list[str]]:
  """Values as texts, without passwords."""
  return {
    name: [str(credentials.mask_values({name: value})[name]) for value in values] for name, values in rows.items()
  }


def _number(value: float | None) -> str:
  if value is None:
    return '-'
  return f'{value:,}' if isinstance(value, int) or not math.isfinite(value) else f'{value:.4g}'


def _columns(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
  """A table with a column for each run."""
  return _table([['', *names], *([name, *values] for name, values in rows.items())]) if rows else ''


def _section(title: str, content: str) -> str:
  return f'<h2>{title}</h2>{content}' if content else ''


def _table(rows: Iterable[Sequence[str]], colours: Sequence[str] = ()) -> str:
  """A table; `colours` are those of the rows after the header."""
  header, *others = rows
  lines = [f'<tr>{"".join(f"<th>{_text(cell)}</th>" for cell in header)}</tr>']
  for number, row in enumerate(others):
    key = f'<span class="key" style="background:{colours[number]}"></span>' if colours else ''
    cells = ''.join(f'<td class="number">{_text(cell)}</td>' for cell in row[1:])
    lines.append(f'<tr><th>{key}{_text(row[0])}</th>{cells}</tr>')
  return f'<table>{"".join(lines)}</table>'


def _text(value: object) -> str:
  """Escaped text: names and values come from files of runs."""
  return html.escape(harmless(value))
