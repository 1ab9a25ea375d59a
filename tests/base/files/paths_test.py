"""Paths are not patterns, links are not followed into other people's folders, `~` is a home."""

import io
import os

import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import local_files
from official_ext.base.files import paths


@pytest.fixture(params=['', 'file://', 'ram://'])
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


@pytest.mark.parametrize('content', [b'', b'a\nb', b'abcdefghij\n\nb\n', bytes(range(256)) * 4000])
def test_an_open_file_is_one_of_python(root, content):
  # Before: a remote one had no argument of readline, so that the first start of a run ended with a TypeError.
  paths.make_folder(root)
  paths.write_atomically(f'{root}/file', content)
  with paths.open_to_read(f'{root}/file') as file:
    assert list(local_files.read_lines(file, 20)) == list(local_files.read_lines(io.BytesIO(content), 20))
    assert file.seek(-min(3, len(content)), os.SEEK_END) == max(0, len(content) - 3)
    assert file.read() == content[-3:] and file.read(1) == b'' and file.seek(1) == 1 and file.read(1) == content[1:2]
    file.seek(0)
    assert file.readlines() == io.BytesIO(content).readlines()


def test_folders_are_walked_moved_and_deleted(root):
  for name in ('run/ckpt-1.index', 'run/best/deep/info.json', 'run2/f', 'run.json'):
    paths.make_folder(os.path.dirname(f'{root}/{name}'))
    paths.write_atomically(f'{root}/{name}', name.encode())
  # To ram:// these are the starts of names.
  assert paths.names(root) == ['run', 'run.json', 'run2'] and paths.names(f'{root}/run') == ['best', 'ckpt-1.index']
  assert paths.entries(root) == [('run', True), ('run.json', False), ('run2', True)]
  assert paths.is_folder(f'{root}/run') and not paths.is_folder(f'{root}/run/ckpt-1')
  assert not paths.exists(f'{root}/run/ckpt-1') and not paths.is_file(f'{root}/run/ckpt-1')
  assert paths.is_file(f'{root}/run.json') and not paths.is_file(f'{root}/run')
  assert sorted(paths.files_below(f'{root}/run')) == ['best/deep/info.json', 'ckpt-1.index']
  assert paths.folder_size(f'{root}/run') == len('run/ckpt-1.index' + 'run/best/deep/info.json')
  assert paths.size(f'{root}/run2/f') == 6 and paths.size(f'{root}/nothing') == 0
  paths.move(f'{root}/run', f'{root}/moved')
  assert sorted(paths.files_below(f'{root}/moved')) == ['best/deep/info.json', 'ckpt-1.index']
  assert paths.names(root) == ['moved', 'run.json', 'run2'] and not paths.exists(f'{root}/run')
  paths.move(f'{root}/run2/f', f'{root}/run.json')
  assert paths.read(f'{root}/run.json') == b'run2/f' and paths.names(f'{root}/run2') == []
  paths.remove_folder(f'{root}/moved')
  assert paths.names(root) == ['run.json', 'run2'] and not paths.is_folder(f'{root}/moved')
  with open(paths.local_copy(f'{root}/run.json'), 'rb') as copy:
    assert copy.read() == b'run2/f'


def test_an_empty_folder_of_the_start_of_a_name(root):
  paths.make_folder(f'{root}/ab')
  assert not paths.exists(f'{root}/a')
  paths.make_folder(f'{root}/a')
  assert paths.is_folder(f'{root}/a') and paths.names(f'{root}/a') == []


def test_urls_of_files_are_local_paths(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', '/homes/me')
  for url in ('file:///a/run', 'file://localhost/a/run', 'file:////a/run', '/a/run'):
    assert paths.local(url) == paths.absolute(url) == paths.expanded(url) == '/a/run'
    assert paths.expand_home(url, '--model_dir') == '/a/run'
  assert paths.expanded('~/run') == '/homes/me/run' and paths.local('run') == 'run'
  assert paths.absolute('gs://b/run') == paths.expanded('gs://b/run') == 'gs://b/run'
  (tmp_path / 'link').symlink_to(tmp_path / 'folder')
  assert (
    paths.real(f'file://{tmp_path}/link/') == paths.real(f'{tmp_path}/link') == os.path.realpath(tmp_path / 'folder')
  )
  assert paths.joined('gs://b/adapter', '../base') == 'gs://b/base' and paths.joined('/b/a', '../c') == '/b/a/../c'
  assert paths.joined('/b', 'gs://b/c') == paths.joined('gs://d', 'gs://b/c') == 'gs://b/c'
  assert paths.real('gs://b/run/') == 'gs://b/run' and paths.real('ram://') == 'ram://'
  with pytest.raises(errors.UserError, match="^--model_dir: file://run/1: names the host 'run'; write file:///FOLDER"):
    paths.expand_home('file://run/1', '--model_dir')


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
