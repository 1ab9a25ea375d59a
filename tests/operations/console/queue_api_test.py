"""Tests of the requests of the queue's page."""

import os
import signal

import pytest

from tests.operations.queue import queues


@pytest.fixture
def trial(tmp_path):
  made = queues.Trial(tmp_path / 'runs')
  yield made
  made.close()


@pytest.fixture
def console(trial, start_console):
  return start_console(trial.folder)


def waiting(values):
  return [job['job'] for job in values['jobs']]


def test_jobs_are_moved_paused_and_cancelled(console, trial):
  for number in range(4):
    trial.add(model_dir=str(trial.folder / f'run-{number}'))
  found = console.get('/api/queue')
  assert [(job['job'], job['position'], job['name'], job['run']) for job in found['jobs']] == [
    (number + 1, number + 1, f'run-{number}', None) for number in range(4)
  ]
  assert found['dispatcher'] is None
  assert found['command'] == f'official-ext queue run {trial.folder} --slots=2'
  assert waiting(console.post('/api/queue/move', job=4, place='first')) == [4, 1, 2, 3]
  assert waiting(console.post('/api/queue/move', job=4, place='after', neighbour=2)) == [1, 2, 4, 3]
  assert console.post('/api/queue/pause')['paused'] is True
  assert console.post('/api/queue/resume')['paused'] is False
  paused = console.post('/api/queue/pause', job=1)['jobs'][0]
  assert (paused['status'], paused['position']) == ('paused', 1)
  assert console.post('/api/queue/resume', job=1)['jobs'][0]['status'] == 'queued'
  found = console.post('/api/queue/cancel', job=2)
  assert [(job['job'], job['status']) for job in found['jobs']][0] == (2, 'cancelled')
  assert found['num_over'] == 1
  assert console.try_post('/api/queue/cancel', job=2) == (
    400,
    {'errors': ['job 2: is cancelled: there is nothing to cancel']},
  )
  for wrong in ({'job': 'x', 'place': 'first'}, {'job': 1, 'place': 'up'}, {'job': 1, 'place': 'before'}, {}):
    assert console.try_post('/api/queue/move', **wrong)[0] == 400


def test_a_dispatcher_is_started_that_outlives_the_console(console, trial):
  trial.add(model_dir=str(trial.folder / 'run'))
  assert console.try_post('/api/queue/start', slots=0)[0] == 400
  found = console.post('/api/queue/start', slots=3)
  try:
    assert found['dispatcher']['slots'] == 3
    pid = found['dispatcher']['pid']
    assert found['dispatcher']['process'].startswith(f'process {pid} on')
    assert os.getsid(pid) == pid  # No signal to the console's session reaches it.
    queues.until(lambda: trial.statuses() == {1: 'finished'})
    assert console.post('/api/queue/start', slots=1)['dispatcher']['pid'] == pid  # There is one.
  finally:
    os.kill(found['dispatcher']['pid'], signal.SIGTERM)
  queues.until(lambda: console.get('/api/queue')['dispatcher'] is None)
