"""A strategy that was made before TF_CONFIG was set does not reach the other processes, and is refused."""

import json

import pytest

from official_ext.base import errors
from tests.training.loop import small_run

ADDRESSES = ['localhost:1', 'localhost:2']


@pytest.mark.parametrize(
  'cluster',
  [
    {'worker': ADDRESSES},
    {'chief': ADDRESSES[:1], 'worker': ADDRESSES[1:]},
    {'worker': ADDRESSES[:1], 'ps': ADDRESSES[1:]},
  ],
  ids=['workers', 'chief', 'parameter servers'],
)
def test_a_strategy_of_one_process_in_a_cluster(tmp_path, monkeypatch, cluster):
  monkeypatch.setenv('TF_CONFIG', json.dumps({'cluster': cluster, 'task': {'type': 'worker', 'index': 0}}))
  with pytest.raises(
    errors.UserError, match=r'TF_CONFIG: names 2 processes, and the OneDeviceStrategy .* set TF_CONFIG'
  ):
    small_run.run(tmp_path / 'run', 'train')
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  ('cluster', 'task', 'mode'),
  [({'worker': ADDRESSES[:1]}, 'worker', 'train'), ({'worker': ADDRESSES}, 'evaluator', 'eval')],
)
def test_one_process_is_no_cluster(tmp_path, monkeypatch, cluster, task, mode):
  small_run.run(tmp_path, 'train', trainer={'train_steps': 4})
  monkeypatch.setenv('TF_CONFIG', json.dumps({'cluster': cluster, 'task': {'type': task, 'index': 0}}))
  small_run.run(tmp_path, mode, trainer={'train_steps': 8})
