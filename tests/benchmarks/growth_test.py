"""benchmarks/growth: each curve is measured, small; pictures that are small and the same for the same figures."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

from benchmarks.growth import __main__ as command
from benchmarks.growth import curves
from benchmarks.growth import drawing

ROOT = pathlib.Path(__file__).resolve().parents[2]
_CODE = """
import json, sys
from benchmarks.growth import __main__ as command
for name in sys.argv[1:]:
  print('curve ' + json.dumps([name, command.measure_here(name, quick=True)]))
"""


def points(panels):
  return [point for series in panels.values() for found in series.values() for point in found]


@pytest.fixture(scope='module')
def measured(train_server, tmp_path_factory):
  """Name -> panels, of what needs one process only."""
  from tests import train_processes

  names = ['steps_per_execution', 'model_size', 'variables', 'metrics', 'resume']
  script = train_processes.Script(train_server(), tmp_path_factory.mktemp('growth'), _CODE, names)
  done = script.finish(timeout=300)
  assert done.returncode == 0, done.stderr
  return dict(json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith('curve '))


def test_every_curve_has_points(measured):
  assert measured.keys() | {'memory', 'commands'} == curves.CURVES.keys()
  for name, panels in measured.items():
    assert len(points(panels)) >= 3, name
    assert all(y > 0 and math.isfinite(y) for _, y in points(panels)), (name, panels)


def test_what_grows_is_what_the_axis_says(measured):
  rates = measured['steps_per_execution']['steps/s']
  assert [x for x, _ in rates['as set']] == [1, 4] and rates["the library's choice"][0][0] in (1, 2, 4, 8)
  sizes = [x for x, _ in points({'': measured['model_size']['steps/s']})]
  assert sizes == [64 * w + w + w * w + w + 10 * w + 10 for w in (16, 32)]
  (series,) = measured['variables']['steps/s'].values()
  assert [x for x, _ in series] == [2 + 1 + 2, 2 + 4 + 2]  # Two layers with biases around 1 or 4 parts.
  metrics = measured['metrics']['steps/s']
  assert [[x for x, _ in series] for series in metrics.values()] == [[0, 2], [0, 2]]


def test_commands_are_timed():
  from benchmarks.growth import commands

  panels = commands.measure_commands(quick=True)
  assert [name for name, _ in points(panels)] == ['--help', '--help'] and all(0 < y < 60 for _, y in points(panels))


def test_pictures_are_the_same_for_the_same_figures(tmp_path, measured):
  (tmp_path / 'growth.json').write_text(
    json.dumps({name: {'machine': '', 'panels': panels} for name, panels in measured.items()})
  )
  command.main(['--draw', f'--folder={tmp_path}'])
  first = {path.name: path.read_bytes() for path in tmp_path.glob('*.svg')}
  assert first.keys() == {f'{name}.svg' for name in measured} and all(len(data) < 60_000 for data in first.values())
  assert curves.CURVES['metrics'].title.encode() in first['metrics.svg']  # Text is text.
  command.main(['--draw', f'--folder={tmp_path}'])
  assert first == {path.name: path.read_bytes() for path in tmp_path.glob('*.svg')}


def test_one_curve_leaves_the_others(tmp_path, monkeypatch, capsys):
  given = {'commands': {'seconds': {'again': [['list', 0.5]]}}, 'metrics': {'steps/s': {'logs': [[0, 10.0], [4, 9.0]]}}}
  monkeypatch.setattr(command, 'measured', lambda name, quick: given[name])
  command.main(['commands', f'--folder={tmp_path}'])
  command.main(['metrics', f'--folder={tmp_path}'])
  figures = json.loads((tmp_path / 'growth.json').read_text())
  assert list(figures) == ['metrics', 'commands'] and figures['commands']['panels'] == given['commands']
  assert 'steps/s, logs:  0: 10  4: 9' in capsys.readouterr().out
  with pytest.raises(SystemExit):
    command.main(['speed'])
  assert 'speed: no such curve' in capsys.readouterr().err


def test_a_missing_matplotlib_is_told_before_anything_is_measured(monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  monkeypatch.setattr(command, 'measured', lambda *_: pytest.fail('was measured'))
  with pytest.raises(SystemExit, match='error: matplotlib: is not installed'):
    command.main(['metrics'])
  assert drawing._MISSING.count('pip install matplotlib') == 1


def test_a_curve_that_fails_says_why(tmp_path, monkeypatch):
  monkeypatch.setattr(
    subprocess, 'run', lambda *_, **__: subprocess.CompletedProcess([], 3, '', 'a line\nValueError: too small\n')
  )
  with pytest.raises(SystemExit, match='metrics: has ended with status 3:\n.*too small'):
    command.measured('metrics', True)


def test_the_page_shows_every_picture_and_they_are_small():
  page = (ROOT / 'docs/performance.md').read_text()
  pictures = list((ROOT / 'docs/performance').glob('*.svg'))
  assert {path.stem for path in pictures} == curves.CURVES.keys()
  assert all(f'](performance/{path.name})' in page for path in pictures)
  assert sum(path.stat().st_size for path in pictures) < 400_000
