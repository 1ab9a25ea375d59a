"""Cache entries are whole or missing, with several writers, and in folders that cannot be written."""

import os
import time

import pytest

from official_ext.base import errors
from official_ext.base.files import cache


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  return tmp_path / 'official_ext'


def writing(text, calls):
  def make(folder):
    calls.append(folder)
    with open(os.path.join(folder, 'content'), 'w') as f:
      f.write(text)

  return make


def content(place):
  with open(os.path.join(place, 'content')) as f:
    return f.read()


def test_an_entry_is_made_once(home):
  calls = []
  places = [cache.entry('words', 'key', writing('a', calls)) for _ in range(2)]
  assert places == [str(home / 'words' / 'key')] * 2
  assert (len(calls), content(places[0])) == (1, 'a')
  assert os.listdir(home / 'words') == ['key']


def test_keys_depend_on_values_alone():
  assert cache.key_of({'a': 1, 'b': [2]}) == cache.key_of({'b': [2], 'a': 1})
  assert len({cache.key_of(value) for value in ({'a': 1}, {'a': '1'}, {'a': True}, ['a', 1])}) == 4


def test_of_two_that_make_it_at_once_the_first_one_wins(home):
  def make(folder):
    writing('late', [])(folder)
    assert content(cache.entry('words', 'key', writing('early', []))) == 'early'  # Another process, meanwhile.

  assert content(cache.entry('words', 'key', make)) == 'early'
  assert os.listdir(home / 'words') == ['key']


def test_a_failure_leaves_nothing(home):
  def make(folder):
    writing('half', [])(folder)
    raise errors.UserError('bad')

  with pytest.raises(errors.UserError, match='bad'):
    cache.entry('words', 'key', make)
  assert os.listdir(home / 'words') == []


def test_a_cache_that_cannot_be_written_is_done_without(home, caplog):
  home.write_text('a file where the folder would be')
  place = cache.entry('words', 'key', writing('a', []))
  assert content(place) == 'a' and not place.startswith(str(home))
  assert 'cannot be kept for later runs: ' in caplog.text


def test_a_full_disk_is_reported(home, monkeypatch, tmp_path):
  def full(folder):
    raise OSError(28, 'No space left on device')

  with pytest.raises(errors.StorageError, match='TMPDIR: .*: cannot be written: No space left on device'):
    cache.entry('words', 'key', full)
  assert os.listdir(home / 'words') == []


def test_what_a_killed_process_has_left_is_removed_after_a_day(home):
  for name, age in (('key.tmp-old', 2 * 86400), ('key.tmp-new', 60), ('other', 9 * 86400)):
    (home / 'words' / name).mkdir(parents=True)
    os.utime(home / 'words' / name, (time.time() - age,) * 2)
  cache.entry('words', 'key', writing('a', []))
  assert sorted(os.listdir(home / 'words')) == ['key', 'key.tmp-new', 'other']
