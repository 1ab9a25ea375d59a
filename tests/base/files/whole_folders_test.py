"""Folders that exist whole or not at all: processes that die, others that write, storage without folders."""

import errno
import os
import pathlib
import signal

import pytest

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.base.files import whole_folders
from official_ext.training.devices import signals
from tests import file_calls


def test_a_folder_that_a_dead_process_was_about_to_replace_comes_back(tmp_path):
  folder = tmp_path / 'adapter'
  beside = tmp_path / f'.adapter.old.{os.uname().nodename}-999999999.partial'
  beside.mkdir()
  (beside / 'weights').write_text('before')

  def fails(partial):
    assert (folder / 'weights').read_text() == 'before'
    pathlib.Path(partial, 'weights').write_text('half')
    raise OSError(28, 'No space left on device')

  with pytest.raises(errors.StorageError):
    whole_folders.write(str(folder), fails)
  assert (folder / 'weights').read_text() == 'before' and os.listdir(tmp_path) == ['adapter']
  whole_folders.write(str(folder), lambda partial: pathlib.Path(partial, 'weights').write_text('after'))
  assert (folder / 'weights').read_text() == 'after' and os.listdir(tmp_path) == ['adapter']
  # Another process that is alive writes too: its files stay.
  other = tmp_path / f'.adapter.{os.uname().nodename}-{os.getppid()}.partial'
  other.mkdir()
  whole_folders.write(str(folder), lambda partial: None)
  assert other.is_dir() and os.listdir(folder) == []


def test_a_folder_is_replaced_at_once(tmp_path):
  # Before: two renames, and no folder between them, if the power failed there.
  folder = tmp_path / 'adapter'
  whole_folders.write(str(folder), lambda partial: pathlib.Path(partial, 'weights').write_text('before'))
  if not paths.exchange(str(folder), str(folder)):
    pytest.skip('this file system cannot exchange names')
  with file_calls.recorded() as calls:
    whole_folders.write(str(folder), lambda partial: pathlib.Path(partial, 'weights').write_text('after'))
  ((_, partial, target),) = [call for call in calls if call[0] == 'rename']
  assert target == str(folder) and not os.path.exists(partial)
  assert (folder / 'weights').read_text() == 'after' and os.listdir(tmp_path) == ['adapter']


def test_a_folder_is_replaced_where_names_cannot_be_exchanged(tmp_path, monkeypatch):
  monkeypatch.setattr(paths, 'exchange', lambda path, other: False)
  folder = tmp_path / 'adapter'
  for content in ('before', 'after'):
    whole_folders.write(str(folder), lambda partial, text=content: pathlib.Path(partial, 'weights').write_text(text))
    assert (folder / 'weights').read_text() == content and os.listdir(tmp_path) == ['adapter']
  with file_calls.failing_syncs(lambda path: path == str(tmp_path), errno.EIO), pytest.raises(errors.StorageError):
    whole_folders.write(str(folder), lambda partial: None)
  assert (folder / 'weights').read_text() == 'after' and os.listdir(tmp_path) == ['adapter']


def test_names_are_exchanged_or_an_error_states_why_not(tmp_path):
  for name in 'ab':
    (tmp_path / name).write_text(name)
  if paths.exchange(str(tmp_path / 'a'), str(tmp_path / 'b')):
    assert [(tmp_path / name).read_text() for name in 'ab'] == ['b', 'a']
  with pytest.raises(FileNotFoundError, match='missing'):
    paths.exchange(str(tmp_path / 'a'), str(tmp_path / 'missing'))


def test_a_folder_replaces_nothing_that_it_was_not_to(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'kept').mkdir()

  def make(partial):
    pathlib.Path(partial, 'config.json').write_text('{}')

  def make_late(partial):  # Somebody else is faster.
    make(partial)
    (tmp_path / 'kept/theirs').write_text('theirs')

  with pytest.raises(ValueError, match='empty'):
    whole_folders.write('', make)
  with pytest.raises(errors.UserError, match='kept: exists already'):
    whole_folders.write('kept', make_late, replace=False)
  assert os.listdir('kept') == ['theirs'] and os.listdir('.') == ['kept']
  os.remove('kept/theirs')
  os.symlink('kept', 'link')
  for folder in ('link', 'new'):
    whole_folders.write(folder, make, replace=False)
    assert os.listdir(folder) == ['config.json']
  whole_folders.write('link', lambda partial: None)
  assert os.listdir('kept') == [] and sorted(os.listdir('.')) == ['kept', 'link', 'new']


@pytest.mark.parametrize('replace', [False, True])
def test_a_signal_leaves_the_folder_as_it_was(tmp_path, replace):
  folder = tmp_path / 'kept'
  if replace:
    folder.mkdir()
    (folder / 'old').write_text('old')

  def make(partial):
    pathlib.Path(partial, 'new').write_text('new')
    os.kill(os.getpid(), signal.SIGTERM)
    signal.sigtimedwait([], 5)  # Returns at the signal, or never.

  before = signal.getsignal(signal.SIGTERM)
  with pytest.raises(KeyboardInterrupt), signals.interrupting():
    whole_folders.write(str(folder), make, replace=replace)
  assert signal.getsignal(signal.SIGTERM) == before
  assert os.listdir(tmp_path) == ['kept'] * replace
  assert not replace or os.listdir(folder) == ['old']


def test_a_folder_on_remote_storage_has_its_subfolders():
  def make(partial):
    for name in ('config.json', 'additional_chat_templates/tool_use.jinja'):
      pathlib.Path(partial, name).parent.mkdir(exist_ok=True)
      pathlib.Path(partial, name).write_text(name)

  folder = 'ram://whole_folders_test/model'
  whole_folders.write(folder, make, replace=False)
  assert paths.names(folder) == ['additional_chat_templates', 'config.json']
  assert paths.read(f'{folder}/additional_chat_templates/tool_use.jinja') == b'additional_chat_templates/tool_use.jinja'
  with pytest.raises(errors.UserError, match='exists already'):
    whole_folders.write(folder, make, replace=False)


def test_a_folder_on_remote_storage_has_nothing_of_the_one_before():
  folder = 'ram://whole_folders_test/weights'
  for names in (['model-00001-of-00002.safetensors', 'model.safetensors.index.json'], ['model.safetensors']):
    write = lambda partial, names=(*names, 'config.json'): [pathlib.Path(partial, name).touch() for name in names]
    whole_folders.write(folder, write)
    assert paths.names(folder) == sorted(
      [*names, 'config.json']
    )  # Before: the index, by which the old weights were read.


@pytest.mark.parametrize('can_exchange', [True, False])
@pytest.mark.parametrize('number', [1, 2])
def test_an_interrupt_between_renames_leaves_a_whole_folder(tmp_path, monkeypatch, number, can_exchange):
  # Before: the only copy was deleted, or the error said that it could not be renamed back.
  folder = tmp_path / 'adapter'
  whole_folders.write(str(folder), lambda partial: pathlib.Path(partial, 'weights').write_text('before'))
  calls = []

  def interrupted(rename):
    def call(path, other):
      done = rename(path, other)
      calls.append(path)
      if len(calls) == number:  # As a signal does: after the call, and before the next line.
        raise KeyboardInterrupt
      return done

    return call

  if can_exchange and not paths.exchange(str(folder), str(folder)):
    pytest.skip('this file system cannot exchange names')
  monkeypatch.setattr(paths, 'exchange', interrupted(paths.exchange) if can_exchange else lambda path, other: False)
  monkeypatch.setattr(os, 'rename', interrupted(os.rename))

  def write():
    whole_folders.write(str(folder), lambda partial: pathlib.Path(partial, 'weights').write_text('after'))

  if can_exchange and number == 2:  # There is only one.
    write()
  else:
    with pytest.raises(KeyboardInterrupt):
      write()
  expected = 'after' if can_exchange and number == 2 else 'before'
  assert (folder / 'weights').read_text() == expected and os.listdir(tmp_path) == ['adapter']


def test_a_second_interrupt_does_not_cost_the_folder(tmp_path, monkeypatch):
  folder = tmp_path / 'adapter'
  whole_folders.write(str(folder), lambda partial: pathlib.Path(partial, 'weights').write_text('before'))
  monkeypatch.setattr(paths, 'exchange', lambda path, other: False)
  rename, calls = os.rename, []

  def interrupted(path, other):
    calls.append(path)
    if len(calls) == 2:  # Instead of the rename back.
      raise KeyboardInterrupt
    rename(path, other)
    raise KeyboardInterrupt

  monkeypatch.setattr(os, 'rename', interrupted)
  with pytest.raises(KeyboardInterrupt):
    whole_folders.write(str(folder), lambda partial: None)
  assert len(calls) == 2 and not folder.exists()
  monkeypatch.setattr(os, 'rename', rename)

  def make(partial):
    assert (folder / 'weights').read_text() == 'before'

  whole_folders.write(str(folder), make)
  assert os.listdir(tmp_path) == ['adapter']
