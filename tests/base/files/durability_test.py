"""The order of writes to the disk, and errors of the disk."""

import errno
import os

import pytest
from tensorboard.compat.proto import event_pb2
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.base.files import whole_folders
from official_ext.training.writers import tensorboard
from official_ext.training.writers import writers
from tests import file_calls


@pytest.mark.parametrize('number', [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize('which', ['file', 'folder'])
def test_a_disk_that_may_not_have_stored_a_file_is_an_error(number, which, tmp_path):
  # Before: errors of the folder's sync were ignored, as if its file system could not sync.
  path = tmp_path / 'state.json'
  is_failing = (lambda found: 'state.json' in found) if which == 'file' else (lambda found: found == str(tmp_path))
  with file_calls.failing_syncs(is_failing, number), pytest.raises(errors.StorageError, match=os.strerror(number)):
    storage.write(str(path), 'text')
  assert os.listdir(tmp_path) == ([] if which == 'file' else ['state.json'])


@pytest.mark.parametrize('number', [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_is_no_error(number, tmp_path):
  with file_calls.failing_syncs(lambda path: True, number) as failed:
    storage.write(str(tmp_path / 'state.json'), 'text')
  assert str(tmp_path) in failed and (tmp_path / 'state.json').read_text() == 'text'


def test_the_parents_of_new_folders_are_synced(tmp_path):
  with file_calls.recorded() as calls:
    paths.make_folder(str(tmp_path / 'a/b/c'))
    storage.write(str(tmp_path / 'x/y/state.json'), 'text')
  synced = file_calls.synced(calls)
  assert {str(tmp_path / each) for each in ('', 'a', 'a/b', 'x', 'x/y')} <= {path.rstrip('/') for path in synced}


def test_a_folder_is_written_whole_in_this_order(tmp_path):
  target = str(tmp_path / 'model')

  def make(folder):
    os.makedirs(f'{folder}/inside')
    for name in ('config.json', 'inside/weights'):
      with open(f'{folder}/{name}', 'w', encoding='utf-8') as f:
        f.write('new')

  whole_folders.write(target, make)
  with file_calls.recorded() as calls:
    whole_folders.write(target, make)
  paths_in_order = file_calls.synced(calls)
  stored = calls.index(('sync', str(tmp_path)))
  partial = next(path for path in paths_in_order if path.endswith('.partial'))
  before = file_calls.synced(calls[:stored])
  assert {partial, f'{partial}/inside', f'{partial}/config.json', f'{partial}/inside/weights'} <= set(before)
  assert not [call for call in calls[:stored] if call[0] == 'remove']  # The old one stays until the new one is stored.


def test_a_folder_whose_new_name_the_disk_may_not_have_stored_is_as_it_was(tmp_path):
  target = str(tmp_path / 'model')
  whole_folders.write(target, lambda folder: open(f'{folder}/old', 'w', encoding='utf-8').close())
  with file_calls.failing_syncs(lambda path: path == str(tmp_path), errno.EIO), pytest.raises(errors.StorageError):
    whole_folders.write(target, lambda folder: open(f'{folder}/new', 'w', encoding='utf-8').close())
  assert os.listdir(target) == ['old'] and os.listdir(tmp_path) == ['model']


def test_events_that_the_disk_may_have_lost_are_written_again(tmp_path):
  path = tmp_path / 'events.jsonl'
  writer = writers.EventsWriter(str(path))
  writer.write('train', 1, {'loss': 1.0})
  writer.sync()
  kept = path.stat().st_size
  writer.write('train', 2, {'loss': 2.0})
  written = path.read_bytes()

  def lose(found):  # As a disk that fails: the system takes the pages for stored, and reports it once.
    if found == str(path):
      with open(path, 'r+b') as f:
        f.seek(kept)
        f.write(bytes(len(written) - kept))
    return found == str(path)

  with file_calls.failing_syncs(lose, errno.EIO, times=1):
    writer.sync()
  assert path.read_bytes() == written
  with file_calls.failing_syncs(lambda found: found == str(path), errno.EIO), pytest.raises(errors.StorageError):
    writer.write('eval', 2, {'accuracy': 0.5})
    writer.sync()
  with file_calls.recorded() as calls:
    writer.sync()  # Later: the same.
  assert ('sync', str(path)) in calls
  writer.close()
  assert [event['step'] for event in writers.read_events(str(path))] == [1, 2, 2]


def test_events_of_a_file_that_was_deleted_are_not_written_into_the_next_one(tmp_path):
  # Before: a sync that had failed was repaired in the new file, at an offset of the old one.
  path = tmp_path / 'events.jsonl'
  writer = writers.EventsWriter(str(path))
  for step in (1, 2):
    writer.write('train', step, {})
  with file_calls.failing_syncs(lambda found: found == str(path), errno.EIO), pytest.raises(errors.StorageError):
    writer.sync()
  path.unlink()
  writer.write('train', 3, {})
  writer.close()
  assert [event['step'] for event in writers.read_events(str(path))] == [3]


def test_numbers_that_the_disk_may_have_lost_are_written_to_another_file(tmp_path):
  # Before: only those since the last flush were.
  file = tensorboard.SummaryFile(str(tmp_path))
  file.scalar('loss', 1.0, 1)
  file.sync()
  file.scalar('loss', 2.0, 2)
  file.flush()
  file.scalar('loss', 3.0, 3)
  before = set(tmp_path.iterdir())
  with file_calls.failing_syncs(lambda path: 'events.out' in path, errno.EIO, times=1):
    file.sync()
  assert file.failure is not None
  file.scalar('loss', 4.0, 4)
  file.sync()
  assert file.failure is None
  file.scalar('loss', 5.0, 5)
  file.close()
  (another,) = set(tmp_path.iterdir()) - before
  records = [event_pb2.Event.FromString(each.numpy()) for each in tf.data.TFRecordDataset(str(another))]
  assert [record.step for record in records if record.summary.value] == [2, 3, 4, 5]
