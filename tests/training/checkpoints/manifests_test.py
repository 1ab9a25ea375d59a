"""Manifests: valid names, lookup, and deletion."""

import hashlib
import json
import os

import pytest
import tensorflow as tf

from official_ext.base.files import storage
from official_ext.base.run_folder import run_files
from official_ext.training.checkpoints import manifests

_ODD_NAMES = ['run[1]', 'run*', 'run?', 'run\\1']


def _save(folder, step, value=3.0):
  path = f'{folder}/ckpt-{step}'
  tf.train.Checkpoint(v=tf.Variable(value)).write(path)
  manifests.write(path, step=step)
  return path


def _rewrite(path, files):
  """A manifest that is whole, for whoever makes one can sum it up."""
  content = {'files': files, 'step': 5}
  content['sha256'] = run_files.manifest_sum(content)
  with open(path + manifests.SUFFIX, 'w') as f:
    json.dump(content, f)


@pytest.mark.parametrize('name', _ODD_NAMES)
def test_a_folder_with_an_odd_name_has_checkpoints_of_its_own(tmp_path, name):
  (tmp_path / 'run1').mkdir()
  neighbour = _save(tmp_path / 'run1', 7)
  (tmp_path / name).mkdir()
  assert manifests.complete_paths(str(tmp_path / name)) == []
  path = _save(tmp_path / name, 5, value=4.0)
  assert len(manifests.read(path)['files']) == 2 and manifests.find_damage(path) is None
  assert manifests.complete_paths(str(tmp_path / name)) == manifests.saved_paths(str(tmp_path / name)) == [path]
  variable = tf.Variable(0.0)
  tf.train.Checkpoint(v=variable).read(storage.readable_checkpoint(path)).assert_consumed()
  assert variable.numpy() == 4.0
  broken = manifests.set_aside(path)
  assert manifests.complete_paths(str(tmp_path / name)) == [] and os.path.exists(f'{broken}.index')
  (tmp_path / name / 'ckpt-6_temp').mkdir()
  (tmp_path / 'run1/ckpt-6_temp').mkdir()
  manifests.remove_unfinished(str(tmp_path / name))
  assert not (tmp_path / name / 'ckpt-6_temp').exists() and (tmp_path / 'run1/ckpt-6_temp').exists()
  again = _save(tmp_path / name, 7)
  manifests.remove(again)
  assert not os.path.exists(f'{again}.index')
  assert manifests.find_damage(neighbour) is None


def test_a_manifest_without_files_is_not_a_checkpoint(tmp_path):
  with pytest.raises(FileNotFoundError, match='ckpt-5: no files of a checkpoint'):
    manifests.write(f'{tmp_path}/ckpt-5')
  path = _save(tmp_path, 5)
  _rewrite(path, {})
  assert manifests.find_damage(path) == 'its manifest names no index, or no data'


@pytest.mark.parametrize(
  'name',
  [
    '/dev/zero',
    '../../etc/passwd',
    'ckpt-5.index/../../x',
    '.',
    '..',
    '',
    'ckpt-6.index',
    'other',
    'ckpt-5.index\n',
  ],
)
def test_a_file_that_is_not_the_checkpoints_own_is_not_read(tmp_path, name):
  path = _save(tmp_path, 5)
  files = manifests.read(path)['files']
  _rewrite(path, {**files, name: {'size': 0, 'sha256': hashlib.sha256(b'').hexdigest()}})
  assert manifests.find_damage(path) == f'its manifest names {name!r}, which is not a file of it'


def test_a_device_or_a_pipe_is_not_read(tmp_path):
  """Which is done by name alone: reading one would not end."""
  path = _save(tmp_path, 5)
  os.remove(f'{path}.index')
  os.symlink('/dev/zero', f'{path}.index')
  files = manifests.read(path)['files']
  _rewrite(path, {**files, 'ckpt-5.index': {'size': 0, 'sha256': ''}})
  assert manifests.find_damage(path) == 'ckpt-5.index is not a regular file'
  os.remove(path + manifests.SUFFIX)
  os.mkfifo(path + manifests.SUFFIX)
  assert manifests.find_damage(path) == 'ckpt-5.manifest.json is not a regular file'


@pytest.mark.parametrize('files', [None, [], 'x', {'ckpt-5.index': 3}, {'ckpt-5.index': {'size': 'x', 'sha256': ''}}])
def test_wrong_types_are_damage(tmp_path, files):
  path = _save(tmp_path, 5)
  _rewrite(path, files)
  assert manifests.find_damage(path) == 'its manifest is damaged'


@pytest.mark.parametrize('content', [b'', b'\xff', b'3', b'[]', b'[' * 100_000, b'{"sha256": []}'])
def test_a_manifest_of_anything_else_is_damaged(tmp_path, content):
  path = _save(tmp_path, 5)
  with open(path + manifests.SUFFIX, 'wb') as f:
    f.write(content)
  assert manifests.find_damage(path) == 'its manifest is damaged'


@pytest.mark.parametrize('content', [b'', b'\xff\xfe', b'model_checkpoint_path: ""', b'x' * 100])
def test_a_state_file_that_a_crash_has_left_names_nothing(tmp_path, content):
  _save(tmp_path, 5)
  (tmp_path / 'checkpoint').write_bytes(content)
  assert manifests.newest_in_state_file(str(tmp_path)) is None


def test_remains_that_cannot_be_deleted_are_not_reported_as_deleted(tmp_path):
  path = str(tmp_path / 'ckpt-10')
  manifests.begin(path)
  (tmp_path / 'ckpt-10.index' / 'something').mkdir(parents=True)
  assert manifests.remove_unfinished(str(tmp_path)) == [] and manifests.is_unfinished(path)
  (tmp_path / 'ckpt-10.index' / 'something').rmdir()
  (tmp_path / 'ckpt-10.index').rmdir()
  assert manifests.remove_unfinished(str(tmp_path)) == [path] and os.listdir(tmp_path) == []
