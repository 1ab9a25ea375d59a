"""make experiments: which experiments it trains, and the table."""

import contextlib
import importlib.util
import pathlib
import re
import subprocess
import sys
import types

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
  lines = [(name, line) for name in script.names() for line in ('Result', 'Reference')]
  assert [(name, line) for name, line in lines if not script.stated(name, line)] == []  # Of each docstring.


def test_a_command_that_reads_a_run_comes_after_it(script, monkeypatch, tmp_path):
  names = script.names()
  assert names.index('distillation_teacher') < names.index('distillation')
  assert script.own_flags('digits') == []
  commands = []
  monkeypatch.setattr(script, '_run', lambda command, minutes: commands.append(command) or 'failed: not run')
  script.run('distillation', tmp_path, ['--set=train_steps=4'])
  teacher = f'--set=task.teacher_checkpoint={tmp_path}/distillation_teacher'
  assert commands[0][-3:] == [f'--model_dir={tmp_path}/distillation', teacher, '--set=train_steps=4']


def test_a_run_that_takes_too_long_is_stopped(script):
  outcome = script._run([sys.executable, '-c', 'import time; time.sleep(60)'], minutes=0.01)
  assert outcome == 'failed: stopped after 0.01 minutes'


@pytest.fixture
def forked(script, train_server, monkeypatch, tmp_path):
  """The script's commands run in processes that are forked from one that has TensorFlow imported."""

  @contextlib.contextmanager
  def start(command):
    assert command[:2] == [sys.executable, str(ROOT / 'train.py')]
    yield train_server().start(command[2:], tmp_path / 'output')

  monkeypatch.setattr(
    script, 'subprocess', types.SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)
  )


def table_in(output):
  lines = output.splitlines()
  return lines[max(i for i, line in enumerate(lines) if line.startswith('experiment ')) :]


@pytest.mark.slow
def test_one_table_of_all_runs(script, forked, monkeypatch, capfd, tmp_path):
  flags = [
    '--set=train_steps=4',
    '--set=steps_per_loop=4',
    '--set=trainer.validation_interval=4',
    '--set=runtime.enable_xla=false',
    '--set=model.hidden_sizes=[8]',
  ]
  monkeypatch.setattr(script, 'names', lambda: ['digits_mlp'])
  monkeypatch.setattr(sys, 'argv', ['all_experiments.py', f'--folder={tmp_path}', *flags])
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
  assert script.main() == 1  # A field that does not exist ends the run.
  head, *rows = table_in(capfd.readouterr().out)
  assert head.split() == ['experiment', 'seconds', 'result', 'stated', 'reference']
  assert 'failed with status 2' in rows[0]
  flags[-1] = '--set=task.model.hidden_sizes=[8]'
  monkeypatch.setattr(sys, 'argv', ['all_experiments.py', f'--folder={tmp_path}', *flags])
  assert script.main() == 0
  head, *rows = table_in(capfd.readouterr().out)
  assert rows[0].startswith('digits_mlp ')
  assert [row[: head.index('result')].strip() for row in rows[1:]] == [''] * (len(rows) - 1)
  columns = [head.index(name) for name in ('result', 'stated', 'reference')]
  result, stated, reference = (
    ' '.join(' '.join(row[start:end] for row in rows).split()) for start, end in zip(columns, [*columns[1:], None])
  )
  assert re.match(r'accuracy 0\.\d+ validation_loss \d', result)
  assert (stated, reference) == (script.stated('digits_mlp', 'Result'), script.stated('digits_mlp', 'Reference'))
