"""Files of one JSON value: whole, missing, damaged, too large."""

import os

import pytest

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from tests import irregular_files

VALUES = {'b': [1, None], 'a': {'ä': 'ü\udcff'}}
DAMAGED = {
  b'{"a": 1': 'is invalid JSON: Expecting',
  b'{"a": "\xff"}': 'is invalid JSON: ',
  b'{"a": ' * 100_000: 'is invalid JSON: ',  # Too deep for the parser.
  b'': 'is invalid JSON: ',
  b'[]': 'expected an object, found list',
  b'null': 'expected an object, found NoneType',
}


@pytest.fixture(name='path')
def _path(tmp_path):
  return f'{tmp_path}/values.json'


def test_what_is_written_is_read(path):
  json_values.write_file(path, VALUES)
  assert json_values.load_file(path) == json_values.read_file(path) == json_values.read_required_file(path) == VALUES
  assert os.listdir(os.path.dirname(path)) == ['values.json']


def test_a_file_is_text_for_any_reader():
  content = json_values.encode(VALUES)
  assert content.decode('ascii').endswith('}\n') and json_values.parse_object(content) == VALUES
  assert list(json_values.parse_object(json_values.encode(VALUES, sort_keys=True))) == ['a', 'b']


@pytest.mark.parametrize('content', DAMAGED, ids=lambda content: content[:9])
def test_damage_is_an_error_or_counts_as_a_missing_file(path, content):
  with open(path, 'wb') as f:
    f.write(content)
  assert json_values.read_file(path) is None
  with pytest.raises(ValueError, match=f'^{DAMAGED[content]}'):
    json_values.load_file(path)
  with pytest.raises(errors.UserError, match=rf'^data.path: {path}: {DAMAGED[content]}[^\n]*; replace the file$'):
    json_values.read_required_file(path, 'data.path')


def test_a_list_is_read_as_such(path):
  with open(path, 'wb') as f:
    f.write(json_values.encode([1, 2]))
  assert json_values.load_list_file(path) == [1, 2]
  json_values.write_file(path, {})
  with pytest.raises(ValueError, match='^expected a list, found dict$'):
    json_values.load_list_file(path)


def test_a_missing_file(path):
  assert json_values.read_file(path) is None
  for load in (json_values.load_file, json_values.load_list_file):
    with pytest.raises(FileNotFoundError):
      load(path)
  with pytest.raises(errors.UserError, match=f'^{path}: cannot be read: No such file or directory$'):
    json_values.read_required_file(path)
  with pytest.raises(errors.StorageError, match=f'^{path}/none: cannot be written: No such file or directory$'):
    json_values.write_file(f'{path}/none', {})


def test_a_file_above_the_size_is_refused(path):
  json_values.write_file(path, VALUES)
  size = os.path.getsize(path)
  assert json_values.read_file(path, size) == json_values.load_file(path, None) == VALUES
  assert json_values.read_file(path, size - 1) is None
  with pytest.raises(local_files.UnreadableError, match='is larger'):
    json_values.load_file(path, size - 1)


@pytest.mark.parametrize('kind', irregular_files.KINDS)
def test_what_is_no_file_is_not_waited_for(path, kind):
  irregular_files.put(kind, path)
  with irregular_files.seconds(10):
    assert json_values.read_file(path) is None
    with pytest.raises(errors.UserError, match=f'^{path}: cannot be read: '):
      json_values.read_required_file(path)
