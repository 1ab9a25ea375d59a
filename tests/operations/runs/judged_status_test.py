"""Tests for status."""

import dataclasses
import datetime
import json
import os
import time

import pytest

from official_ext.base import processes
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import statuses
from tests.operations.runs import folders


def _ago(seconds):
  return (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)).isoformat()


def _elsewhere():
  return dataclasses.replace(processes.own_identity(), host='far', boot_id='another', machine_id='another')


@pytest.mark.parametrize('found', ['finished', 'preempted', 'diverged', 'failed', 'hung'])
def test_what_a_run_has_noted_of_its_end_is_reported(tmp_path, found):
  run = folders.make(tmp_path, 'a', identity=folders.ended_process(), status=found, error='because')
  assert statuses.of_run(run) == statuses.RunStatus(found, 'because', False, None)
  assert not statuses.is_alive(run)


def test_a_living_process_runs(tmp_path):
  run = folders.make(tmp_path, 'a')
  found = statuses.of_run(run)
  assert (found.status, found.is_alive, found.process) == ('running', True, processes.own_identity())


@pytest.mark.parametrize('change', [{'pid_start': 1}, {'boot_id': '0-0'}, {'ended': True}])
def test_a_process_that_is_gone_is_dead_though_its_number_lives(tmp_path, change):
  identity = folders.ended_process() if 'ended' in change else dataclasses.replace(processes.own_identity(), **change)
  run = folders.make(tmp_path, 'a', identity=identity, heartbeat=_ago(120))
  assert statuses.of_run(run).status == 'dead'
  assert not statuses.is_alive(run)


def test_a_process_on_another_host_is_judged_by_its_heartbeat_which_is_reported(tmp_path):
  fresh = folders.make(tmp_path, 'fresh', identity=_elsewhere(), heartbeat=_ago(5))
  silent = folders.make(tmp_path, 'silent', identity=_elsewhere(), heartbeat=_ago(600))
  none = folders.make(tmp_path, 'none', identity=_elsewhere(), heartbeat='')
  assert statuses.of_run(fresh).status == 'running'
  assert statuses.of_run(fresh).is_alive is None
  assert 'on far, judged by its heartbeat' in statuses.of_run(fresh).reason
  assert statuses.is_alive(fresh)
  assert statuses.of_run(silent).status == 'dead'
  assert 'on far' in statuses.of_run(silent).reason
  assert statuses.of_run(none).status == 'unknown'


@pytest.mark.parametrize('jump', [-3600, 3600])
def test_a_clock_that_is_set_anew_makes_no_run_hang(tmp_path, jump):
  # The run dated its last step before the clock jumped, and its last heartbeat before or after that.
  now = time.monotonic()
  beats = {'heartbeat': now - 5, 'updated': now - 8}
  before = folders.make(tmp_path, 'a', updated=_ago(jump + 8), heartbeat=_ago(jump + 5), monotonic=beats)
  between = folders.make(tmp_path, 'b', updated=_ago(jump + 8), heartbeat=_ago(5), monotonic=beats)
  assert [statuses.of_run(run, hung_seconds=1800).status for run in (before, between)] == ['running', 'running']


@pytest.mark.parametrize('jump', [-3600, 3600])
def test_a_run_that_hangs_is_seen_whatever_its_clock_shows(tmp_path, jump):
  now = time.monotonic()
  idle = {'heartbeat': now - 5, 'updated': now - 2005}
  silent = {'heartbeat': now - 2000, 'updated': now - 2005}
  without_steps = folders.make(tmp_path, 'a', updated=_ago(jump), heartbeat=_ago(5), monotonic=idle)
  without_life = folders.make(tmp_path, 'b', updated=_ago(jump), heartbeat=_ago(jump), monotonic=silent)
  assert statuses.of_run(without_steps, hung_seconds=1800).reason.startswith('no step for 33 min')
  assert statuses.of_run(without_life, hung_seconds=1800).reason.startswith('no sign of life for 33 min')


def test_a_run_without_progress_hangs_by_its_own_clock(tmp_path):
  # Its clock is half a minute behind; only the time between heartbeat and last step counts.
  far = folders.make(tmp_path, 'b', identity=_elsewhere(), heartbeat=_ago(30), updated=_ago(3630), stage='eval')
  here = folders.make(tmp_path, 'a', heartbeat=_ago(1), updated=_ago(3601), stage='eval')
  for run, alive in ((far, None), (here, True)):
    assert statuses.of_run(run, hung_seconds=3602).status == 'running'
    found = statuses.of_run(run, hung_seconds=3598)
    assert (found.status, found.is_alive) == ('hung', alive)
    assert found.reason.startswith(('no step for 60 min, in stage eval', 'no step for 59 min, in stage eval'))


def test_a_living_process_that_gives_no_sign_of_life_hangs(tmp_path):
  # No thread of it runs, or nothing can be written.
  run = folders.make(tmp_path, 'a', heartbeat=_ago(7200), updated=_ago(7201), stage='eval')
  found = statuses.of_run(run)
  assert (found.status, found.is_alive) == ('hung', True)
  assert found.reason == 'no sign of life for 2 h, in stage eval'


def test_a_heartbeat_of_the_future_is_reported(tmp_path):
  run = folders.make(tmp_path, 'a', identity=_elsewhere(), heartbeat=_ago(-7200), updated=_ago(-7200))
  found = statuses.of_run(run)
  assert (found.status, found.is_alive) == ('running', None)
  assert found.reason in (
    'on far, whose clock is 2 h ahead of this one',
    'on far, whose clock is 119 min ahead of this one',
  )


def test_a_damaged_record_of_the_training_is_not_replaced_by_that_of_an_evaluation(tmp_path):
  run = folders.make(tmp_path, 'a', identity=folders.ended_process(), status='finished', mode='eval')
  os.rename(run.file('run.json'), run.file('run.eval.json'))
  assert statuses.of_run(run).status == 'finished'
  with open(run.file('run.json'), 'w') as file:
    file.write('{"status": "fini')
  assert statuses.of_run(run).status == 'unknown'


def test_a_run_that_was_asked_to_stop_is_stopping_and_its_successor_is_not(tmp_path):
  run = folders.make(tmp_path, 'a')
  note = {**processes.own_identity().as_dict(), 'requested': 'now'}
  with open(run.file('stop.json'), 'w') as file:
    json.dump(note, file)
  assert statuses.of_run(run).status == 'stopping'
  with open(run.file('stop.json'), 'w') as file:
    json.dump({**note, 'pid_start': 1}, file)
  assert statuses.of_run(run).status == 'running'


def test_damaged_files_are_no_reason_to_fail(tmp_path):
  for number, content in enumerate(('', '{', '[]', '{"status": 3}', '{"status": "running"}', '[' * 100_000, '\0' * 10)):
    run = folders.make(tmp_path, str(number))
    for name in ('run.json', 'started.json', 'stop.json'):
      with open(run.file(name), 'w') as file:
        file.write(content)
    assert statuses.of_run(run).status == 'unknown', content[:20]
  os.remove(run.file('run.json'))
  os.mkdir(run.file('run.json'))
  assert statuses.of_run(run).status == 'unknown'


@pytest.mark.parametrize(
  'exit_status,expected,reason',
  [
    (2, 'failed', 'ended with status 2 before it began to train'),
    (75, 'preempted', 'ended with status 75 before it began to train'),
    (-9, 'dead', 'killed by SIGKILL, before it began to train'),
    (None, 'dead', 'its process is gone, before it began to train'),
    (0, 'finished', 'it has left no record'),
  ],
)
def test_a_process_that_ends_before_its_record_is_judged_by_its_exit_status(exit_status, expected, reason):
  started = {**folders.ended_process().as_dict(), 'started': _ago(10), 'ended': _ago(5), 'exit_status': exit_status}
  found = statuses.judge(None, started)
  assert (found.status, found.reason, found.is_alive) == (expected, reason, False)


def test_a_new_attempt_that_fails_is_not_hidden_by_the_record_of_the_one_before():
  before = folders.record(folders.ended_process(), status='preempted', started=_ago(100))
  started = {**folders.ended_process(1).as_dict(), 'started': _ago(10), 'ended': _ago(5), 'exit_status': 2}
  assert statuses.judge(before, started).status == 'failed'
  assert statuses.judge(before, {**started, 'started': _ago(200)}).status == 'failed'  # The clock was set back.
  earlier = {**before, 'pid_start': started['pid_start'] + 1}
  assert statuses.judge(earlier, started).status == 'preempted'
  elsewhere = {**started, 'boot_id': None}
  assert statuses.judge(before, elsewhere).status == 'failed'
  assert statuses.judge(before, {**elsewhere, 'started': _ago(200)}).status == 'preempted'
  living = {**processes.own_identity().as_dict(), 'started': _ago(10), 'ended': None, 'exit_status': None}
  before['pid_start'] = 1
  assert statuses.judge(before, living) == statuses.RunStatus('starting', '', True, processes.own_identity())


def test_a_process_that_is_stopped_before_it_can_report_is_preempted():
  living = {**processes.own_identity().as_dict(), 'started': _ago(10), 'ended': None, 'exit_status': None}
  asked = {**processes.own_identity().as_dict(), 'requested': 'now'}
  assert statuses.judge(None, living, asked).status == 'stopping'
  ended = {**living, **folders.ended_process().as_dict(), 'ended': _ago(5), 'exit_status': -15}
  asked = {**folders.ended_process().as_dict(), 'requested': 'now'}
  assert statuses.judge(None, ended, asked) == statuses.RunStatus('preempted', 'stopped before it began to train')
  assert statuses.judge(None, ended).status == 'dead'
  assert statuses.judge(None, {**ended, 'exit_status': -9}, asked).status == 'dead'


def test_the_exit_status_of_a_dead_run_is_reported():
  identity = folders.ended_process()
  started = {**identity.as_dict(), 'started': _ago(10), 'ended': _ago(5), 'exit_status': -9}
  found = statuses.judge(folders.record(identity), started)
  assert (found.status, found.reason) == ('dead', 'killed by SIGKILL')


def test_the_launcher_of_a_run_is_the_one_to_stop():
  own = processes.own_identity()
  worker = folders.ended_process()
  found = statuses.judge(folders.record(worker, launcher={**own.as_dict(), 'command': 'launch'}), None)
  assert (found.status, found.is_alive, found.process) == ('starting', True, own)
  living = folders.record(own, launcher={**worker.as_dict(), 'command': 'launch'})
  assert statuses.judge(living, None).process == own


def test_an_evaluation_beside_a_training_that_has_ended_keeps_the_run_alive(tmp_path):
  run = folders.make(tmp_path, 'a', identity=folders.ended_process(), status='finished')
  with open(run.file('run.continuous_eval.json'), 'w') as file:
    json.dump(folders.record(mode='continuous_eval'), file)
  assert statuses.of_run(run).status == 'finished'
  assert statuses.is_alive(run)
  assert not statuses.is_alive(run, 'train')


def test_a_run_that_has_noted_its_end_lives_until_its_process_is_gone(tmp_path):
  run = folders.make(tmp_path, 'a', status='finished')
  assert statuses.of_run(run).status == 'finished'
  assert statuses.is_alive(run)
  assert isinstance(run, run_folders.Run)
