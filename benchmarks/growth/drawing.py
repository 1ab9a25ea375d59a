"""Pictures of curves, as SVG that is small and that GitHub shows on any background."""

import pathlib
from typing import Any

from benchmarks.growth import curves

_COLOURS = ('#1f77b4', '#d95f02', '#1b9e77')
_MARKERS = ('o', 's', '^')
_MISSING = 'error: matplotlib: is not installed; the pictures need it: pip install matplotlib'


def pyplot() -> Any:
  """matplotlib's, which draws into files."""
  try:
    import matplotlib
  except ImportError:
    raise SystemExit(_MISSING) from None
  matplotlib.use('svg')
  # Text as text is small; a fixed salt and no date: the same figures give the same file.
  matplotlib.rcParams.update({'svg.fonttype': 'none', 'svg.hashsalt': 'official_ext', 'font.size': 9})
  from matplotlib import pyplot as plt

  return plt


def draw(curve: curves.Curve, panels: curves.Panels, path: pathlib.Path) -> None:
  """Writes the picture of a curve: its panels beside each other."""
  plt = pyplot()
  figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels) + 0.8, 2.9), squeeze=False)
  for axis, (name, series) in zip(axes[0], panels.items()):
    (_bars if curve.bars else _lines)(axis, curve, series)
    axis.set_ylabel('' if curve.bars else name)
    axis.grid(alpha=0.3)
    axis.spines[['top', 'right']].set_visible(False)
    if len(series) > 1:
      axis.legend(frameon=False)
  figure.suptitle(curve.title)
  figure.tight_layout()
  figure.savefig(path, metadata={'Date': None}, facecolor='white')
  plt.close(figure)


def _lines(axis, curve, series):
  from matplotlib import ticker

  for (name, points), colour, marker in zip(series.items(), _COLOURS, _MARKERS):
    xs, ys = zip(*points)
    axis.plot(xs, ys, marker=marker, color=colour, label=name, markersize=4 if len(points) > 1 else 9)
  axis.set_xlabel(curve.x)
  if curve.log_x:
    axis.set_xscale('log')
    values = sorted({x for points in series.values() for x, _ in points})
    if len(values) > 1 and values[-1] <= 1000 and all(x == int(x) for x in values):
      axis.set_xticks(values, [str(int(x)) for x in values])
      axis.minorticks_off()
  if curve.log_y:
    axis.set_yscale('log')
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))  # More numbers would overlap.
    axis.yaxis.set_major_formatter('{x:g}')
    axis.minorticks_off()
  else:
    axis.set_ylim(bottom=0)


def _bars(axis, curve, series):
  del curve
  height = 0.8 / len(series)
  for number, (name, points) in enumerate(series.items()):
    names, values = zip(*points)
    places = [place + number * height for place in range(len(names))]
    drawn = axis.barh(places, values, height, color=_COLOURS[number], label=name)
    axis.bar_label(drawn, fmt=' %.2f', fontsize=7)
  axis.set_yticks([place + height * (len(series) - 1) / 2 for place in range(len(names))], names)
  axis.invert_yaxis()
  axis.set_xlabel('seconds')
  axis.margins(x=0.12)
