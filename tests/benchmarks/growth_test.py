"""benchmarks/growth: each curve is measured, small; pictures that are small and the same for the same figures."""

import json
import math
import pathlib
import re
import subprocess
import sys

import pytest

from benchmarks.growth import __main__ as command
from benchmarks.growth import curves
from benchmarks.growth import drawing
from tests import documents

ROOT = pathlib.Path(__file__).resolve().parents[2]
_CODE = """
import json, sys
from benchmarks.growth import __main__ as command
for name in sys.argv[1:]:
  print('curve ' + json.dumps([name, command.measure_here(name, quick=True)]))
"""


def points(panels):
  return [point for series in panels.values() for found in series.values() for point in found]


@pytest.fixture
def measure(start_script):
  """measure(names) -> name -> panels, all by one process."""

  def run(names):
    done = start_script(_CODE, names).finish(timeout=600)
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith('curve '))
    assert all(y > 0 and math.isfinite(y) for panels in found.values() for _, y in points(panels)), found
    return found

  return run


@pytest.mark.soak
def test_metrics_and_logs_are_counted_apart(measure):
  metrics = measure(['metrics'])['metrics']['steps/s']
  assert [[x for x, _ in series] for series in metrics.values()] == [[0, 2], [0, 2]]


@pytest.mark.soak
def test_what_grows_is_what_the_axis_names(measure):
  measured = measure(['steps_per_execution', 'model_size', 'variables', 'resume'])
  assert measured.keys() | {'metrics', 'memory', 'commands'} == curves.CURVES.keys()
  rates = measured['steps_per_execution']['steps/s']
  assert [x for x, _ in rates['as set']] == [1, 4] and rates["the library's choice"][0][0] in range(1, 9)
  sizes = [x for x, _ in points({'': measured['model_size']['steps/s']})]
  assert sizes == [64 * w + w + w * w + w + 10 * w + 10 for w in (16, 32)]
  (series,) = measured['variables']['steps/s'].values()
  assert [x for x, _ in series] == [2 + 1 + 2, 2 + 4 + 2]  # Two layers with biases around 1 or 4 parts.
  assert [x for x, _ in points(measured['resume'])] == [100, 10**6, 100]


def test_commands_are_timed():
  from benchmarks.growth import commands

  panels = commands.measure_commands(quick=True)
  assert [name for name, _ in points(panels)] == ['--help', '--help'] and all(0 < y < 60 for _, y in points(panels))


@pytest.mark.slow
def test_pictures_are_the_same_for_the_same_figures(tmp_path):
  measured = {
    'steps_per_execution': {'steps/s': {'as set': [[1, 9.0], [4, 20.0]], 'chosen': [[2, 15.0]]}},
    'resume': {'seconds': {'ours': [[100, 2.0], [10**9, 2.1]]}},
    'variables': {'steps/s': {'': [[5, 9.0]]}, 'seconds': {'': [[5, 1.0]]}},
    'metrics': {'steps/s': {'metrics': [[0, 5.0], [2, 4.0]]}},
    'commands': {'seconds': {'first': [['list', 7.0]], 'again': [['list', 0.5]]}},
  }
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


def test_a_missing_matplotlib_is_reported_before_anything_is_measured(monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  monkeypatch.setattr(command, 'measured', lambda *_: pytest.fail('was measured'))
  with pytest.raises(SystemExit, match='error: matplotlib: is not installed'):
    command.main(['metrics'])
  assert drawing._MISSING.count('pip install matplotlib') == 1


def test_a_curve_that_fails_states_why(tmp_path, monkeypatch):
  monkeypatch.setattr(
    subprocess, 'run', lambda *_, **__: subprocess.CompletedProcess([], 3, '', 'a line\nValueError: too small\n')
  )
  with pytest.raises(SystemExit, match='(?s)metrics: has ended with status 3:.*too small'):
    command.measured('metrics', True)


def test_the_page_shows_every_curve_and_pictures_are_small():
  page = documents.read('docs/concepts/performance.md')
  assert re.findall(r'\]\(\.\./images/performance/(\w+)\.svg\)', page) == list(curves.CURVES)
  pictures = list((ROOT / 'docs/images/performance').glob('*.svg'))
  figures = ROOT / 'docs/images/performance/growth.json'  # Not there before the first measurement on a quiet machine.
  measured = json.loads(figures.read_text()) if figures.exists() else {}
  assert {path.stem for path in pictures} == measured.keys() <= curves.CURVES.keys()
  assert sum(path.stat().st_size for path in pictures) < 400_000


def test_the_page_names_settings_that_there_are():
  from official_ext.language.modeling import decoder_config
  from official_ext.training.config import definitions

  fields = {
    'trainer': definitions.TrainerConfig(),
    'runtime': definitions.RuntimeConfig(),
    'decoder': decoder_config.DecoderConfig(),
  }
  names = documents.tables(documents.read('docs/concepts/performance.md'))['setting']
  assert len(names) == 10
  for name in re.findall(r'`((?:trainer|runtime)\.\w+)', ' '.join(names)):
    owner, field = name.split('.')
    assert hasattr(fields[owner], field), name
  assert hasattr(fields['decoder'], 'remat') and hasattr(fields['decoder'], 'scan_layers')
