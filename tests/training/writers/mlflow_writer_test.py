"""MLflow in a local folder, read back through its client."""

import json
import math

import pytest

from official_ext.base.run_folder import tracker_logs
from official_ext.training.writers import trackers

PARAMS = {'trainer': {'train_steps': 12, 'long': 'x' * 7000}, 'task': {'sizes': [1, 2]}}


@pytest.fixture
def store(tmp_path, monkeypatch):
  """model_dir, and its runs as the client lists them."""
  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  monkeypatch.setenv('MLFLOW_DISABLE_TELEMETRY', 'true')
  from mlflow import tracking

  client = tracking.MlflowClient(str(tmp_path / 'my_run' / 'mlruns'))
  (tmp_path / 'my_run').mkdir(exist_ok=True)  # The client may have made it.

  def runs(experiment='official_ext'):
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])

  return str(tmp_path / 'my_run'), client, runs


def _history(client, run, name):
  return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]


def test_parameters_metrics_and_status(store):
  model_dir, client, runs = store
  writer = trackers.MlflowWriter(model_dir, PARAMS)
  writer.write('start', 0, {})
  (run,) = runs()
  assert (run.info.status, run.info.run_name) == ('RUNNING', 'my_run')
  writer.write('train', 5, {'training_loss': 0.5, 'text': 'left out', 'a:b': 1})
  writer.write('eval', 5, {'accuracy': 0.25, 'set': {'f1': math.nan}})
  writer.write('finished', 5, {})
  writer.close()
  (run,) = runs()
  assert run.info.status == 'FINISHED'
  assert run.data.params == {'trainer/train_steps': '12', 'trainer/long': 'x' * 6000, 'task/sizes': '[1, 2]'}
  assert _history(client, run, 'training_loss') == [(5, 0.5)]
  assert _history(client, run, 'validation/accuracy') == [(5, 0.25)]
  assert set(run.data.metrics) == {'training_loss', 'a_b', 'validation/accuracy', 'validation/set/f1'}


def test_parameters_that_mlflow_does_not_take_are_named(store, caplog):
  """Each other one arrives, and so do the metrics."""
  model_dir, client, runs = store
  long = 'n' * 120
  params = {'a:b': 1, 'a_b': 1, 'long': list(range(2000)), 'same': 1, long: {long: {long: 1}}, '..': 2, 'x[0]': 3}
  writer = trackers.MlflowWriter(model_dir, params)
  writer.write('train', 5, {'training_loss': 0.5})
  (run,) = runs()
  text = str(list(range(2000)))
  assert run.data.params == {'a_b': '1', 'long': text[:6000], 'same': '1', 'x_0_': '3'}
  assert run.data.metrics == {'training_loss': 0.5}
  assert [record.getMessage() for record in caplog.records if record.name == 'absl'] == [
    "MLflow: a_b: left out: 'a:b' has this name in MLflow",
    f'MLflow: long: cut from {len(text)} to 6000 characters',
    f'MLflow: {long[:97]}...: left out: a name of 362 characters; MLflow takes 250',
    'MLflow: ..: left out: MLflow takes no name with empty or dotted parts',
  ]


def test_a_run_resumes_under_its_id(store):
  """Killed after 10, restored at 5, with another parameter; then it fails."""
  model_dir, client, runs = store
  for steps, params in (((5, 10), PARAMS), ((10, 15), {'trainer': {'train_steps': 20}})):
    writer = trackers.MlflowWriter(model_dir, params)
    if steps[0] > 5:
      writer.write('restored', 5, {})
    for step in steps:
      writer.write('train', step, {'training_loss': float(step)})
  writer.write('failed', 15, {'error': 'OSError: disk full'})
  (run,) = runs()
  assert _history(client, run, 'training_loss') == [(5, 5.0), (10, 10.0), (10, 10.0), (15, 15.0)]
  assert _history(client, run, 'resumed_from') == [(5, 5.0)]  # The first value at 10 is superseded.
  assert (run.info.status, run.data.tags['error']) == ('FAILED', 'OSError: disk full')
  assert run.data.params['trainer/train_steps'] == '12'
  with open(f'{model_dir}/mlflow.json') as f:
    assert json.load(f)['run_id'] == run.info.run_id


def test_elsewhere_it_is_a_run_of_its_own(store, tmp_path, monkeypatch):
  model_dir, _, runs = store
  trackers.MlflowWriter(model_dir, {}).write('train', 1, {'loss': 1.0})
  monkeypatch.setenv('MLFLOW_TRACKING_URI', str(tmp_path / 'elsewhere'))
  trackers.MlflowWriter(model_dir, {}, experiment='mine', run_name='first').write('train', 2, {'loss': 1.0})
  from mlflow import tracking

  client = tracking.MlflowClient(str(tmp_path / 'elsewhere'))
  (run,) = client.search_runs([client.get_experiment_by_name('mine').experiment_id])
  assert run.info.run_name == 'first' and _history(client, run, 'loss') == [(2, 1.0)]
  assert len(runs()) == 1


def test_the_default_is_a_database_and_an_existing_file_store_is_continued(tmp_path, monkeypatch):
  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  folder = str(tmp_path)
  assert tracker_logs.mlflow_uri(folder) == f'sqlite:///{folder}/mlflow.db'
  (tmp_path / 'mlruns').mkdir()
  assert tracker_logs.mlflow_uri(folder) == f'{folder}/mlruns'
  (tmp_path / 'mlflow.db').touch()
  assert tracker_logs.mlflow_uri(folder) == f'sqlite:///{folder}/mlflow.db'
  monkeypatch.setenv('MLFLOW_TRACKING_URI', 'http://server')
  assert (
    tracker_logs.mlflow_uri(folder) == 'http://server' and tracker_logs.mlflow_uri(folder, 'file:///x') == 'file:///x'
  )


@pytest.mark.slow
def test_a_database_holds_what_a_run_logs_and_nothing_is_written_elsewhere(tmp_path, monkeypatch):
  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  (tmp_path / 'here').mkdir()
  (tmp_path / 'my_run').mkdir()
  monkeypatch.chdir(tmp_path / 'here')
  writer = trackers.MlflowWriter(str(tmp_path / 'my_run'), PARAMS)
  writer.write('train', 5, {'training_loss': 0.5})
  writer.write('diverged', 5, {'error': 'x' * 9000})
  from mlflow import tracking

  client = tracking.MlflowClient(f'sqlite:///{tmp_path}/my_run/mlflow.db')
  (run,) = client.search_runs([client.get_experiment_by_name('official_ext').experiment_id])
  assert _history(client, run, 'training_loss') == [(5, 0.5)] and run.data.params['trainer/train_steps'] == '12'
  assert (run.info.status, len(run.data.tags['error'])) == ('FAILED', 5000)
  assert run.info.artifact_uri.startswith(str(tmp_path / 'my_run' / 'mlartifacts'))
  assert not list((tmp_path / 'here').iterdir())
