"""One training a folder: real processes, killed, forked and all at once; leases where there are no locks."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from official_ext.base import errors
from official_ext.base import processes as processes_lib
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import run_lock

_OTHER_BOOT = '00000000-0000-4000-8000-000000000000'
# Holds the lock until its stdin ends; `refused: ...` where it is not given it.
_HOLD = """
import sys
from official_ext.base import errors
from official_ext.base.files import local_files
from official_ext.base.run_folder import run_lock
lock = run_lock.RunLock(sys.argv[1], 'train_and_eval', silence_seconds=float(sys.argv[2]))
if sys.argv[3] == 'lease':
  local_files.fcntl = None  # As on a file system without locks.
try:
  lock.acquire()
except errors.UserError as error:
  sys.exit(f'refused: {error}')
print('held', flush=True)
sys.stdin.read()
lock.release()
"""
_ORPHAN = _HOLD.replace(
  "print('held'",
  """import os, time
if not os.fork():
  os.close(1)
  time.sleep(20)
  os._exit(0)
print('held'""",
)


@pytest.fixture
def hold():
  """hold(folder, kind, code, seconds) -> a process that has taken the lock, or tried to."""
  started = []

  def start(folder, kind='lock', code=_HOLD, seconds=0.5):
    started.append(
      subprocess.Popen(
        [sys.executable, '-c', code, str(folder), str(seconds), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
    )
    return started[-1]

  yield start
  for process in started:
    process.kill()
    process.wait()


def _is_held(process):
  return process.stdout.readline() == 'held\n'


def _finish(process):
  process.stdin.close()
  assert process.wait() == 0


def _lease(folder, **changes):
  """The files of another process."""
  process = dataclasses.replace(processes_lib.own_identity(), **changes)
  lease = {**process.as_dict(), 'mode': 'train', 'since': 'yesterday', 'token': 'x', 'heartbeat': '1'}
  (folder / run_lock.NAME).write_text(json.dumps(lease))


@pytest.fixture(params=['lock', 'lease'])
def kind(request, monkeypatch):
  """With locks, and as on a file system without."""
  if request.param == 'lease':
    monkeypatch.setattr(local_files, 'fcntl', None)
    monkeypatch.setattr(run_lock, '_SETTLE_SECONDS', 0.2)
  return request.param


def test_a_second_training_is_refused_in_a_line_that_names_the_first(tmp_path, kind, hold):
  folder, name = tmp_path / 'run', f'{tmp_path}/run'
  first = hold(name, kind)
  assert _is_held(first)
  before = sorted((path.name, path.read_bytes()) for path in folder.iterdir())
  for refuse in (lambda: run_lock.check_free(name), run_lock.RunLock(name, silence_seconds=0.5).acquire):
    with pytest.raises(errors.UserError) as refused:
      refuse()
    assert f'process {first.pid} on ' in str(refused.value) and '--mode=train_and_eval' in str(refused.value)
    assert '\n' not in str(refused.value)
  assert before == sorted((path.name, path.read_bytes()) for path in folder.iterdir())
  _finish(first)
  assert not list(folder.iterdir())  # An ended run leaves nothing.
  run_lock.check_free(name)
  lock = run_lock.RunLock(name, silence_seconds=0.5)
  lock.acquire()
  lock.release()


def test_a_lock_dies_with_its_process_and_the_next_training_begins_at_once(tmp_path, kind, hold):
  folder, name = tmp_path / 'run', f'{tmp_path}/run'
  first = hold(name, kind)
  assert _is_held(first)
  first.kill()
  first.wait()
  assert (folder / run_lock.NAME).exists()
  start = time.monotonic()
  run_lock.check_free(name)
  lock = run_lock.RunLock(name)
  lock.acquire()
  assert time.monotonic() - start < 1.5
  lock.release()


def test_a_child_that_outlives_a_killed_training_does_not_hold_its_lock(tmp_path, hold):
  first = hold(tmp_path, code=_ORPHAN)
  assert _is_held(first)
  first.kill()
  first.wait()
  lock = run_lock.RunLock(str(tmp_path))
  lock.acquire()
  lock.release()


def test_of_trainings_that_begin_together_one_gets_the_folder(tmp_path, kind, hold):
  processes = [hold(tmp_path / 'run', kind, seconds=1) for _ in range(4)]
  held = [_is_held(process) for process in processes]
  assert sum(held) == 1
  for process, is_held in zip(processes, held):
    if is_held:
      _finish(process)
    else:
      assert 'refused: --model_dir=' in process.stderr.read()


def test_a_lease_of_another_host_counts_while_it_changes(tmp_path):
  _lease(tmp_path, host='elsewhere', boot_id=_OTHER_BOOT, pid=4711)
  path = tmp_path / run_lock.NAME

  def beat():
    time.sleep(0.4)
    path.write_text(path.read_text().replace('"heartbeat": "1"', '"heartbeat": "2"'))

  thread = threading.Thread(target=beat)
  thread.start()
  with pytest.raises(errors.UserError, match='process 4711 on elsewhere'):
    run_lock.RunLock(str(tmp_path), silence_seconds=30).acquire()
  thread.join()
  assert json.loads(path.read_text())['pid'] == 4711


def test_a_lease_of_a_host_that_crashed_ends_when_it_stays_silent(tmp_path, caplog):
  _lease(tmp_path, host='elsewhere', boot_id=_OTHER_BOOT, pid=4711)
  run_lock.check_free(str(tmp_path))  # Not certain.
  lock = run_lock.RunLock(str(tmp_path), silence_seconds=0.6)
  start = time.monotonic()
  lock.acquire()
  assert time.monotonic() - start >= 0.6
  assert 'process 4711 on elsewhere' in caplog.text
  assert json.loads((tmp_path / run_lock.NAME).read_text())['pid'] == os.getpid()
  lock.release()


def test_a_lease_from_before_this_machine_was_started_is_over_at_once(tmp_path, monkeypatch):
  here = dataclasses.replace(processes_lib.own_identity(), pid_namespace='pid:[4026531836]')
  monkeypatch.setattr(processes_lib, 'own_identity', lambda: here)  # Tests may themselves be in a container.
  _lease(tmp_path, boot_id=_OTHER_BOOT)
  lock = run_lock.RunLock(str(tmp_path))
  lock.acquire()
  lock.release()


def test_a_signal_ends_the_wait_for_another_host(tmp_path):
  _lease(tmp_path, host='elsewhere', boot_id=_OTHER_BOOT)
  with pytest.raises(errors.PreemptedError, match='SIGTERM'):
    run_lock.RunLock(str(tmp_path)).acquire(lambda: 'SIGTERM')


@pytest.mark.parametrize('content', [b'', b'{', b'[]', b'\xff\xfe', b'{"pid": "x"}'])
def test_an_empty_lock_file_is_no_obstacle_where_locks_work(tmp_path, content):
  (tmp_path / run_lock.NAME).write_bytes(content)
  run_lock.check_free(str(tmp_path))
  lock = run_lock.RunLock(str(tmp_path))
  lock.acquire()
  lock.release()
  assert not list(tmp_path.iterdir())


def test_a_folder_for_a_lock_file_is_reported(tmp_path):
  (tmp_path / run_lock.NAME).mkdir()
  with pytest.raises(errors.UserError, match='cannot be written: Is a directory'):
    run_lock.RunLock(str(tmp_path)).acquire()


def test_a_training_whose_folder_was_taken_stops(tmp_path):
  """As after a laptop was asleep for longer than the silence that other hosts put up with."""
  lock = run_lock.RunLock(str(tmp_path), beat_seconds=0.02)
  lock.acquire()
  lock.check()
  _lease(tmp_path, host='elsewhere', pid=4711)
  deadline = time.monotonic() + 60
  while not lock.is_lost and time.monotonic() < deadline:
    time.sleep(0.01)
  with pytest.raises(errors.LockLostError, match='process 4711 on elsewhere'):
    lock.check()
  lock.release()
  assert json.loads((tmp_path / run_lock.NAME).read_text())['pid'] == 4711  # The other's stays.


def test_a_heartbeat_that_hangs_writes_nothing_after_the_release(tmp_path, monkeypatch):
  # Before: it wrote a lease again, over that of the next training.
  lock = run_lock.RunLock(str(tmp_path))
  lock.acquire()
  hangs, resumes, read = threading.Event(), threading.Event(), run_lock._read_lease

  def hang(path):
    lease = read(path)
    if threading.current_thread() is beat:
      hangs.set()
      resumes.wait(60)
    return lease

  monkeypatch.setattr(run_lock, '_read_lease', hang)
  beat = threading.Thread(target=lock._beat)
  beat.start()
  assert hangs.wait(60)
  lock.release()
  next_one = run_lock.RunLock(str(tmp_path))
  next_one.acquire()
  lease = (tmp_path / run_lock.NAME).read_bytes()
  resumes.set()
  beat.join()
  assert (tmp_path / run_lock.NAME).read_bytes() == lease
  next_one.release()
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_lock_file_that_somebody_deleted_comes_back(tmp_path, hold):
  lock = run_lock.RunLock(str(tmp_path), beat_seconds=0.02)
  lock.acquire()
  first = (tmp_path / run_lock.NAME).read_bytes()
  (tmp_path / run_lock.NAME).unlink()
  deadline = time.monotonic() + 60
  while time.monotonic() < deadline:
    if (tmp_path / run_lock.NAME).exists() and (tmp_path / run_lock.NAME).read_bytes().strip():
      break
    time.sleep(0.01)
  assert len((tmp_path / run_lock.NAME).read_bytes()) == len(first)
  second = hold(tmp_path)
  second.stdin.close()
  assert f'process {os.getpid()} on ' in second.stderr.read()
  lock.release()


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_remote_file_system_has_leases(monkeypatch):
  monkeypatch.setattr(run_lock, '_SETTLE_SECONDS', 0.1)
  folder = 'ram://runs/1'
  lock = run_lock.RunLock(folder, beat_seconds=0.05, silence_seconds=0.5)
  lock.acquire()
  first = paths.read(f'{folder}/{run_lock.NAME}')
  with pytest.raises(errors.UserError, match=f'process {os.getpid()} on '):
    run_lock.check_free(folder)
  deadline = time.monotonic() + 60
  while paths.read(f'{folder}/{run_lock.NAME}') == first and time.monotonic() < deadline:
    time.sleep(0.01)
  assert paths.read(f'{folder}/{run_lock.NAME}') != first  # It beats.
  lock.release()
  assert paths.names(folder) == []
  run_lock.check_free(folder)


def test_a_training_that_was_asleep_looks_before_it_writes(tmp_path):
  # Before: it saved over the other's files until its heartbeat had come, up to ten seconds later.
  lock = run_lock.RunLock(str(tmp_path), beat_seconds=1000, silence_seconds=0.2)
  lock.acquire()
  time.sleep(0.15)
  lock.check()
  _lease(tmp_path, host='elsewhere', pid=4711)
  time.sleep(0.15)
  with pytest.raises(errors.LockLostError, match='process 4711 on elsewhere'):
    lock.check()
  assert lock.is_lost
  lock.release()
