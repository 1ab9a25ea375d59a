"""Tests for signals: real processes."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest

from official_ext import errors
from official_ext.runs import signals
from official_ext.runs import status
from official_ext.runtime import process_identity
from tests.runs import folders

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
  """A process that tells of SIGTERM and goes on, and its identity."""
  child = subprocess.Popen(
    [sys.executable, '-S', '-c', _CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  )
  assert child.stdout.readline() == 'ready\n'
  child.identity = dataclasses.replace(
    process_identity.own(), pid=child.pid, pid_start=process_identity.start_of(child.pid)
  )
  yield child
  child.kill()
  child.communicate()


def test_a_run_is_asked_once_and_shown_as_stopping(tmp_path, process):
  run = folders.make(tmp_path, 'a', identity=process.identity)
  assert signals.stop(run).status == 'stopping'
  assert process.stdout.readline() == 'TERM\n'
  assert signals.stop(run).status == 'stopping'
  process.stdin.close()
  process.stdin = None
  assert process.stdout.read() == ''  # A second signal would have cost it its save.
  assert signals.wait_for_end(run, 60)
  assert status.of_run(run).status == 'dead'


def test_now_ends_it_at_once(tmp_path, process):
  run = folders.make(tmp_path, 'a', identity=process.identity)
  signals.stop(run, now=True)
  assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize('change', [{'pid_start': 1}, {'pid_start': None}, {'boot_id': '0-0'}])
def test_a_process_that_only_has_the_number_is_not_hit(process, change):
  with pytest.raises(errors.UserError, match='has ended'):
    signals.send(dataclasses.replace(process.identity, **change), signal.SIGKILL, 'a')
  assert process.poll() is None


def test_what_does_not_run_or_runs_elsewhere_is_refused(tmp_path, process):
  ended = folders.make(tmp_path, 'ended', identity=folders.ended_process())
  with pytest.raises(errors.UserError, match='ended: does not run: dead'):
    signals.stop(ended)
  done = folders.make(tmp_path, 'done', status='finished')
  with pytest.raises(errors.UserError, match='done: does not run: finished'):
    signals.stop(done)
  far = dataclasses.replace(process.identity, host='far', boot_id='another', machine_id='another')
  run = folders.make(tmp_path, 'far', identity=far)
  with pytest.raises(errors.UserError, match=r'far: cannot be stopped from here: it is process \d+ on far'):
    signals.stop(run)
  assert process.poll() is None
  assert not os.path.exists(run.file('stop.json'))


def test_the_signal_goes_to_the_launcher(tmp_path, process):
  worker = subprocess.Popen(['sleep', '600'])
  try:
    identity = dataclasses.replace(
      process_identity.own(), pid=worker.pid, pid_start=process_identity.start_of(worker.pid)
    )
    run = folders.make(tmp_path, 'a', identity=identity, launcher={**process.identity.as_dict(), 'command': 'x'})
    signals.stop(run)
    assert process.stdout.readline() == 'TERM\n'
    assert worker.poll() is None
    signals.stop(run, now=True)
    assert (process.wait(60), worker.wait(60)) == (-signal.SIGKILL, -signal.SIGKILL)
  finally:
    worker.kill()
    worker.wait()


def test_an_evaluation_is_stopped_if_nothing_trains(tmp_path, process):
  run = folders.make(tmp_path, 'a', status='finished', identity=folders.ended_process())
  with open(run.file('run.continuous_eval.json'), 'w') as file:
    json.dump(folders.record(process.identity, mode='continuous_eval'), file)
  assert signals.stop(run).status == 'stopping'
  assert process.stdout.readline() == 'TERM\n'
  assert os.path.exists(run.file('stop.continuous_eval.json'))
