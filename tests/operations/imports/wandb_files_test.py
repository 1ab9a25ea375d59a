"""Runs from the files that wandb itself writes offline."""

import math
import pathlib
import shutil

import pytest

from official_ext.operations.imports import source_runs
from official_ext.operations.imports import wandb_files
from tests.operations.imports import sources

pytest.importorskip('wandb')


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  """The files of a run that has finished, one that has failed, and one that was killed."""
  return sources.write_wandb(tmp_path_factory.mktemp('wandb'), '0', '3', 'killed')


def read(path):
  (run,) = wandb_files.find(str(path))
  return run.read()


def events(content):
  return [{key: value for key, value in each.items() if key != 'time'} for each in content.values.events(0.0)]


def test_a_run_that_has_finished(written):
  content = read(written[0])
  assert (content.name, content.experiment) == ('digits/mlp/0', 'digits')
  assert content.config == {'lr': 1.0, 'net': {'width': 4, 'activation': 'relu'}, 'api_key': 'a-secret-of-ours'}
  assert (content.tags, content.note) == (('base,line',), 'a note')
  assert (content.status, content.error, content.is_end_known, content.damage) == ('finished', '', True, ())
  found = events(content)
  assert found[0] == {'event': 'train', 'step': 0, 'loss.box': 1.0, 'step_': 7.0, 'global_step': 0.0}
  assert found[1] == {'event': 'eval', 'step': 0, 'accuracy': 0.0} and math.isnan(found[3]['accuracy'])
  assert [each['step'] for each in found] == [0, 0, 1, 1, 2, 2, 10] and found[-1]['late'] == 1.0
  first, last = content.values.ends()
  assert content.started <= first <= last < content.started + 600


def test_the_axis_of_all_metrics_is_the_step(written):
  content = read(written[1])
  assert [each['step'] for each in events(content)] == [0, 0, 100, 100, 200, 200]
  assert events(content)[4]['late'] == 1.0
  assert 'global_step' not in events(content)[0]
  assert (content.status, content.error) == ('failed', 'exit status 3')


def test_a_run_that_was_killed_has_failed(written):
  content = read(written[2])
  assert content.status == 'failed' and 'has no end' in content.error and not content.damage
  assert len(content.values) > 1000


def test_a_damaged_file_has_the_values_before_the_damage(written, tmp_path):
  content = bytearray(pathlib.Path(written[2]).read_bytes())
  content[len(content) // 2] ^= 1
  path = tmp_path / 'run-a.wandb'
  path.write_bytes(content)
  found = read(path)
  assert 0 < len(found.values) < 2000 and found.status == 'failed'
  assert len(found.damage) == 1 and found.damage[0].startswith(f'{path}: damaged at byte ')


def test_a_file_that_ends_before_its_run_is_named(written, tmp_path):
  path = tmp_path / 'run-a.wandb'
  shutil.copy(written[0], path)
  path.write_bytes(path.read_bytes()[:20])
  with pytest.raises(source_runs.UnreadableRunError, match='run-a.wandb: ends before its run begins'):
    read(path)
  path.write_bytes(b'something else')
  with pytest.raises(source_runs.UnreadableRunError, match='run-a.wandb: not a file of W&B'):
    read(path)
