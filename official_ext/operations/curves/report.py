"""A report of runs as one HTML file that needs no server, no network and no script.

Its curves are drawn as SVG.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import html
import math
import time

import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import safe_text
from official_ext.base.run_folder import run_files
from official_ext.base.safe_text import printable as harmless
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves
from official_ext.operations.curves import decimation
from official_ext.operations.curves import timing
from official_ext.operations.runs import run_comparison
from official_ext.operations.runs import run_folders

COLOURS = ('#1f5fd6', '#c2570c', '#1a7f45', '#b8326b', '#7a4fc9', '#0b7a7d', '#8a6d00', '#505b69')
_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 28, 12, 34
_TICKS = 5
_LARGEST = 1e300  # Of a number that is drawn: sums and differences of two are finite.


@dataclasses.dataclass(frozen=True)
class ChartLine:
  """One curve.

  Attributes:
    name: shown when the pointer is on it.
    colour: a CSS colour.
    x: places on the axis, ascending.
    y: values of the same number; one that is not finite, or beyond 1e300, interrupts the curve.
    is_dotted: whether it has points without lines.
  """

  name: str
  colour: str
  x: Sequence[float]
  y: Sequence[float]
  is_dotted: bool = False


def chart_ticks(first: float, last: float, count: int = _TICKS) -> list[float]:
  """About `count` round numbers (1, 2 or 5 times a power of ten apart) from `first` to `last`, both finite."""
  if not last > first:
    return [first]
  rough = (last - first) / count
  power = 10.0 ** math.floor(math.log10(rough))
  step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
  begin = math.ceil(first / step - 1e-9)
  return [number * step for number in range(begin, math.floor(last / step + 1e-9) + 1)]


def draw_chart(title: str, lines: Sequence[ChartLine], x_title: str = 'step') -> str:
  """An SVG element with axes, a grid and the lines; '' if no line has a finite point.

  Args:
    title: of the picture, for screen readers.
    lines: the curves.
    x_title: name of the horizontal axis.
  """
  points = [point for line in lines for piece in _pieces(line) for point in piece]
  if not points:
    return ''
  x_ends = _chart_ends([x for x, _ in points], 0.0)
  y_ends = _chart_ends([y for _, y in points], 0.04)

  def place(x: float, y: float) -> str:
    across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * (x - x_ends[0]) / (x_ends[1] - x_ends[0])
    down = _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (y - y_ends[0]) / (y_ends[1] - y_ends[0])
    return f'{across:.1f},{down:.1f}'

  parts = [
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg" font-size="12">',
    f'<title>{_svg_text(title)}</title>',
  ]
  y_ticks = chart_ticks(*y_ends)
  for y, label in zip(y_ticks, _chart_labels(y_ticks)):
    _, down = place(x_ends[0], y).split(',')
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{down}" y2="{down}" stroke="#8886"/>')
    parts.append(
      f'<text x="{_LEFT - 6}" y="{float(down) + 4:.1f}" text-anchor="end" fill="currentColor">{label}</text>'
    )
  for x in chart_ticks(*x_ends):
    across, _ = place(x, y_ends[0]).split(',')
    parts.append(
      f'<text x="{across}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle" fill="currentColor">{x:,.10g}</text>'
    )
  middle = (_LEFT + _WIDTH - _RIGHT) / 2
  title_text = _svg_text(x_title)
  parts.append(f'<text x="{middle}" y="{_HEIGHT - 3}" text-anchor="middle" fill="currentColor">{title_text}</text>')
  for line in lines:
    name = f'<title>{_svg_text(line.name)}</title>'
    for piece in _pieces(line):
      if len(piece) == 1 or line.is_dotted:
        for point in piece:
          across, down = place(*point).split(',')
          parts.append(f'<circle cx="{across}" cy="{down}" r="2.5" fill="{line.colour}">{name}</circle>')
      else:
        text = ' '.join(place(x, y) for x, y in piece)
        parts.append(
          f'<polyline points="{text}" fill="none" stroke="{line.colour}" stroke-width="1.5">{name}</polyline>'
        )
  return '\n'.join([*parts, '</svg>'])


def _pieces(line: ChartLine) -> list[list[tuple[float, float]]]:
  """The parts of a curve between values that are not finite."""
  pieces: list[list[tuple[float, float]]] = [[]]
  for x, y in zip(line.x, line.y):
    if math.isfinite(x) and abs(y) <= _LARGEST:
      pieces[-1].append((x, y))
    elif pieces[-1]:
      pieces.append([])
  return [piece for piece in pieces if piece]


def _chart_ends(values: Sequence[float], margin: float) -> tuple[float, float]:
  low, high = min(values), max(values)
  least = max(1e-300, 1e-12 * max(abs(low), abs(high)))  # Between closer numbers there are no ticks.
  if high - low < least:
    middle, span = (low + high) / 2, abs(low) or 1.0
    return middle - max(least, span / 2), middle + max(least, span / 2)
  return low - margin * (high - low), high + margin * (high - low)


def _chart_labels(values: Sequence[float]) -> list[str]:
  """The shortest texts of ticks of which no two are the same."""
  for digits in range(4, 17):
    found = [f'{value:.{digits}g}' for value in values]
    if len(set(found)) == len(found):
      return found
  return found


def _svg_text(value: str) -> str:
  """Escaped text, without characters that cannot be written."""
  return html.escape(harmless(value))


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
  runs: Sequence[run_folders.Run],
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
  found = run_comparison.compare_runs(runs, lambda run: curves.evaluations(store, run))
  colours = [COLOURS[number % len(COLOURS)] for number in range(len(runs))]
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
    f'<h1>{_html_text(title)}</h1><p>{len(runs)} runs, {made}</p>',
    _table([['run', 'status', 'step'], *zip(found.names, found.statuses, map(_number, found.steps))], colours),
    _section('Best metrics', _columns(found.names, best)),
    _section('Last metrics', _columns(found.names, numbers)),
    _section('Curves', _charts(store, runs, names, colours, x) + more),
    _section('Fields that differ', _columns(found.names, _masked(found.params))),
    _section('Versions and origins that differ', _columns(found.names, _masked(found.origins))),
    _section('Wall time', _goodput(store, runs)),
    _section('Commands', _commands(runs)),
  ]
  head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{_html_text(title)}</title>'
  return (
    f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{"".join(parts)}</body></html>\n'
  )


def _names(store: column_store.ColumnStore, runs: Sequence[run_folders.Run]) -> list[str]:
  found = dict.fromkeys(name for run in runs for name in curves.names(store, run))
  return [
    name
    for name in found
    if name.partition('/')[2] not in run_files.PROGRESS and not name.startswith(f'{run_files.SYSTEM_EVENT}:')
  ]


def _charts(
  store: column_store.ColumnStore,
  runs: Sequence[run_folders.Run],
  names: Sequence[str],
  colours: Sequence[str],
  x: str,
) -> str:
  read = curves.read(store, runs, names, curves.View(x, buckets=_BUCKETS))
  found = read.curves
  if len(read.lacking) == len(runs):
    raise errors.UserError(f'--x={x}: no run has it{errors.did_you_mean(x, _names(store, runs), before="; ")}')
  lacking = next((name for name in names if not any(curve == name for _, curve in found)), None)
  if lacking is not None:
    raise errors.UserError(
      f'--metric={lacking}: no run has this curve{errors.did_you_mean(lacking, _names(store, runs), before="; ")}'
    )
  figures = []
  for name in names:
    lines = [
      ChartLine(run.name, colour, *_points(found[run.name, name]), is_dotted=run.name in read.unordered)
      for run, colour in zip(runs, colours)
      if (run.name, name) in found
    ]
    picture = draw_chart(name, lines, x)
    if picture:
      figures.append(f'<figure><figcaption>{_html_text(name)}</figcaption>{picture}</figure>')
  return f'<div class="charts">{"".join(figures)}</div>' if figures else ''


def _points(curve: decimation.Curve) -> tuple[list[float], list[float]]:
  """The points of a curve; of a long one the mean of each bucket, and its points that are not finite."""
  x, y = curve.x, np.asarray(curve.mean if curve.is_decimated else curve.y)
  marks = np.concatenate(list(curve.marks.values())) if curve.is_decimated and curve.marks else np.empty(0)
  order = np.argsort(np.concatenate([x, marks]), kind='stable')
  return np.concatenate([x, marks])[order].tolist(), np.concatenate([y, np.full(len(marks), np.nan)])[order].tolist()


def _goodput(store: column_store.ColumnStore, runs: Sequence[run_folders.Run]) -> str:
  rows: list[list[str]] = [['run', 'seconds', *timing.GOODPUT_PARTS]]
  for run in runs:
    spent = timing.read_goodput(store, run)
    if spent is not None:
      values = dataclasses.asdict(spent)
      shares = [f'{values[name] / spent.seconds:.1%}' for name in timing.GOODPUT_PARTS]
      rows.append([run.name, f'{spent.seconds:,.0f}', *shares])
  return _table(rows) if len(rows) > 1 else ''


def _commands(runs: Iterable[run_folders.Run]) -> str:
  items = []
  for run in runs:
    command = safe_text.mask(str((run.first_record() or {}).get('command') or ''))
    if command:
      items.append(f'<dt>{_html_text(run.name)}</dt><dd><code>{_html_text(command)}</code></dd>')
  return f'<dl>{"".join(items)}</dl>' if items else ''


def _masked(rows: Mapping[str, Sequence[json_values.Json]]) -> dict[str, list[str]]:
  """Values as texts, without passwords."""
  return {name: [str(safe_text.mask_values({name: value})[name]) for value in values] for name, values in rows.items()}


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
  """A table; `colours` are of the rows after the header."""
  header, *others = rows
  lines = [f'<tr>{"".join(f"<th>{_html_text(cell)}</th>" for cell in header)}</tr>']
  for number, row in enumerate(others):
    key = f'<span class="key" style="background:{colours[number]}"></span>' if colours else ''
    cells = ''.join(f'<td class="number">{_html_text(cell)}</td>' for cell in row[1:])
    lines.append(f'<tr><th>{key}{_html_text(row[0])}</th>{cells}</tr>')
  return f'<table>{"".join(lines)}</table>'


def _html_text(value: object) -> str:
  """Escaped text: names and values come from files of runs."""
  return html.escape(harmless(value))
