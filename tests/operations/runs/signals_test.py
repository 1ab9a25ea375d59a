"""Tests for signals: real processes."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from official_ext.base import errors
from official_ext.base import processes
from official_ext.base.run_folder import run_status
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses
from tests import disks
from tests.operations.runs import folders

_CODE = """
import signal, sys
def stop(number, frame):
  print('TERM', flush=True)
signal.signal(signal.SIGTERM, stop)
print('ready', flush=True)
for line in sys.stdin: pass
"""


@pytest.fixture
def process():
  """A process that reports SIGTERM and continues, and its identity."""
  child = subprocess.Popen(
    [sys.executable, '-S', '-c', _CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  )
  assert child.stdout.readline() == 'ready\n'
  child.identity = dataclasses.replace(processes.own_identity(), pid=child.pid, pid_start=processes.start_of(child.pid))
  yield child
  child.kill()
  child.communicate()


def test_a_run_is_asked_once_and_shown_as_stopping(tmp_path, process):
  run = folders.make(tmp_path, 'a', identity=process.identity)
  assert run_processes.stop_run(run).status == 'stopping'
  assert process.stdout.readline() == 'TERM\n'
  assert run_processes.stop_run(run).status == 'stopping'
  process.stdin.close()
  process.stdin = None
  assert process.stdout.read() == ''  # A second signal would have cost it its save.
  assert run_processes.wait_for_end(run, 60)
  assert statuses.of_run(run).status == 'dead'


def test_a_copy_of_the_folder_of_a_living_run_does_not_stop_it(tmp_path, process):
  folder = tmp_path / 'a'
  folder.mkdir()
  started = {**process.identity.as_dict(), 'started': '2026-01-01T00:00:00Z', 'ended': None, 'exit_status': None}
  (folder / 'started.json').write_text(json.dumps(started))
  run = folders.make(tmp_path, 'a', identity=process.identity, folder_number=run_status.folder_number(str(folder)))
  shutil.copytree(run.path, tmp_path / 'b')
  copy = run_folders.Run(str(tmp_path / 'b'), 'b')
  with pytest.raises(errors.UserError, match='b: does not run: dead .the folder was copied while'):
    run_processes.stop_run(copy, now=True)
  assert not statuses.is_alive(copy)
  os.rename(run.path, tmp_path / 'moved')
  moved = run_folders.Run(str(tmp_path / 'moved'), 'moved')
  assert run_processes.stop_run(moved).status == 'stopping'
  assert process.stdout.readline() == 'TERM\n'


def test_of_many_who_stop_a_run_at_once_one_signal_comes(tmp_path, process):
  run = folders.make(tmp_path, 'a', identity=process.identity)
  threads = [threading.Thread(target=run_processes.stop_run, args=(run,)) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  process.stdin.close()
  process.stdin = None
  assert process.stdout.read() == 'TERM\n'


def test_a_suspended_run_hangs_and_hears_that_it_is_to_stop(tmp_path, process):
  run = folders.make(tmp_path, 'a', identity=process.identity)
  os.kill(process.pid, signal.SIGSTOP)
  os.waitpid(process.pid, os.WUNTRACED)
  found = statuses.of_run(run)
  assert (found.status, found.is_alive) == ('hung', True)
  assert found.reason == f'suspended by a signal; `kill -CONT {process.pid}` resumes it'
  assert run_processes.stop_run(run).status == 'stopping'
  assert process.stdout.readline() == 'TERM\n'


def test_now_ends_it_at_once(tmp_path, process):
  run = folders.make(tmp_path, 'a', identity=process.identity)
  run_processes.stop_run(run, now=True)
  assert process.wait(60) == -signal.SIGKILL
  assert statuses.of_run(run) == statuses.RunStatus('dead', 'was ended at once, as requested')


def test_a_run_on_a_full_disk_is_stopped(tmp_path, process):
  with disks.small(tmp_path / 'disk', kibibytes=128) as disk:
    run = folders.make(disk.folder, 'a', identity=process.identity)
    disk.fill()
    assert run_processes.stop_run(run).status == 'running'  # That it was asked cannot be noted.
    assert process.stdout.readline() == 'TERM\n'


def test_a_process_of_which_only_the_number_is_known_is_no_runs(tmp_path, process):
  identity = dataclasses.replace(process.identity, pid_start=None, boot_id=None, pid_namespace=None)
  run = folders.make(tmp_path, 'a', identity=identity)
  assert statuses.of_run(run).is_alive is None  # Its heartbeat is new.
  with pytest.raises(errors.UserError, match=rf'of an older version, .*look at it, and kill {process.pid}'):
    run_processes.stop_run(run)
  old = folders.make(tmp_path, 'b', identity=identity, heartbeat='2026-01-31T12:00:00.000Z')
  assert statuses.of_run(old).status == 'dead'
  assert not statuses.is_alive(old)
  done = folders.make(tmp_path, 'c', identity=identity, status='finished')
  assert not statuses.is_alive(done)
  assert process.poll() is None


def test_the_end_of_the_process_that_was_stopped_is_waited_for(tmp_path, process):
  run = folders.make(tmp_path, 'a', identity=process.identity)
  with open(run.file('run.continuous_eval.json'), 'w') as file:
    json.dump(folders.record(mode='continuous_eval'), file)  # This process, which continues.
  assert not run_processes.wait_for_end(run, 0.1, process.identity)
  process.kill()
  assert run_processes.wait_for_end(run, 60, process.identity)
  assert not run_processes.wait_for_end(run, 0.1)


@pytest.mark.parametrize('change', [{'pid_start': 1}, {'pid_start': None}, {'boot_id': '0-0'}])
def test_a_process_that_only_has_the_number_is_not_hit(process, change):
  with pytest.raises(errors.UserError, match='has ended'):
    run_processes.send_signal(dataclasses.replace(process.identity, **change), signal.SIGKILL, 'a')
  assert process.poll() is None


def test_what_does_not_run_or_runs_elsewhere_is_refused(tmp_path, process):
  ended = folders.make(tmp_path, 'ended', identity=folders.ended_process())
  with pytest.raises(errors.UserError, match='ended: does not run: dead'):
    run_processes.stop_run(ended)
  done = folders.make(tmp_path, 'done', status='finished')
  with pytest.raises(errors.UserError, match='done: does not run: finished'):
    run_processes.stop_run(done)
  far = dataclasses.replace(process.identity, host='far', boot_id='another', machine_id='another')
  run = folders.make(tmp_path, 'far', identity=far)
  with pytest.raises(errors.UserError, match=r'far: cannot be stopped from here: it is process \d+ on far'):
    run_processes.stop_run(run)
  assert process.poll() is None
  assert not os.path.exists(run.file('stop.json'))


def test_the_signal_goes_to_the_launcher(tmp_path, process):
  worker = subprocess.Popen(['sleep', '600'])
  try:
    identity = dataclasses.replace(processes.own_identity(), pid=worker.pid, pid_start=processes.start_of(worker.pid))
    run = folders.make(tmp_path, 'a', identity=identity, launcher={**process.identity.as_dict(), 'command': 'x'})
    run_processes.stop_run(run)
    assert process.stdout.readline() == 'TERM\n'
    assert worker.poll() is None
    run_processes.stop_run(run, now=True)
    assert (process.wait(60), worker.wait(60)) == (-signal.SIGKILL, -signal.SIGKILL)
  finally:
    worker.kill()
    worker.wait()


def test_now_ends_what_the_run_has_started_too(tmp_path):
  code = """
import os, signal, subprocess, sys, time
worker = subprocess.Popen(['sh', '-c', 'sleep 600 & echo $!; wait'], process_group=0)  # As a launcher's.
daemon = subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL)
os.kill(worker.pid, signal.SIGSTOP) if not time.sleep(0.5) else None
print(worker.pid, daemon.pid, flush=True)
time.sleep(600)
"""
  process = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True, start_new_session=True)
  *pids, daemon = map(int, f'{process.stdout.readline()} {process.stdout.readline()}'.split())
  identity = dataclasses.replace(processes.own_identity(), pid=process.pid, pid_start=processes.start_of(process.pid))
  try:
    run_processes.stop_run(folders.make(tmp_path, 'a', identity=identity), now=True)
    assert process.wait(60) == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while any(processes.is_alive(dataclasses.replace(identity, pid=pid, pid_start=None)) for pid in pids):
      assert time.monotonic() < deadline
      time.sleep(0.05)
    os.kill(daemon, 0)
  finally:
    os.kill(daemon, signal.SIGKILL)
    process.stdout.close()


def test_an_evaluation_is_stopped_if_nothing_trains(tmp_path, process):
  run = folders.make(tmp_path, 'a', status='finished', identity=folders.ended_process())
  with open(run.file('run.continuous_eval.json'), 'w') as file:
    json.dump(folders.record(process.identity, mode='continuous_eval'), file)
  assert run_processes.stop_run(run).status == 'stopping'
  assert process.stdout.readline() == 'TERM\n'
  assert os.path.exists(run.file('stop.continuous_eval.json'))
