"""Tests for the checkpoints of a run, by their files."""

import hashlib
import json
import os

import pytest

from official_ext.base import errors
from official_ext.base.run_folder import run_files
from official_ext.operations.runs import artifacts
from tests.operations.runs import folders


def _save(folder, name, size=100, **entries):
  """The files of a checkpoint as they are saved, with their manifest."""
  folder.mkdir(parents=True, exist_ok=True)
  files = {}
  for part in ('index', 'data-00000-of-00001'):
    content = os.urandom(size)
    (folder / f'{name}.{part}').write_bytes(content)
    files[f'{name}.{part}'] = {'size': size, 'sha256': hashlib.sha256(content).hexdigest()}
  content = {'files': files, **entries}
  content['sha256'] = run_files.manifest_sum(content)
  (folder / f'{name}.manifest.json').write_text(json.dumps(content))


def test_all_kinds_with_their_sizes_and_the_best(tmp_path):
  run = folders.make(tmp_path, 'run')
  folder = tmp_path / 'run'
  for step in (100, 20):
    _save(folder, f'ckpt-{step}', num_rollbacks=0)
  for step, accuracy in ((40, 0.5), (60, 0.75)):
    _save(folder / 'best', f'best_ckpt-{step}', 1000, step=step, logs={'accuracy': accuracy})
  (folder / 'best' / 'info.json').write_text(json.dumps({'best_ckpt_global_step': 60.0, 'accuracy': 0.75}))
  _save(folder / 'ema_checkpoints', 'average_weights-3', step=90)
  found = artifacts.find_checkpoints(run)
  assert [(each.name, each.step, each.kind, each.size, each.is_best) for each in found] == [
    ('ckpt-20', 20, 'training', 200, False),
    ('ckpt-100', 100, 'training', 200, False),
    ('best/best_ckpt-40', 40, 'best', 2000, False),
    ('best/best_ckpt-60', 60, 'best', 2000, True),
    ('ema_checkpoints/average_weights-3', 90, 'average', 200, False),
  ]
  assert found[3].logs == {'accuracy': 0.75}
  assert {each.damage for each in found} == {''}
  assert abs(found[0].time - os.stat(folder / 'ckpt-20.index').st_mtime) < 1
  assert artifacts.checkpoint_path(run, '20') == str(folder / 'ckpt-20')
  assert artifacts.checkpoint_path(run, 'best/best_ckpt-60') == str(folder / 'best/best_ckpt-60')


def test_what_is_wrong_with_a_checkpoint_is_reported_and_it_is_refused(tmp_path):
  run = folders.make(tmp_path, 'run')
  folder = tmp_path / 'run'
  for step in range(1, 9):
    _save(folder, f'ckpt-{step}', num_rollbacks=int(step == 8))
  (folder / 'ckpt-1.index').write_bytes(b'short')
  (folder / 'ckpt-2.data-00000-of-00001').unlink()
  text = (folder / 'ckpt-3.manifest.json').read_text()
  (folder / 'ckpt-3.manifest.json').write_text(text.replace('100', '101'))
  (folder / 'ckpt-4.manifest.json').unlink()
  for file in list(folder.glob('ckpt-5.*')):
    file.rename(folder / file.name.replace('ckpt-5', 'ckpt-5.broken'))
  (folder / 'rollbacks.json').write_text(json.dumps([{'from_step': 7, 'to_step': 6, 'data_offset': 1}]))
  assert {each.name: each.damage for each in artifacts.find_checkpoints(run)} == {
    'ckpt-1': 'ckpt-1.index has 5 bytes instead of 100',
    'ckpt-2': 'ckpt-2.data-00000-of-00001 is missing',
    'ckpt-3': 'its manifest is damaged',
    'ckpt-4': 'it has no manifest: unfinished, or of another program',
    'ckpt-5.broken': 'it was damaged, and has been set aside',
    'ckpt-6': '',
    'ckpt-7': 'it belongs to a future that was rolled back',
    'ckpt-8': '',
  }
  for name in ('1', 'ckpt-5.broken', '9', '../run/ckpt-6', '/etc/passwd', ''):
    with pytest.raises(errors.UserError, match='--checkpoint='):
      artifacts.checkpoint_path(run, name)


@pytest.mark.parametrize('content', ['', '[]', '[1]', '{"to_step": 1}', 'null', '[{"to_step": "x"}]'])
def test_files_that_cannot_be_read_are_no_trouble(tmp_path, content):
  run = folders.make(tmp_path, 'run')
  _save(tmp_path / 'run', 'ckpt-1')
  (tmp_path / 'run' / 'rollbacks.json').write_text(content)
  (tmp_path / 'run' / 'best').mkdir()
  (tmp_path / 'run' / 'best' / 'info.json').write_text(content)
  assert [each.name for each in artifacts.find_checkpoints(run)] == ['ckpt-1']


def test_a_folder_of_the_configuration_that_leads_out_is_not_read(tmp_path):
  run = folders.make(tmp_path, 'run')
  _save(tmp_path / 'other', 'best_ckpt-1')
  params = tmp_path / 'run' / 'params.yaml'
  params.write_text('trainer:\n  best_checkpoint_export_subdir: ../other\n')
  assert artifacts.find_checkpoints(run) == []
  (tmp_path / 'run' / 'link').symlink_to(tmp_path / 'other')
  params.write_text('trainer:\n  best_checkpoint_export_subdir: link\n')
  assert artifacts.find_checkpoints(run) == []
