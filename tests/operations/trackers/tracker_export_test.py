"""Runs in trackers, filled in from their files and read back by the trackers' own readers."""

import csv
import json
import math
import os
import subprocess
import sys

import pytest

from official_ext.cli import main
from official_ext.operations.runs import notes
from tests.operations.runs import folders
from tests.training.writers import wandb_files


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  monkeypatch.setenv('MLFLOW_DISABLE_TELEMETRY', 'true')


EVENTS = (
  folders.event('start', 0),
  folders.event('train', 5, training_loss=2.0, learning_rate=0.1),
  folders.event('train', 10, training_loss=9.0, learning_rate=0.1),  # Superseded.
  folders.event('eval', 10, accuracy=0.1),
  {**folders.event('restored', 5), 'time': 1_700_000_100.0},
  {**folders.event('train', 10, training_loss='NaN', learning_rate=0.05), 'time': 1_700_000_110.5},
  {**folders.event('eval', 10, accuracy=0.75), 'time': 1_700_000_111.0},
)
LATER = {**folders.event('train', 15, training_loss=0.5, learning_rate=0.05), 'time': 1_700_000_120.0}


@pytest.fixture
def run(tmp_path):
  made = folders.make(
    tmp_path / 'runs', 'group/a', EVENTS, identity=folders.ended_process(), status='failed', error='OSError: full'
  )
  notes.change(made, ['baseline'], note='before the new data')
  return made


def add(run, *events):
  with open(run.file('events.jsonl'), 'a') as file:
    file.writelines(json.dumps(event) + '\n' for event in events)


def export(run, to, *flags):
  root = run.path[: -len(run.name) - 1]
  assert main.main(['runs', 'export', root, run.name, f'--to={to}', *flags]) == 0


@pytest.fixture(params=['files', pytest.param('sqlite', marks=pytest.mark.soak)])
def store(request, run, tmp_path):
  """An MLflow store: its address, as a flag, and the client that reads it."""
  from mlflow import tracking

  if request.param == 'sqlite':
    pytest.importorskip('sqlalchemy')
    uri = f'sqlite:///{tmp_path}/mlflow.db'
    return [f'--tracking_uri={uri}'], tracking.MlflowClient(uri)
  return [], tracking.MlflowClient(str(tmp_path / 'runs' / 'mlruns'))


def test_mlflow_has_all_once_also_of_a_run_that_goes_on(run, store):
  flags, client = store

  def found():
    (one,) = client.search_runs([client.get_experiment_by_name('official_ext').experiment_id])
    points = {
      key: sorted(
        (metric.step, metric.timestamp, metric.value) for metric in client.get_metric_history(one.info.run_id, key)
      )
      for key in one.data.metrics
    }
    return one, points

  for _ in range(2):
    export(run, 'mlflow', *flags)
    one, points = found()
    assert set(points) == {'training_loss', 'learning_rate', 'validation/accuracy'}
    assert [point[:2] for point in points['training_loss']] == [(5, 1_700_000_005_000), (10, 1_700_000_110_500)]
    assert points['training_loss'][0][2] == 2.0 and math.isnan(points['training_loss'][1][2])
    assert points['validation/accuracy'] == [(10, 1_700_000_111_000, 0.75)]
    assert one.data.params['trainer/train_steps'] == '100' and one.info.run_name == 'group/a'
    assert (one.info.status, one.info.end_time) == ('FAILED', 1_700_000_111_000)
    assert one.data.tags['baseline'] == 'true' and one.data.tags['mlflow.note.content'] == 'before the new data'
    assert one.data.tags['reason'] == 'OSError: full' and one.data.tags['git_commit'] == 'a' * 40
  first = one.info.run_id
  add(run, LATER)
  notes.change(run, ['good'], ['baseline'])
  export(run, 'mlflow', *flags)
  one, points = found()
  assert one.info.run_id == first
  assert [point[0] for point in points['training_loss']] == [5, 10, 15]
  assert 'baseline' not in one.data.tags and one.data.tags['good'] == 'true'
  # Superseded values are removed from the export.
  add(run, folders.event('restored', 10), folders.event('train', 15, training_loss=0.25))
  export(run, 'mlflow', *flags)
  one, points = found()
  assert [(step, value) for step, _, value in points['training_loss'][::2]] == [(5, 2.0), (15, 0.25)]


@pytest.mark.tensorflow
def test_mlflow_goes_on_with_what_the_run_has_written_itself(run, tmp_path):
  from mlflow import tracking

  from official_ext.training.writers import mlflow_writer

  uri = str(tmp_path / 'runs' / 'mlruns')
  writer = mlflow_writer.MlflowWriter(run.path, {}, uri)
  writer.write('train', 5, {'training_loss': 2.0})
  writer.close()
  export(run, 'mlflow')
  client = tracking.MlflowClient(uri)
  (one,) = client.search_runs([client.get_experiment_by_name('official_ext').experiment_id])
  assert [metric.step for metric in client.get_metric_history(one.info.run_id, 'training_loss')] == [5, 10]


@pytest.mark.slow
def test_wandb_has_all_once_with_the_times_of_the_run(run, tmp_path):
  for _ in range(2):
    export(run, 'wandb', '--project=mine', '--artifacts')
  add(run, LATER)
  export(run, 'wandb', '--project=mine')
  (path,) = (tmp_path / 'runs').rglob('*.wandb')
  records = list(wandb_files.records(path))
  (about,) = [record.run for record in records if record.WhichOneof('record_type') == 'run']
  assert (about.project, about.display_name, list(about.tags), about.notes) == (
    *('mine', 'group/a'),
    *(['baseline'], 'before the new data'),
  )
  assert any(item.key == 'trainer' for item in about.config.update)
  rows = []
  for record in records:
    if record.WhichOneof('record_type') == 'history':
      rows.append({'/'.join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item})
  assert [(row['global_step'], row['_timestamp']) for row in rows] == [
    (5, 1_700_000_005.0),
    (10, 1_700_000_110.5),
    (10, 1_700_000_111.0),
    (15, 1_700_000_120.0),
  ]
  assert math.isnan(float(rows[1]['training_loss'])) and rows[2]['validation/accuracy'] == 0.75
  assert [record.exit.exit_code for record in records if record.WhichOneof('record_type') == 'exit'] == [1]
  assert not [name for name in os.listdir(path.parent.parent) if name.startswith('.export')]


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
  export(run, 'csv', f'--output_dir={tmp_path}/tables')
  assert (tmp_path / 'tables' / 'group' / 'a.csv').read_bytes() == open(run.file('events.csv'), 'rb').read()


def test_mistakes_are_a_line(run, tmp_path, capsys, monkeypatch):
  folders.make(tmp_path / 'runs', 'empty')
  root = str(tmp_path / 'runs')
  for arguments, message in (
    (['export', run.path, '--to=tensorboard'], 'runs export: argument --to: invalid choice'),
    (['runs', 'export', root, 'empty', '--to=csv'], 'empty: has no events yet; nothing can be exported'),
    (
      ['runs', 'export', root, run.name, '--to=mlflow', '--tracking_uri=http://127.0.0.1:9'],
      '--to=mlflow: group/a: the',
    ),
  ):
    monkeypatch.setenv('MLFLOW_HTTP_REQUEST_MAX_RETRIES', '0')
    assert main.main(arguments) == 2
    error = capsys.readouterr().err.splitlines()
    assert [line for line in error if line.startswith(f'error: {message}')] == error[-1:], error
  for package, to in (('mlflow', 'mlflow'), ('wandb', 'wandb')):
    monkeypatch.setitem(sys.modules, package, None)
    assert main.main(['export', run.path, f'--to={to}']) == 2
    assert capsys.readouterr().err == (
      f"error: --to={to}: needs the package {package}: pip install 'official-ext[{package}]'\n"
    )


def test_it_needs_no_tensorflow(run):
  code = 'import sys; from official_ext.cli import main; main.main(sys.argv[1:]); sys.exit("tensorflow" in sys.modules)'
  subprocess.run([sys.executable, '-c', code, 'export', run.path, '--to=csv'], check=True)
