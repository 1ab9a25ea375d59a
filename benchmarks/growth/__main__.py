"""Measures how cost grows, and draws it: `python -m benchmarks.growth [CURVE ...]`, part of `make bench`.

python -m benchmarks.growth                      all curves; pictures and growth.json in docs/images/performance
python -m benchmarks.growth metrics resume       these alone; the others are unchanged
python -m benchmarks.growth --draw               no measuring: the pictures again from growth.json

Each curve is measured by a separate process, on a machine that does nothing else.
"""

import argparse
from collections.abc import Sequence
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from benchmarks.growth import curves
from benchmarks.growth import drawing
from benchmarks.peers import machine
from benchmarks.peers import process
from benchmarks.peers import protocol

FOLDER = process.ROOT / 'docs/images/performance'
_FIGURES = 'growth.json'


def measured(name: str, quick: bool) -> curves.Panels:
  """The panels of a curve, by a separate process."""
  words = [sys.executable, '-m', 'benchmarks.growth', f'--measure={name}', *(['--quick'] if quick else [])]
  environment = {'TF_CPP_MIN_LOG_LEVEL': '3', 'TF_USE_LEGACY_KERAS': '1', 'CUDA_VISIBLE_DEVICES': ''}
  done = subprocess.run(
    words,
    cwd=process.ROOT,
    env={**os.environ, **environment, 'PYTHONPATH': str(process.ROOT)},
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise SystemExit(f'{name}: has ended with status {done.returncode}:\n{done.stderr[-2000:]}')
  return json.loads(done.stdout)


def measure_here(name: str, quick: bool) -> curves.Panels:
  """The panels of a curve, by this process."""
  module = importlib.import_module(f'benchmarks.growth.{curves.CURVES[name].module}')
  return getattr(module, f'measure_{name}')(quick)


def lines(name: str, panels: curves.Panels) -> list[str]:
  """The curve as text."""
  found = [f'{curves.CURVES[name].title} ({curves.CURVES[name].x or "seconds"})']
  for panel, series in panels.items():
    for label, points in series.items():
      text = '  '.join(f'{x if isinstance(x, str) else f"{x:,}"}: {y:,.4g}' for x, y in points)
      found.append(f'  {panel}, {label}:  {text}')
  return found


def _figures(folder: pathlib.Path) -> dict[str, Any]:
  path = folder / _FIGURES
  return json.loads(path.read_text()) if path.exists() else {}


def _write(folder: pathlib.Path, figures: dict[str, Any]) -> None:
  ordered = {name: figures[name] for name in curves.CURVES if name in figures}
  text = json.dumps(ordered, indent=1)
  (folder / _FIGURES).write_text(text + '\n')
  for name, figure in ordered.items():
    drawing.draw(curves.CURVES[name], figure['panels'], folder / f'{name}.svg')


def _rounded(panels: curves.Panels) -> dict[str, Any]:
  return {
    panel: {label: [[x, float(f'{y:.4g}')] for x, y in points] for label, points in series.items()}
    for panel, series in panels.items()
  }


def main(arguments: Sequence[str] | None = None) -> None:
  """Measures, prints, draws."""
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.growth', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('curves', nargs='*', metavar='CURVE', help=f'of {", ".join(curves.CURVES)}; all without any')
  parser.add_argument('--folder', type=pathlib.Path, default=FOLDER, help='of the pictures')
  parser.add_argument('--draw', action='store_true', help='measures nothing')
  parser.add_argument('--quick', action='store_true', help='few and small points: not a measure of speed')
  parser.add_argument('--measure', choices=curves.CURVES, help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  if options.measure:
    with protocol.answers() as stream:  # The output of libraries must not be taken for an answer.
      stream.write(json.dumps(_rounded(measure_here(options.measure, options.quick))) + '\n')
    sys.stdout.flush()
    os._exit(0)  # Threads of prefetching would hold up the exit.
  unknown = [name for name in options.curves if name not in curves.CURVES]
  if unknown:
    parser.error(f'{unknown[0]}: no such curve; there are {", ".join(curves.CURVES)}')
  drawing.pyplot()  # Missing, it is missing before anything is measured.
  options.folder.mkdir(parents=True, exist_ok=True)
  for name in [] if options.draw else options.curves or curves.CURVES:
    start, head = time.perf_counter(), machine.describe()  # With the load, which should be small.
    panels = measured(name, options.quick)
    print('\n'.join(lines(name, panels)), f'  ({time.perf_counter() - start:.0f} s)\n', sep='\n', flush=True)
    figures = _figures(options.folder)
    figures[name] = {'machine': head, 'panels': panels}
    _write(options.folder, figures)  # At once: a curve that fails later takes none with it.
  if options.draw:
    _write(options.folder, _figures(options.folder))


if __name__ == '__main__':
  main()
