"""Tests of the process beside a job's command: it starts it at most once, after any kill."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from official_ext.base import processes
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses
from tests.operations.queue import queues

# A runner that dies before one of its steps, or whose child does: of the two the one that is at it.
_RUN = """
import sys
from official_ext.operations.queue import job_runner
from tests.operations.queue import queues

folder, token, dies_at = sys.argv[1:]
sys.addaudithook(queues.dying_at(int(dies_at), ('os.rename', 'os.fork', 'os.exec')))
sys.exit(job_runner.main([folder, '1', token]))
"""


@pytest.fixture
def trial(tmp_path):
  made = queues.Trial(tmp_path / 'runs')
  yield made
  made.close()


def start(attempt, number=1, token=None):
  folder = os.path.dirname(attempt.path)
  command = [
    sys.executable,
    '-m',
    'official_ext.operations.queue.job_runner',
    folder,
    str(number),
    token or attempt.token,
  ]
  return subprocess.Popen(command, cwd=queues.ROOT, start_new_session=True)


def order(trial, number=1):
  return queued_jobs.order_attempt(trial.states()[number].job, 1, f'token {number}', None)


def check_each_step(trial, step):
  dies_at = 1
  while True:
    number = trial.add()
    attempt = order(trial, number)
    command = [sys.executable, '-c', _RUN, trial.queue.job_folder(number), attempt.token, str(dies_at)]
    status = subprocess.run(command, cwd=queues.ROOT, timeout=queues.PATIENCE, check=False).returncode
    if dies_at > 15:
      assert status == 0  # No step was left at which to die.
      break
    dies_at += step
  trial.finish(slots=2)
  assert set(trial.statuses().values()) == {'finished'}
  starts = trial.starts()
  assert set(starts) == set(range(1, number + 1))
  for job in set(starts):  # Twice only if it was killed in between.
    assert starts.count(job) <= trial.states()[job].attempt.number
  assert max(state.attempt.number for state in trial.states().values()) == 2
  assert sum(state.attempt.number == 1 for state in trial.states().values()) > 1


def test_killed_between_its_steps_the_command_is_started_once(trial):
  check_each_step(trial, step=4)


@pytest.mark.soak
def test_killed_between_any_two_of_its_steps_the_command_is_started_once(trial):
  check_each_step(trial, step=1)


def test_of_many_runners_one_starts_the_command(trial):
  trial.add(seconds=0.3)
  attempt = order(trial)
  runners = [start(attempt) for _ in range(4)]
  runners.append(start(attempt, token='of another attempt'))
  assert [runner.wait(queues.PATIENCE) for runner in runners] == [0] * 5
  assert trial.starts() == [1]
  assert start(attempt).wait(queues.PATIENCE) == 0  # One that comes late.
  assert trial.starts() == [1]
  assert trial.statuses() == {1: 'finished'}


@pytest.mark.slow
def test_a_command_whose_runner_is_killed_is_asked_to_stop(trial):
  asked = trial.folder / 'asked'
  code = f'import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path("{asked}")'
  code += f'.write_text("SIGTERM"))); pathlib.Path("{asked}").write_text("")\nwhile True: time.sleep(0.05)'
  queue_changes.add(trial.queue, [sys.executable, '-c', code])
  runner = start(order(trial))
  queues.until(asked.exists)
  attempt = trial.states()[1].attempt
  runner.kill()
  runner.wait()
  queues.until(lambda: asked.read_text() == 'SIGTERM')
  queues.until(lambda: not os.path.exists(f'/proc/{attempt.process.pid}'))
  assert trial.states()[1].reason == 'its process was lost; will be retried'


def test_the_command_has_a_session_of_its_own_and_none_of_the_files_of_others(trial):
  program = """
import json, os
names = [name for name in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{name}')]
files = {name: os.readlink(f'/proc/self/fd/{name}') for name in names}
print(json.dumps([os.getsid(0), os.getpgid(0), os.getpid(), os.environ['CUDA_VISIBLE_DEVICES'], files]))
"""
  model_dir = trial.folder / 'run'
  queue_changes.add(trial.queue, [sys.executable, '-c', program], model_dir=str(model_dir))
  trial.finish(gpus='3')
  attempt = trial.states()[1].attempt
  session, group, pid, gpus, files = json.loads((model_dir / 'run.log').read_text())
  assert (pid, session, group) == (attempt.process.pid, attempt.runner.pid, attempt.process.pid)
  assert gpus == '3'
  assert files == {'0': '/dev/null', '1': str(model_dir / 'run.log'), '2': str(model_dir / 'run.log')} | {
    name: path for name, path in files.items() if path == f'{attempt.path}.lock'
  }
  read = lambda: json.loads((model_dir / 'started.json').read_text())
  queues.until(lambda: read()['exit_status'] is not None)  # It is noted after the end of the attempt.
  assert (read()['pid'], read()['exit_status']) == (pid, 0)


def test_a_signal_is_passed_on_once(trial):
  counted = trial.folder / 'counted'
  code = f'import os, signal, time; f = open("{counted}", "ab", buffering=0)\n'
  code += 'signal.signal(signal.SIGTERM, lambda *_: f.write(b"SIGTERM ")); f.write(b"ready ")\n'
  code += f'while not os.path.exists("{trial.folder / "go"}"): time.sleep(0.05)'
  queue_changes.add(trial.queue, [sys.executable, '-c', code])
  runner = start(order(trial))
  queues.until(lambda: counted.exists() and counted.read_text())
  runner.send_signal(signal.SIGTERM)
  queues.until(lambda: 'SIGTERM' in counted.read_text())
  runner.send_signal(signal.SIGTERM)
  queue_changes.cancel(trial.queue, 1)
  assert trial.statuses() == {1: 'stopping'}
  time.sleep(1)  # The runner looks twice a second.
  trial.let_go()
  runner.wait(queues.PATIENCE)
  assert counted.read_text().split() == ['ready', 'SIGTERM']


def test_what_a_command_leaves_behind_is_ended(trial):
  left = trial.folder / 'left'
  trial.add(f'sleep 600 & echo $! > {left}')
  start(order(trial)).wait(queues.PATIENCE)
  assert not os.path.exists(f'/proc/{int(left.read_text())}')
  assert trial.statuses() == {1: 'finished'}


# A worker that needs a second to save; of two signals the second ends it.
_WORKER = """
import os, pathlib, signal, sys, time
file = pathlib.Path(sys.argv[1]) / str(os.getpid())

def save(*_):
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  time.sleep(1)
  file.write_text('saved')
  sys.exit(75)

signal.signal(signal.SIGTERM, save)
file.write_text('begun')
while True:  # Python runs no handler of a signal that comes right before a long sleep until its end.
  time.sleep(0.05)
"""


@pytest.fixture
def launched(trial):
  """A job of two workers that run, its runner, and the files of the workers, by the numbers of their processes."""
  program, folder = trial.folder / 'shard_worker.py', trial.folder / 'workers'
  program.write_text(_WORKER)
  folder.mkdir()
  words = ['-m', 'official_ext.cli.launch', '--max_restarts=0', f'--program={program}', '--', str(folder)]
  queue_changes.add(trial.queue, [sys.executable, *words], cwd=str(queues.ROOT))
  runner = start(order(trial))
  queues.until(lambda: [path.read_text() for path in folder.iterdir()] == ['begun'] * 2)
  yield runner, {int(path.name): path for path in folder.iterdir()}
  runner.kill()
  runner.wait()


def test_workers_that_hear_nothing_are_killed_with_their_launcher(trial, launched):
  runner, workers = launched
  for pid in workers:
    os.kill(pid, signal.SIGSTOP)
  queue_changes.cancel(trial.queue, 1, kill=True)
  runner.wait(queues.PATIENCE)
  assert not any(os.path.exists(f'/proc/{pid}') for pid in workers)
  assert {path.read_text() for path in workers.values()} == {'begun'}
  assert trial.statuses() == {1: 'cancelled'}


@pytest.mark.slow
def test_a_job_keeps_its_slot_while_workers_of_a_killed_launcher_save(trial, launched):
  runner, workers = launched
  os.kill(min(workers), signal.SIGSTOP)
  os.kill(trial.states()[1].attempt.process.pid, signal.SIGKILL)
  queues.until(lambda: not processes.is_alive(trial.states()[1].attempt.process))
  assert trial.states()[1].has_slot
  runner.wait(queues.PATIENCE)
  assert {path.read_text() for path in workers.values()} == {'saved'}
  assert trial.states()[1].reason == 'killed by SIGKILL; will be retried'


def test_cancelled_before_it_started_it_is_never_started(trial):
  trial.add()
  attempt = order(trial)
  queue_changes.cancel(trial.queue, 1)
  assert trial.statuses() == {1: 'cancelled'}
  assert start(attempt).wait(queues.PATIENCE) == 0
  assert trial.starts() == []


def test_what_cannot_be_run_has_failed_with_a_reason(trial):
  model_dir = trial.folder / 'run'
  file = trial.folder / 'file'
  file.write_text('')
  queue_changes.add(trial.queue, ['no-such-program'], model_dir=str(model_dir))
  queue_changes.add(trial.queue, ['true'], model_dir=str(file))
  queue_changes.add(trial.queue, ['true'], cwd=str(trial.folder / 'gone'))
  trial.finish()
  reasons = [state.reason for state in trial.states().values()]
  assert trial.statuses() == dict.fromkeys((1, 2, 3), 'failed')
  assert reasons[0] == 'ended with status 127 (no such program, or it cannot be run)'
  assert 'no-such-program: cannot be run: No such file or directory' in (model_dir / 'run.log').read_text()
  assert reasons[1:] == [f'{file}: File exists', f'{trial.folder / "gone"}: No such file or directory']


def test_what_has_failed_says_why(trial):
  """The last line of its output, in the queue and in the list of runs."""
  commands = (
    'echo "error: task.name: no"; echo; exit 2',
    'exit 1',
    'echo saved; exit 3',
    "printf '\\033[2J: token=abcd\\n'; exit 1",
  )
  for number, command in enumerate(commands):
    queue_changes.add(trial.queue, ['sh', '-c', command], model_dir=str(trial.folder / f'run{number}'))
  trial.finish()
  line = 'error: task.name: no'
  meaning = 'a mistake in the command or its configuration'
  expected = [
    f'ended with status 2 ({meaning}): {line}',
    'ended with status 1',
    'ended with status 3 (diverged): saved',
    r'ended with status 1: \x1b[2J: token=***',
  ]
  assert [state.reason for state in trial.states().values()] == expected
  found = statuses.of_run(run_folders.Run(str(trial.folder / 'run0'), 'run0'))
  assert (found.status, found.reason) == ('failed', f'ended with status 2 before it began to train: {line}')


@pytest.mark.slow
def test_a_job_waits_for_a_run_that_somebody_has_started_in_its_folder(trial):
  model_dir = trial.folder / 'run'
  trial.add(model_dir=str(model_dir))
  other = subprocess.Popen(['sleep', '600'])
  own = processes.own_identity().as_dict()
  model_dir.mkdir()
  values = own | {'pid': other.pid, 'pid_start': processes.start_of(other.pid), 'ended': None, 'started': ''}
  (model_dir / 'started.json').write_text(json.dumps(values))
  assert start(order(trial)).wait(queues.PATIENCE) == 16  # EBUSY
  process = trial.dispatch()
  time.sleep(0.3)
  assert trial.statuses() == {1: 'starting'}
  other.kill()
  other.wait()
  assert process.wait() == 0
  assert trial.starts() == [1]


def test_one_that_was_asked_to_stop_by_hand_is_not_tried_again(trial):
  model_dir = trial.folder / 'run'
  trial.add('exit 75', held=True, model_dir=str(model_dir))
  process = trial.dispatch()
  queues.until(trial.starts)
  identity = trial.states()[1].attempt.process
  (model_dir / 'stop.json').write_text(json.dumps(identity.as_dict()))
  trial.let_go()
  process.wait()
  (model_dir / 'stop.json').unlink()
  assert trial.starts() == [1]
  assert trial.states()[1].status == 'cancelled'
  assert pathlib.Path(trial.states()[1].job.log) == model_dir / 'run.log'


def test_a_run_that_is_ended_at_once_is_not_tried_again(trial):
  model_dir = trial.folder / 'run'
  trial.add(held=True, model_dir=str(model_dir))
  process = trial.dispatch(until_empty=True)
  queues.until(trial.starts)
  run_processes.stop_run(run_folders.Run(str(model_dir), 'run'), now=True)
  process.wait()
  assert trial.statuses() == {1: 'cancelled'}
  assert trial.states()[1].reason == 'a stop was requested, then killed by SIGKILL'
  assert trial.starts() == [1]
