"""Whether a training lives, by its folder: numbers used again, containers, other hosts, broken files."""

import json
import time

import pytest

from official_ext.base import processes
from official_ext.base.run_folder import run_status

_OTHER_BOOT = '00000000-0000-4000-8000-000000000000'
_ELSEWHERE = {'host': 'elsewhere', 'boot_id': _OTHER_BOOT}


def _write(folder, **values):
  record = {'status': 'running', 'step': 3, 'attempt': 1, 'heartbeat': '1', **processes.own_identity().as_dict()}
  record.update(values)
  (folder / 'run.json').write_text(json.dumps(record))


def _watch(folder, train_steps=3):
  return run_status.TrainingWatch(str(folder), train_steps, silence_seconds=0.3)


def _ends(watch, seconds=5.0):
  deadline = time.monotonic() + seconds
  while not watch.has_ended():
    if time.monotonic() > deadline:
      return False
    time.sleep(0.02)
  return True


def test_a_number_that_is_used_again_does_not_keep_a_dead_training_alive(tmp_path):
  _write(tmp_path)
  watch = _watch(tmp_path)
  assert not watch.has_ended()
  _write(tmp_path, pid_start=processes.own_identity().pid_start - 1)  # This process now has the number of the dead one.
  assert watch.has_ended()


def test_a_training_whose_launcher_is_about_to_restart_it_has_not_ended(tmp_path):
  own = processes.own_identity()
  _write(tmp_path, pid_start=own.pid_start - 1, launcher=own.as_dict())
  assert not _watch(tmp_path).has_ended()
  _write(tmp_path, pid_start=own.pid_start - 1, launcher={**own.as_dict(), 'pid_start': own.pid_start - 1})
  assert _watch(tmp_path).has_ended()


@pytest.mark.parametrize('where', [{'pid_namespace': 'pid:[1]'}, _ELSEWHERE], ids=['container', 'host'])
def test_a_training_that_cannot_be_seen_lives_while_its_heart_beats(tmp_path, where):
  _write(tmp_path, pid=2**22, step=0, **where)  # In this namespace the number is nobody's.
  watch = _watch(tmp_path, train_steps=8)
  for beat in range(10):
    _write(tmp_path, pid=2**22, heartbeat=str(beat), **where)
    assert not watch.has_ended()
    time.sleep(0.1)
  assert _ends(watch)


def test_a_training_that_was_dead_before_the_watch_began_is_awaited_until_it_resumes(tmp_path, capsys):
  _write(tmp_path, **_ELSEWHERE)
  watch = _watch(tmp_path, train_steps=8)
  assert not _ends(watch, seconds=0.6)
  assert 'has ended at step 3 of 8' in capsys.readouterr().out
  _write(tmp_path, attempt=2, step=0, **_ELSEWHERE)
  assert not watch.has_ended()
  assert _ends(watch)


def test_a_record_without_heartbeats_is_judged_by_its_status(tmp_path):
  _write(tmp_path, heartbeat=0)
  (tmp_path / 'run.json').write_text(json.dumps({'status': 'running', 'step': 3, 'attempt': 1, 'pid': 1, 'host': 'x'}))
  watch = _watch(tmp_path)
  assert not _ends(watch, seconds=0.5)
  _write(tmp_path, status='finished')
  assert watch.has_ended()


@pytest.mark.parametrize(
  'content',
  [
    b'',
    b'{',
    b'[]',
    b'null',
    b'\xff\xfe\x00',
    b'{"status": 3}',
    b'{"status": "running", "attempt": "two"}',
    b'{"status": "running", "step": [], "attempt": 1}',
    b'{"status": "gone", "attempt": 1}',
    b'[' * 100_000,
  ],
)
def test_a_record_of_wrong_types_is_none(tmp_path, content):
  (tmp_path / 'run.json').write_bytes(content)
  assert run_status.read(str(tmp_path)) is None
  assert not run_status.is_ours(str(tmp_path), 'train')
  assert not _watch(tmp_path).has_ended()


def test_a_folder_in_place_of_the_record_is_none(tmp_path):
  (tmp_path / 'run.json').mkdir()
  assert run_status.read(str(tmp_path)) is None


def test_a_run_is_ours_by_more_than_its_number(tmp_path):
  _write(tmp_path)
  assert run_status.is_ours(str(tmp_path), 'train')
  _write(tmp_path, pid_start=1)
  assert not run_status.is_ours(str(tmp_path), 'train')
