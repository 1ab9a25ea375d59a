"""Tests of a user's operations on a queue."""

import concurrent.futures
import json
import os
import pathlib
import stat
import subprocess
import sys

import pytest

from official_ext.base import errors
from official_ext.base import processes as processes_lib
from official_ext.base.files import local_files
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from official_ext.operations.queue import queued_jobs
from tests.operations.queue import queues


@pytest.fixture
def trial(tmp_path):
  made = queues.Trial(tmp_path / 'runs')
  yield made
  made.close()


def waiting(trial):
  return [state.number for state in trial.queue.waiting(trial.queue.states())]


def test_jobs_move(trial):
  for _ in range(4):
    trial.add()
  for number, place, neighbour, expected in (
    (3, 'first', None, [3, 1, 2, 4]),
    (3, 'last', None, [1, 2, 4, 3]),
    (4, 'before', 1, [4, 1, 2, 3]),
    (4, 'after', 2, [1, 2, 4, 3]),
    (2, 'before', 2, [1, 2, 4, 3]),
  ):
    queue_changes.move(trial.queue, number, place, neighbour)
    assert waiting(trial) == expected
  trial.add()
  trial.add(place='first')
  trial.add(place='before', neighbour=3)
  assert waiting(trial) == [6, 1, 2, 4, 7, 3, 5]
  with pytest.raises(errors.UserError, match='^job 9: there is none in'):
    queue_changes.move(trial.queue, 1, 'after', 9)
  queue_changes.cancel(trial.queue, 1)
  with pytest.raises(errors.UserError, match='^job 1: is cancelled: has no place in the order'):
    queue_changes.move(trial.queue, 2, 'after', 1)
  assert waiting(trial) == [6, 2, 4, 7, 3, 5]


def test_a_damaged_order_loses_no_job(trial):
  trial.add()
  trial.add(place='first')
  pathlib.Path(trial.queue.order_file).write_text('[')
  assert waiting(trial) == [1, 2]


def test_many_may_add_at_the_same_time(trial):
  code = 'import sys; from official_ext.operations.queue import queue_changes, queue_folder\n'
  code += 'for _ in range(4): queue_changes.add(queue_folder.Queue(sys.argv[1]), ["true"])'
  command = [sys.executable, '-c', code, str(trial.folder)]
  processes = [subprocess.Popen(command, cwd=queues.ROOT) for _ in range(3)]
  assert [process.wait() for process in processes] == [0] * 3
  assert waiting(trial) == list(range(1, 13))


def test_of_two_jobs_with_one_folder_at_the_same_time_one_is_refused(trial):
  model_dir = str(trial.folder / 'run')

  def add(_):
    try:
      return queue_changes.add(queue_folder.Queue(str(trial.folder)), ['true'], model_dir=model_dir).number
    except errors.UserError as error:
      return str(error)

  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    found = list(pool.map(add, range(4)))
  assert found.count(1) == 1
  assert sum('job 1, which is queued, has this folder' in str(each) for each in found) == 3


def test_a_folder_is_found_in_the_command_and_may_be_used_again_when_its_job_is_over(trial, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  os.symlink(tmp_path, tmp_path / 'link')
  job = queue_changes.add(trial.queue, ['train', '--model_dir', 'a', '--x'])
  assert (job.model_dir, job.cwd, job.log) == (str(tmp_path / 'a'), str(tmp_path), str(tmp_path / 'a/run.log'))
  with pytest.raises(errors.UserError, match='wait for it or cancel it, or choose another folder'):
    queue_changes.add(trial.queue, ['train', f'--model_dir={tmp_path}/link/b/../a/'])
  with pytest.raises(errors.UserError, match='wait for it or cancel it, or choose another folder'):
    queue_changes.add(trial.queue, ['train', f'--model_dir=file://{tmp_path}/a'])
  evaluation = queue_changes.add(trial.queue, ['train', '--model_dir=a', '--mode=eval'])  # It may run beside it.
  assert evaluation.log == str(tmp_path / 'a/run.eval.log')
  with pytest.raises(errors.UserError, match='job 2'):
    queue_changes.add(trial.queue, ['train', '--model_dir=a', '--mode=eval'])
  queue_changes.cancel(trial.queue, 1)
  assert queue_changes.add(trial.queue, ['train', '--model_dir=a']).number == 3
  remote = queue_changes.add(trial.queue, ['train', '--model_dir=gs://bucket/a/'])
  assert (remote.model_dir, remote.log) == ('gs://bucket/a', f'{remote.folder}/run.log')
  assert trial.queue.find('gs://bucket/a').number == 4
  assert trial.queue.find(f'file://{tmp_path}/a').number == 3  # The same folder.
  assert trial.queue.find('a').number == 3  # Of both that are not over the newest.
  assert trial.queue.find('1').number == 1
  with pytest.raises(errors.UserError, match='^b: no such job in'):
    trial.queue.find('b')


def test_the_folder_of_a_run_that_lives_is_refused(trial):
  model_dir = trial.folder / 'run'
  model_dir.mkdir()
  other = subprocess.Popen(['sleep', '600'])
  identity = {'pid': other.pid, 'pid_start': processes_lib.start_of(other.pid)}
  record = {'status': 'running', **processes_lib.own_identity().as_dict(), **identity}
  (model_dir / 'run.json').write_text(json.dumps(record))
  with pytest.raises(errors.UserError, match='a run lives in this folder'):
    queue_changes.add(trial.queue, ['train', f'--model_dir={model_dir}'])
  other.kill()
  other.wait()
  assert queue_changes.add(trial.queue, ['train', f'--model_dir={model_dir}']).number == 1


def test_cancelled_while_it_waits_it_never_starts(trial):
  trial.add()
  trial.add()
  queue_changes.cancel(trial.queue, 1)
  trial.finish()
  assert trial.starts() == [2]
  assert trial.statuses() == {1: 'cancelled', 2: 'finished'}
  for number in (1, 2):
    with pytest.raises(errors.UserError, match=f'^job {number}: is .*: there is nothing to cancel'):
      queue_changes.cancel(trial.queue, number)


@pytest.mark.parametrize('kill', [False, True])
def test_cancelled_while_it_runs_it_is_asked_to_stop_and_not_tried_again(trial, kill):
  code = f'trap "" TERM; echo start 1 >> {trial.folder}/trace; sleep 600'
  if not kill:
    code = code.replace('""', f'"echo end 1 >> {trial.folder}/trace; exit 75"') + ' & wait'
  queue_changes.add(trial.queue, ['sh', '-c', code])
  process = trial.dispatch()
  queues.until(trial.starts)
  with pytest.raises(errors.UserError, match='^job 1: is running: cannot be paused'):
    queue_changes.pause(trial.queue, 1)
  queue_changes.cancel(trial.queue, 1, kill)
  assert process.wait() == 0
  assert trial.trace() == [('start', 1)] + ([] if kill else [('end', 1)])
  state = trial.states()[1]
  assert (state.status, state.exit_status) == ('cancelled', -9 if kill else 75)


def test_only_its_user_may_enter_a_queue(trial):
  trial.add()
  assert stat.S_IMODE(os.stat(trial.queue.folder).st_mode) == 0o700


def test_a_command_that_hangs_while_it_changes_something_is_named_by_the_next(trial, monkeypatch):
  trial.add()
  monkeypatch.setattr(queue_changes, '_PATIENCE_SECONDS', 0.1)
  with local_files.FileLock(os.path.join(trial.queue.folder, 'changes.lock')):
    with pytest.raises(errors.UserError, match='another command has been changing it for 0.1 s'):
      trial.add()


def test_a_queue_needs_a_local_folder():
  with pytest.raises(errors.UserError, match='^gs://bucket/runs: a queue needs a local folder'):
    queue_folder.Queue('gs://bucket/runs')


@pytest.mark.parametrize(
  ('ended', 'passing', 'words'),
  [
    ({'outcome': 'exited', 'status': 75}, True, 'ended with status 75 (preempted)'),
    ({'outcome': 'exited', 'status': -9}, True, 'killed by SIGKILL'),
    ({'outcome': 'exited', 'status': 139}, True, 'killed by SIGSEGV'),
    ({'outcome': 'lost'}, True, 'its process was lost'),
    ({'outcome': 'exited', 'status': 1}, False, 'ended with status 1'),
    ({'outcome': 'exited', 'status': 2}, False, 'ended with status 2 (a mistake in the command or its configuration)'),
    ({'outcome': 'exited', 'status': 3}, False, 'ended with status 3 (diverged)'),
    ({'outcome': 'exited', 'status': 128}, False, 'ended with status 128'),
    ({'outcome': 'exited', 'status': 255}, False, 'ended with status 255'),
    ({'outcome': 'refused', 'error': 'x: Permission denied'}, False, 'x: Permission denied'),
  ],
)
def test_only_passing_faults_are_tried_again(ended, passing, words):
  assert (queued_jobs.is_passing(ended), queued_jobs.describe_end(ended)) == (passing, words)
