"""Tests of the dispatcher, with real processes and real kills."""

import json
import os
import pathlib
import random
import signal
import time

import pytest

from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queued_jobs
from tests.operations.queue import queues


@pytest.fixture
def trial(tmp_path):
  made = queues.Trial(tmp_path / 'runs')
  yield made
  made.close()


# The actions of a crowd's jobs after their work, how often each of these starts, and how it ends.
_CROWD = (
  ('', 1, 'finished'),
  ('kill -9 $$', 3, 'failed'),
  ('[ $starts -gt 1 ] || exit 75', 2, 'finished'),
  ('exit 2', 1, 'failed'),
  ('[ $starts -gt 2 ] || kill -TERM $$', 3, 'finished'),
  ('exit 3', 1, 'failed'),
  ('exit 75', 3, 'failed'),
  ('exit 1', 1, 'failed'),
)


def check_a_crowd(trial, count, slots, seconds):
  for number in range(count):
    trial.add(_CROWD[number % len(_CROWD)][0], seconds, together=slots, max_restarts=2)
  trial.finish(patience=10 * queues.PATIENCE, slots=slots)
  assert trial.most_at_once() == slots
  starts = trial.starts()
  for number in range(count):
    _, expected_starts, status = _CROWD[number % len(_CROWD)]
    assert starts.count(number + 1) == expected_starts, number
    assert trial.statuses()[number + 1] == status, number
  return len(starts)


@pytest.mark.slow
def test_jobs_that_crash_never_exceed_the_slots(trial):
  assert check_a_crowd(trial, count=len(_CROWD), slots=3, seconds=0.05) == sum(starts for _, starts, _ in _CROWD)


@pytest.mark.soak
def test_200_jobs_that_crash_never_exceed_the_slots(trial):
  check_a_crowd(trial, count=200, slots=4, seconds=0.05)


def check_kills(trial, jobs, kills, seed):
  """Kills dispatchers while jobs wait, run two at a time, and end."""
  draw = random.Random(seed)
  for _ in range(jobs):
    trial.add(seconds=0.05)
  for _ in range(kills):
    process = trial.dispatch(slots=2)
    known = len(trial.trace())
    queues.until(lambda process=process, known=known: len(trial.trace()) > known or process.poll() is not None)
    time.sleep(draw.uniform(0, 0.3))
    process.kill()
  statuses = trial.statuses().values()
  print(f'{kills} kills: {list(statuses).count("finished")} of {jobs} jobs had finished')
  trial.finish(slots=2)
  assert sorted(trial.starts()) == list(range(1, jobs + 1))
  assert set(trial.statuses().values()) == {'finished'}
  assert trial.most_at_once() <= 2
  states = trial.states()
  ordered = [states[number].attempt.times['ordered'] for number in range(1, jobs + 1)]
  assert ordered == sorted(ordered)


def test_killed_6_times_it_starts_nothing_twice_and_loses_nothing(trial):
  check_kills(trial, jobs=8, kills=6, seed=1)


@pytest.mark.soak
def test_killed_50_times_it_starts_nothing_twice_and_loses_nothing(trial):
  check_kills(trial, jobs=120, kills=50, seed=2)


def check_each_step(trial, step):
  """Lets dispatchers die before each of their steps, one step later each time, and counts the steps."""
  dies_at = 1
  while True:
    number = trial.add()
    process = trial.dispatch(dies_at=dies_at)
    process.wait()
    if process.poll() == 0:
      break
    assert process.poll() == -signal.SIGKILL
    dies_at += step
  assert sorted(trial.starts()) == list(range(1, number + 1))
  assert set(trial.statuses().values()) == {'finished'}
  assert dies_at > 4  # An order is a file and its new name; there is a lock, and a process.


def test_killed_between_its_steps_it_starts_nothing_twice(trial):
  check_each_step(trial, step=3)


@pytest.mark.soak
def test_killed_between_any_two_of_its_steps_it_starts_nothing_twice(trial):
  check_each_step(trial, step=1)


def test_there_is_one_dispatcher(trial):
  trial.add(seconds=1)
  first = trial.dispatch(until_empty=False)
  queues.until(trial.queue.dispatcher)
  second = trial.dispatch()
  second.wait()
  output = second.output()
  assert second.poll() == 4
  assert f'process {first.pid} on' in output
  assert 'dispatches its queue already' in output
  first.kill()
  assert trial.queue.dispatcher() is None
  trial.finish()
  assert trial.starts() == [1]


def test_what_ends_while_nobody_watches_is_known(trial):
  numbers = [trial.add(do, held=True) for do in ('', 'exit 2', '[ $starts -gt 1 ] || exit 75')]
  process = trial.dispatch(slots=3)
  queues.until(lambda: len(trial.starts()) == 3)
  process.kill()
  trial.let_go()
  queues.until(lambda: not any(state.has_slot for state in trial.states().values()))
  assert trial.statuses() == dict(zip(numbers, ('finished', 'failed', 'queued')))
  assert 'will be retried' in trial.states()[3].reason
  trial.finish(slots=3)
  assert trial.starts().count(3) == 2
  assert len(trial.starts()) == 4


def test_it_ends_at_a_signal_and_its_runs_continue(trial):
  trial.add(held=True)
  trial.add()
  process = trial.dispatch(until_empty=False)
  queues.until(trial.starts)
  process.send_signal(signal.SIGHUP)  # It is ignored, as under nohup.
  time.sleep(0.2)
  assert process.poll() is None
  process.send_signal(signal.SIGINT)
  process.wait()
  output = process.output()
  assert process.poll() == 0
  assert 'SIGINT: starts no more jobs; running jobs continue' in output
  assert trial.statuses() == {1: 'running', 2: 'queued'}
  trial.let_go()
  queues.until(lambda: trial.statuses()[1] == 'finished')
  assert trial.statuses()[2] == 'queued'


def lose(attempt):
  """Kills the runner and the command of an attempt, at once."""
  os.kill(attempt.runner.pid, signal.SIGSTOP)
  os.kill(attempt.process.pid, signal.SIGKILL)
  os.kill(attempt.runner.pid, signal.SIGKILL)


def test_a_lost_process_is_tried_again_as_often_as_allowed(trial):
  trial.add(seconds=30, max_restarts=1)
  process = trial.dispatch()
  for starts in (1, 2):
    queues.until(lambda starts=starts: len(trial.starts()) == starts)
    lose(queues.until(lambda: trial.states()[1].attempt))
  process.wait()
  output = process.output()
  assert process.poll() == 1
  assert trial.states()[1].reason == 'its process was lost, after 1 restart', output


def test_after_a_restart_of_the_machine_what_ran_is_tried_again(trial):
  trial.add(seconds=0.2)
  process = trial.dispatch()
  queues.until(trial.starts)
  process.kill()
  queues.until(lambda: trial.statuses()[1] == 'finished')
  attempt = pathlib.Path(trial.queue.job_folder(1)) / 'attempt-1'
  started = json.loads(attempt.with_suffix('.started.json').read_text())
  for name in ('process', 'runner'):  # This process's number, before another boot.
    started[name] |= {'boot_id': 'of another boot', 'pid': os.getpid()}
  attempt.with_suffix('.started.json').write_text(json.dumps(started))
  attempt.with_suffix('.ended.json').unlink()
  assert trial.states()[1].reason == 'its process was lost; will be retried'
  trial.finish()
  assert trial.starts() == [1, 1]
  assert json.loads(attempt.with_suffix('.ended.json').read_text())['outcome'] == queued_jobs.LOST


@pytest.mark.slow
def test_a_pause_outlives_its_dispatcher_and_running_jobs_continue(trial):
  trial.add(held=True)
  trial.add()
  trial.add()
  process = trial.dispatch()
  queues.until(trial.starts)
  queue_changes.pause(trial.queue)
  queue_changes.pause(trial.queue, 2)
  trial.let_go()
  queues.until(lambda: trial.statuses()[1] == 'finished')
  process.kill()
  process = trial.dispatch(until_empty=False)
  queues.until(trial.queue.dispatcher)
  time.sleep(0.5)
  assert trial.statuses() == {1: 'finished', 2: 'paused', 3: 'queued'}
  queue_changes.resume(trial.queue)
  queues.until(lambda: trial.statuses()[3] == 'finished')
  assert trial.statuses()[2] == 'paused'
  queue_changes.resume(trial.queue, 2)
  queues.until(lambda: trial.statuses()[2] == 'finished')


def test_jobs_start_in_their_order_and_one_that_is_tried_again_has_its_place(trial):
  trial.add('[ $starts -gt 1 ] || exit 75', held=True)
  for _ in range(4):
    trial.add()
  process = trial.dispatch()
  queues.until(trial.starts)
  queue_changes.move(trial.queue, 5, 'first')
  queue_changes.move(trial.queue, 2, 'after', 4)
  trial.let_go()
  process.wait()
  assert trial.starts() == [1, 1, 5, 3, 4, 2]


def test_each_run_has_gpus_of_its_own(trial):
  seen = trial.folder / 'gpus'
  for gpus in (None, None, 2, 0):
    trial.add(f'echo $CUDA_VISIBLE_DEVICES, >> {seen}', 0.3, gpus=gpus)
  trial.add(gpus=3)
  process = trial.dispatch(slots=4, gpus='4,7', until_empty=False)
  queues.until(lambda: list(trial.statuses().values()).count('finished') == 4)
  process.kill()
  assert sorted(seen.read_text().split()[:2]) == ['4,', '7,']
  assert seen.read_text().split()[2:] in (['4,7,', ','], [',', '4,7,'])
  assert trial.statuses()[5] == 'queued'  # It requests more than there are.
