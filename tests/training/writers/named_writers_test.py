"""Writers by name: which there are, their requirements, and all of them in one run that is resumed."""

import sys

import pandas as pd
import pytest

from official_ext.base import errors
from official_ext.training.config import checks
from official_ext.training.writers import builtin
from official_ext.training.writers import registry
from official_ext.training.writers import writers
from tests.training.loop import small_run


class _Mine(writers.Writer):
  """Writes the names of events to a file."""

  def __init__(self, run):
    self._path = f'{run.model_dir}/mine.txt'

  def write(self, event, step, values):
    with open(self._path, 'a') as f:
      f.write(f'{event} {step}\n')


@pytest.fixture
def mine():
  registry.register('mine')(_Mine)
  yield 'mine'
  del registry.WRITERS._values['mine']


@pytest.mark.slow
def test_all_writers_of_a_run_that_is_resumed(mine, tmp_path, monkeypatch):
  for name in ('MLFLOW_ALLOW_FILE_STORE', 'MLFLOW_DISABLE_TELEMETRY', 'WANDB_ERROR_REPORTING'):
    monkeypatch.setenv(name, {'WANDB_ERROR_REPORTING': 'false'}.get(name, 'true'))
  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  folder = tmp_path / 'run'
  trainer = {'writers': ('csv', 'mlflow', 'wandb', mine)}
  small_run.run(folder, trainer={**trainer, 'train_steps': 8})
  small_run.run(folder, trainer=trainer)
  steps = [4, 5, 6, 8, 10, 12]
  losses = {line['step']: line['training_loss'] for line in small_run.events(folder, 'train')}
  assert list(losses) == steps
  table = pd.read_csv(folder / 'train.csv', float_precision='round_trip')
  assert dict(zip(table.step, table.training_loss)) == losses
  assert list(pd.read_csv(folder / 'validation.csv').step) == [6, 8, 12]
  from mlflow import tracking

  client = tracking.MlflowClient(f'sqlite:///{folder}/mlflow.db')
  (run,) = client.search_runs([client.get_experiment_by_name('official_ext').experiment_id])
  history = client.get_metric_history(run.info.run_id, 'training_loss')
  assert {metric.step: metric.value for metric in history} == losses
  assert run.data.params['trainer/train_steps'] == '8' and run.info.status == 'FINISHED'
  assert len(list(folder.glob('wandb/offline-run-*'))) == 2
  lines = (folder / 'mine.txt').read_text().splitlines()
  assert lines[0] == 'start 0' and lines[-1] == 'finished 12' and lines.count('train 8') == 1
  assert not (folder / 'train').exists()  # TensorBoard was not named.


def test_names():
  builtin.check(('tensorboard', 'csv', 'mlflow', 'wandb'))
  builtin.check(())
  with pytest.raises(errors.UserError) as caught:
    builtin.check(('csv', 'tensorbord'))
  assert str(caught.value) == (
    "trainer.writers: no writer 'tensorbord'; did you mean tensorboard? There are csv, mlflow, tensorboard, wandb"
  )
  with pytest.raises(errors.UserError, match='trainer.writers: csv: is named twice'):
    checks.check(small_run.make_params(writers=('csv', 'csv')), 'train')
  with pytest.raises(ValueError, match="the writer 'csv' is registered already, by .*trackers.make "):
    registry.register('csv')(_Mine)


@pytest.mark.parametrize('name', ['mlflow', 'wandb'])
def test_without_the_extra(name, monkeypatch):
  monkeypatch.setitem(sys.modules, name, None)
  with pytest.raises(errors.UserError) as caught:
    builtin.check(('csv', name))
  assert str(caught.value) == f"trainer.writers: {name}: needs the package {name}: pip install 'official-ext[{name}]'"
