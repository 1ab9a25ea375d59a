"""The events of runs as tables."""

import csv
import subprocess
import sys

import pytest

from official_ext.cli import main
from tests.operations.runs import folders


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


EVENTS = (
  folders.event('start', 0),
  folders.event('train', 5, training_loss=2.0, learning_rate=0.1),
  folders.event('train', 10, training_loss=9.0, learning_rate=0.1),  # Superseded.
  folders.event('eval', 10, accuracy=0.1),
  {**folders.event('restored', 5), 'time': 1_700_000_100.0},
  {**folders.event('train', 10, training_loss='NaN', learning_rate=0.05), 'time': 1_700_000_110.5},
  {**folders.event('eval', 10, accuracy=0.75), 'time': 1_700_000_111.0},
)


@pytest.fixture
def run(tmp_path):
  return folders.make(tmp_path / 'runs', 'group/a', EVENTS, identity=folders.ended_process())


def test_csv_has_a_row_for_each_event_that_stands(run, tmp_path, capsys):
  for _ in range(2):
    assert main.main(['export', run.path, '--to=csv']) == 0
  assert capsys.readouterr().out.splitlines()[-1] == f'a: 5 events: {run.path}/events.csv'
  with open(run.file('events.csv'), newline='') as file:
    rows = list(csv.DictReader(file))
  assert list(rows[0]) == ['time', 'event', 'step', 'training_loss', 'learning_rate', 'accuracy']
  assert [(row['event'], row['step']) for row in rows] == [
    *(('start', '0'), ('train', '5'), ('restored', '5'), ('train', '10'), ('eval', '10'))
  ]
  assert rows[3]['training_loss'] == 'nan' and rows[4]['accuracy'] == '0.75' and rows[4]['training_loss'] == ''
  assert float(rows[3]['time']) == 1_700_000_110.5
  root = str(tmp_path / 'runs')
  assert main.main(['runs', 'export', root, run.name, '--to=csv', f'--output_dir={tmp_path}/tables']) == 0
  assert (tmp_path / 'tables' / 'group' / 'a.csv').read_bytes() == open(run.file('events.csv'), 'rb').read()


def test_mistakes_are_a_line(run, tmp_path, capsys):
  folders.make(tmp_path / 'runs', 'empty')
  root = str(tmp_path / 'runs')
  for arguments, message in (
    (['export', run.path, '--to=mlflow'], 'runs export: argument --to: invalid choice'),
    (['runs', 'export', root, 'empty', '--to=csv'], 'empty: has no events yet; nothing can be exported'),
  ):
    assert main.main(arguments) == 2
    error = capsys.readouterr().err.splitlines()
    assert [line for line in error if line.startswith(f'error: {message}')] == error[-1:], error


def test_it_needs_no_tensorflow(run):
  code = 'import sys; from official_ext.cli import main; main.main(sys.argv[1:]); sys.exit("tensorflow" in sys.modules)'
  subprocess.run([sys.executable, '-c', code, 'export', run.path, '--to=csv'], check=True)
