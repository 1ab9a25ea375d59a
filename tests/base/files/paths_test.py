"""Paths are not patterns, links are not followed into other people's folders, `~` is a home."""

import os

import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import paths


@pytest.fixture(params=['', 'ram://'])
def root(request, tmp_path):
  return f'{request.param}{tmp_path}'


@pytest.mark.parametrize('name', ['run[1]', 'run*', 'run?', 'run\\1', 'run{1,2}', 'rün 1'])
def test_a_folder_is_listed_whatever_it_is_called(root, name):
  for folder in (f'{root}/{name}', f'{root}/run1'):
    paths.make_folder(folder)
    paths.write_atomically(f'{folder}/ckpt-{len(folder)}.index', b'x')
  folder = f'{root}/{name}'
  assert paths.matching(folder, r'ckpt-\d+\.index') == [f'{folder}/ckpt-{len(folder)}.index']
  assert paths.read(f'{folder}/ckpt-{len(folder)}.index') == b'x'


def test_what_is_not_there(root):
  assert paths.names(f'{root}/nothing') == []
  with pytest.raises(FileNotFoundError):
    paths.read(f'{root}/nothing')
  paths.make_folder(root)
  paths.write_atomically(f'{root}/file', b'')
  assert paths.names(f'{root}/file') == []
  paths.remove(f'{root}/file')
  paths.remove(f'{root}/file')
  assert 'file' not in paths.names(root)


def test_a_link_to_a_folder_is_deleted_without_what_it_leads_to(tmp_path):
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other/precious').touch()
  (tmp_path / 'ckpt-3_temp').symlink_to(tmp_path / 'other')
  paths.remove_folder(str(tmp_path / 'ckpt-3_temp'))
  assert os.listdir(tmp_path) == ['other'] and (tmp_path / 'other/precious').exists()


def test_a_write_that_fails_leaves_nothing(tmp_path):
  (tmp_path / 'run.json').mkdir()
  with pytest.raises(OSError):
    paths.write_atomically(str(tmp_path / 'run.json'), b'x')
  assert os.listdir(tmp_path) == ['run.json']


def test_home(monkeypatch):
  monkeypatch.setenv('HOME', '/homes/me')
  assert paths.expand_home('~/run', '--model_dir') == '/homes/me/run'
  assert paths.expand_home('~', '--model_dir') == '/homes/me'
  for path in ('run', './~/run', '/a/~/b', 'gs://a/~b', ''):
    assert paths.expand_home(path, '--model_dir') == path
  with pytest.raises(errors.UserError, match='--model_dir: ~nobody-here/run: there is no home folder of ~nobody-here'):
    paths.expand_home('~nobody-here/run', '--model_dir')


def test_a_remote_error_is_an_os_error():
  with pytest.raises(OSError):
    paths.write_atomically('nothing-known://a/b', b'')
  assert not tf.io.gfile.exists('/nothing-known:')


def test_a_file_that_is_written_anew_keeps_its_permissions_and_leaves_nothing_beside_it(tmp_path):
  path = tmp_path / 'notes.txt'
  path.write_text('before')
  path.chmod(0o640)
  paths.write_atomically(str(path), b'after', temporary=str(tmp_path / 'notes.tmp'), sync=True)
  assert path.read_text() == 'after' and path.stat().st_mode & 0o777 == 0o640
  assert [entry.name for entry in tmp_path.iterdir()] == ['notes.txt']
