"""make experiments: which experiments it trains, and the table."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def script():
  spec = importlib.util.spec_from_file_location('all_experiments', ROOT / 'benchmarks/all_experiments.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_every_experiment_of_this_repository_is_trained(script):
  recorded = {path.stem for path in (ROOT / 'tests/golden').glob('*.yaml')}
  assert {name.replace('/', '_') for name in script.names()} == recorded
  assert all(script.stated_result(name) for name in script.names())


def test_one_table_of_all_runs(script, monkeypatch, capfd, tmp_path):
  flags = ['--set=train_steps=4', '--set=steps_per_loop=4', '--set=trainer.validation_interval=4',
           '--set=runtime.enable_xla=false', '--set=model.hidden_sizes=[8]']
  monkeypatch.setattr(script, 'names', lambda: ['digits_mlp'])
  monkeypatch.setattr(sys, 'argv', ['all_experiments.py', f'--folder={tmp_path}', *flags])
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
  assert script.main() == 1  # A field that is not there ends the run.
  head, row = capfd.readouterr().out.splitlines()[-2:]
  assert head.split() == ['experiment', 'seconds', 'result', 'stated']
  assert 'failed with status 2' in row
  flags[-1] = '--set=task.model.hidden_sizes=[8]'
  monkeypatch.setattr(sys, 'argv', ['all_experiments.py', f'--folder={tmp_path}', *flags])
  assert script.main() == 0
  head, row = capfd.readouterr().out.splitlines()[-2:]
  assert row.startswith('digits_mlp ') and 'accuracy 0.' in row and row.endswith(' %.')
  assert row.index('accuracy 0.') == head.index('result') and row.index('validation accuracy') == head.index('stated')
