"""Weights & Biases offline: the contents of its files."""

import json
import math
import sys
import time

import pytest

from official_ext.base import errors
from official_ext.training.config import checks
from official_ext.training.writers import trackers
from tests.training.loop import small_run
from tests.training.writers import wandb_files


def _read(path):
  """(run, rows of metrics, exit codes) of a file, which W&B's own process completes in a moment."""
  deadline = time.monotonic() + 120
  while not (found := _read_now(path))[2] and time.monotonic() < deadline:
    time.sleep(0.1)
  return found


def _read_now(path):
  runs, rows, exits = [], [], []
  for record in wandb_files.records(path):
    kind = record.WhichOneof('record_type')
    if kind == 'run':
      runs.append(record.run)
    elif kind == 'history':
      row = {item.key or '/'.join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
      rows.append({key: value for key, value in row.items() if not key.startswith('_')})
    elif kind == 'exit':
      exits.append(record.exit.exit_code)
  return runs[0] if runs else None, rows, exits


@pytest.mark.slow
def test_offline(tmp_path):
  """Killed and started again: two files of one run."""
  folder = tmp_path / 'my_run'
  folder.mkdir()
  writer = trackers.WandbWriter(str(folder), {'trainer': {'train_steps': 12}}, project='digits')
  writer.write('start', 0, {'devices': 'CPU'})
  writer.write('train', 5, {'training_loss': 0.5, 'text': 'left out'})
  writer.write('eval', 5, {'accuracy': 0.25, 'set': {'f1': math.nan}})
  writer.write('finished', 5, {})
  writer.close()
  writer = trackers.WandbWriter(str(folder), {'trainer': {'train_steps': 12}}, project='digits')
  writer.write('restored', 3, {})
  writer.write('train', 4, {'training_loss': 0.75})
  writer.write('failed', 4, {'error': 'OSError: disk full'})
  writer.close()
  first, second = sorted(folder.glob('wandb/offline-run-*/*.wandb'), key=lambda path: path.parent.name)
  run, rows, exits = _read(first)
  assert (run.project, run.display_name) == ('digits', 'my_run')
  assert {item.key: json.loads(item.value_json) for item in run.config.update}['trainer'] == {'train_steps': 12}
  assert [{name: value for name, value in row.items() if name != 'validation/set/f1'} for row in rows] == [
    {'training_loss': 0.5, 'global_step': 5},
    {'validation/accuracy': 0.25, 'global_step': 5},
  ]
  assert str(rows[1]['validation/set/f1']).lower() == 'nan' and exits == [0]
  again, rows, exits = _read(second)
  assert again.run_id == run.run_id == (folder / 'wandb_run_id').read_text().strip()
  assert rows == [{'resumed_from': 3, 'global_step': 3}, {'training_loss': 0.75, 'global_step': 4}] and exits == [1]


def test_online_without_a_key(tmp_path, monkeypatch):
  """It does not request one."""
  for name in ('HOME', 'NETRC', 'WANDB_CONFIG_DIR'):
    monkeypatch.setenv(name, str(tmp_path / name))
  monkeypatch.delenv('WANDB_API_KEY', raising=False)
  params = small_run.make_params(writers=('wandb',), wandb={'mode': 'online'})
  with pytest.raises(errors.UserError, match='^trainer.wandb.mode: online, and there is no key .* set WANDB_API_KEY'):
    checks.check(params, 'train')
  checks.check(small_run.make_params(wandb={'mode': 'online'}), 'train')


def test_online_without_the_package(monkeypatch):
  # Before: the ImportError of the search for a key took the place of the line with the package to install.
  monkeypatch.setitem(sys.modules, 'wandb', None)
  params = small_run.make_params(writers=('wandb',), wandb={'mode': 'online'})
  with pytest.raises(errors.UserError, match=r'^trainer.writers: wandb: needs the package wandb: pip install'):
    checks.check(params, 'train')
