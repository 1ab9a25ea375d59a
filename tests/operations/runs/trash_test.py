"""Tests for trash."""

import dataclasses
import json
import os
import subprocess
import sys
import time

import pytest

from official_ext.base import errors
from official_ext.base import processes
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import statuses
from official_ext.operations.runs import trash
from tests import disks
from tests.operations.runs import folders


def _ended(root, name):
  return folders.make(root, name, status='finished', identity=folders.ended_process())


def _names(root):
  return [run.name for run in run_folders.find_runs(str(root))]


def test_a_deleted_run_can_be_brought_back_with_all_its_files(tmp_path):
  run = _ended(tmp_path, 'deep/a')
  before = sorted(os.listdir(run.path))
  each = trash.delete(str(tmp_path), run)
  assert _names(tmp_path) == []
  assert [(found.name, found.key) for found in trash.deleted(str(tmp_path))] == [('deep/a', each.key)]
  os.rmdir(tmp_path / 'deep')
  assert trash.restore(str(tmp_path), trash.find_deleted(str(tmp_path), 'deep/a')).path == run.path
  assert sorted(os.listdir(run.path)) == sorted([*before, 'started.lock'])
  assert trash.deleted(str(tmp_path)) == []
  assert os.listdir(tmp_path / '.trash') == []


def test_runs_of_one_name_stay_apart_and_nothing_is_replaced(tmp_path):
  for number in range(2):
    run = _ended(tmp_path, 'a')
    (tmp_path / 'a' / f'only{number}').touch()
    trash.delete(str(tmp_path), run)
  found = trash.deleted(str(tmp_path))
  assert [each.name for each in found] == ['a', 'a']
  _ended(tmp_path, 'a')
  with pytest.raises(errors.UserError, match='a: something exists there already; give it another name'):
    trash.restore(str(tmp_path), found[0])
  restored = trash.restore(str(tmp_path), found[1], 'b')
  assert os.path.exists(restored.file('only0'))
  assert trash.find_deleted(str(tmp_path), found[0].key).key == found[0].key
  for name in ('../out', '/tmp/out', '.hidden', '.trash/x', ''):
    with pytest.raises(errors.UserError, match='must be a name in'):
      trash.restore(str(tmp_path), found[0], name)
  trash.delete_forever(found[0])
  assert trash.deleted(str(tmp_path)) == []
  assert os.listdir(tmp_path / '.trash') == []
  with pytest.raises(errors.UserError, match='is not in the trash any more'):
    trash.delete_forever(found[0])


def test_what_lives_is_not_moved(tmp_path):
  living = folders.make(tmp_path, 'living')
  parent = _ended(tmp_path, 'parent')
  folders.make(tmp_path, 'parent/nested')
  evaluated = _ended(tmp_path, 'evaluated')
  with open(evaluated.file('run.continuous_eval.json'), 'w') as file:
    json.dump(folders.record(mode='continuous_eval'), file)
  for run, message in (
    (living, 'living: is running; stop it first'),
    (parent, 'parent/nested: is running'),
    (evaluated, 'evaluated: is finished; stop it first'),
  ):
    for act in (lambda run=run: trash.delete(str(tmp_path), run), lambda run=run: trash.archive(run)):
      with pytest.raises(errors.UserError, match=message):
        act()
  assert _names(tmp_path) == ['evaluated', 'living', 'parent', 'parent/nested']
  assert not os.path.exists(tmp_path / '.trash') or os.listdir(tmp_path / '.trash') == []


def test_of_two_processes_one_deletes(tmp_path):
  _ended(tmp_path, 'a')
  code = f"""
from official_ext.base import errors
from official_ext.operations.runs import run_folders; from official_ext.operations.runs import trash
try:
  trash.delete({str(tmp_path)!r}, run_folders.Run({str(tmp_path / 'a')!r}, 'a'))
  print('deleted')
except errors.UserError as error:
  print(error)
"""
  both = [subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
  assert sorted(process.communicate(timeout=60)[0].strip() for process in both) == [
    'a: is not there any more',
    'deleted',
  ]
  assert len(trash.deleted(str(tmp_path))) == 1


def test_of_a_link_the_link_is_deleted_and_brought_back(tmp_path):
  far = _ended(tmp_path / 'far', 'a')
  root = tmp_path / 'runs'
  root.mkdir()
  (root / 'link').symlink_to(far.path)
  trash.delete(str(root), run_folders.get_run(str(root), 'link'))
  assert _names(root) == []
  assert os.path.exists(far.file('run.json'))
  assert os.path.islink(trash.restore(str(root), trash.find_deleted(str(root), 'link')).path)
  each = trash.delete(str(root), run_folders.get_run(str(root), 'link'))
  trash.delete_forever(each)
  assert os.path.exists(far.file('run.json'))


def test_a_run_elsewhere_whose_clock_is_wrong_is_not_moved(tmp_path):
  far = dataclasses.replace(processes.own_identity(), host='far', boot_id='another', machine_id='another')
  run = folders.make(tmp_path, 'a', identity=far, heartbeat='2026-01-31T12:00:00.000Z')
  assert statuses.of_run(run).status == 'dead'
  with pytest.raises(errors.UserError, match=r'a: run.json was written \d s ago: the run continues on far'):
    trash.delete(str(tmp_path), run)
  os.utime(run.file('run.json'), (0, time.time() - 100))
  trash.delete(str(tmp_path), run)


def test_what_was_deleted_in_part_does_not_come_back_and_can_be_deleted_to_its_end(tmp_path, monkeypatch):
  run = _ended(tmp_path, 'a')
  each = trash.delete(str(tmp_path), run)
  # As after a kill: the place has its other name, and some of the files are gone.
  os.rename(each.place, f'{each.place}.deleting')
  os.remove(f'{each.place}.deleting/run/params.yaml')
  found = trash.find_deleted(str(tmp_path), 'a')
  with pytest.raises(errors.UserError, match='a: was deleted in part, and cannot come back'):
    trash.restore(str(tmp_path), found)
  trash.delete_forever(found)
  assert os.listdir(tmp_path / '.trash') == []


def test_a_full_or_missing_disk_is_reported(tmp_path):
  with disks.small(tmp_path / 'disk', kibibytes=256) as disk:
    run = _ended(disk.folder, 'a')
    each = trash.delete(str(disk.folder), _ended(disk.folder, 'b'))
    disk.fill()
    with pytest.raises(errors.StorageError, match='No space left on device'):
      trash.delete(str(disk.folder), run)
    assert _names(disk.folder) == ['a']
    trash.delete_forever(each)  # Which makes room.
    assert os.listdir(disk.folder / '.trash') == []
    disk.turn_read_only()
    with pytest.raises(errors.StorageError, match='Read-only file system'):
      trash.delete(str(disk.folder), run)
  with pytest.raises(errors.UserError, match='none: cannot be read: No such file'):
    trash.deleted(str(tmp_path / 'none'))


def test_the_folder_with_the_runs_is_not_deleted(tmp_path):
  run = _ended(tmp_path, '.')
  with pytest.raises(errors.UserError, match='is the folder with the runs'):
    trash.delete(str(tmp_path), run)


def test_an_archived_run_stays_where_it_is(tmp_path):
  run = _ended(tmp_path, 'a')
  trash.archive(run)
  assert run_folders.get_run(str(tmp_path), 'a') == run
  assert os.path.exists(run.file(trash.ARCHIVED))
  trash.unarchive(run)
  trash.unarchive(run)
  assert not os.path.exists(run.file(trash.ARCHIVED))
