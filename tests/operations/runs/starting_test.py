"""Tests for starting and child_process: real processes."""

import contextlib
import dataclasses
import inspect
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from official_ext.base import errors
from official_ext.base import processes
from official_ext.base.files import local_files
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses
from tests.operations.queue import queues


def _run(path):
  return run_folders.Run(str(path), path.name)


def _wait(condition, seconds=60):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


def _python(code):
  return [sys.executable, '-S', '-c', code]


@pytest.fixture
def started():
  """Identities of processes to kill in the end."""
  found = []
  yield found
  for identity in found:
    if processes.is_alive(identity):
      with contextlib.suppress(ProcessLookupError):  # It may end between the two.
        os.kill(identity.pid, signal.SIGKILL)


def test_a_started_process_is_detached_and_its_end_is_noted(tmp_path, started):
  folder = tmp_path / 'new' / 'run'
  code = """
import json, os, signal, sys, time
facts = {'fds': sorted(os.listdir('/proc/self/fd')), 'session': os.getsid(0) == os.getpid(), 'cwd': os.getcwd()}
facts['stdin'] = sys.stdin.read()
facts['pipe'] = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
facts['word'], facts['mine'] = sys.argv[1], os.environ.get('MINE')
print(json.dumps(facts), flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.02)
sys.exit(7)
"""
  go = tmp_path / 'go'
  kept = os.open(os.devnull, os.O_RDONLY)
  os.set_inheritable(kept, True)
  try:
    identity = run_processes.start_run(
      [*_python(code), "it's 1 word", str(go)], str(folder), env={**os.environ, 'MINE': 'x'}, cwd=str(tmp_path)
    )
  finally:
    os.close(kept)
  started.append(identity)
  run = _run(folder)
  assert processes.parse_identity(run.started()) == identity
  assert processes.is_alive(identity)
  assert statuses.of_run(run).status == 'starting'
  _wait(lambda: len(run_processes.log_tail(run, 100)) > 1)
  facts = json.loads(run_processes.log_tail(run, 1)[0])
  # 3 is the descriptor by which it lists them.
  assert facts.pop('fds') == ['0', '1', '2', '3']
  assert facts == {
    'session': True,
    'cwd': str(tmp_path),
    'stdin': '',
    'pipe': True,
    'word': "it's 1 word",
    'mine': 'x',
  }
  with pytest.raises(errors.UserError, match='the run lives'):
    run_processes.start_run(['true'], str(folder))
  go.touch()
  _wait(lambda: run.started()['ended'])
  assert run.started()['exit_status'] == 7
  assert statuses.of_run(run).status == 'failed'
  started.append(run_processes.start_run(['true'], str(folder)))  # Once it is gone another may start.
  assert 'new/run' not in run.started()['command']


def test_a_run_outlives_its_starter_and_is_started_once_by_many(tmp_path, started):
  folder = tmp_path / 'run'
  code = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).resolve().parents[3])!r})
from official_ext.base import errors
from official_ext.operations.runs import run_processes
try:
  run_processes.start_run(['sleep', '600'], {str(folder)!r})
  print('started')
except errors.UserError as error:
  print('refused:', error)
"""
  starters = [subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
  outputs = [process.communicate(timeout=120)[0] for process in starters]
  identity = processes.parse_identity(_run(folder).started())
  started.append(identity)
  assert sorted(line.split()[0] for line in outputs) == ['refused:', 'refused:', 'started']
  assert processes.is_alive(identity)  # Its starter is gone.
  assert run_processes.log_tail(_run(folder), 100)[0].endswith('] sleep 600')
  assert len(run_processes.log_tail(_run(folder), 100)) == 1


def test_a_starter_that_is_killed_at_any_moment_leaves_no_unknown_process(tmp_path, started):
  """The note names the running process, after a kill of the starter at any point."""
  mark = f'{600 + os.getpid() / 1e7}'
  for number in range(4):
    folder = tmp_path / str(number)
    code = f"""
import os, sys, threading, time
sys.path.insert(0, {str(pathlib.Path(__file__).resolve().parents[3])!r})
from official_ext.operations.runs import run_processes
threading.Timer({number * 0.03}, lambda: os.kill(os.getpid(), 9)).start()
run_processes.start_run(['sleep', '{mark}'], {str(folder)!r})
time.sleep(60)
"""
    subprocess.run([sys.executable, '-c', code], check=False, timeout=120)
  time.sleep(1.0)  # A supervisor may still be at work.
  noted = [processes.parse_identity(_run(tmp_path / str(n)).started() or {}) for n in range(4)]
  started += [identity for identity in noted if identity]
  found = subprocess.run(['pgrep', '-f', f'^sleep {mark}$'], capture_output=True, text=True).stdout.split()
  assert sorted(map(int, found)) == sorted(identity.pid for identity in noted if identity)


def test_a_supervisor_that_is_killed_between_its_steps_leaves_no_unknown_process(tmp_path, started, monkeypatch):
  """The note names the running process, if the supervisor or that process is killed before any of their steps."""
  mark, dies_at, num_refused, found = f'{700 + os.getpid() / 1e7}', 0, 0, []
  program = shutil.which('sleep')  # Of a mere name every folder of PATH is tried.
  before, main, after = run_processes._SUPERVISOR.partition('child_process.main')
  hook = 'from collections.abc import Callable, Collection\nimport signal\n' + inspect.getsource(queues.dying_at)
  while not found:  # Until no step was left at which to die.
    dies_at += 1
    hooked = f"{hook}\nsys.addaudithook(dying_at({dies_at}, ('os.rename', 'os.fork', 'os.exec')))\n"
    monkeypatch.setattr(run_processes, '_SUPERVISOR', before + hooked + main + after)
    run = _run(tmp_path / str(dies_at))
    try:
      started.append(run_processes.start_run([program, mark], run.path))
    except errors.UserError as error:
      assert 'its supervisor has ended' in str(error)
      num_refused += 1
    _wait(lambda run=run: not local_files.is_locked(run.file(run_processes.START_LOCK)))  # No process is at work.
    noted = processes.parse_identity(run.started() or {})
    found = subprocess.run(['pgrep', '-f', f'^{program} {mark}$'], capture_output=True, text=True).stdout.split()
    assert found in ([], [str(noted and noted.pid)])
  assert num_refused == 5  # Two forks, the log, a file and its new name.
  assert dies_at == num_refused + 2  # The command itself, and then all went well.


@pytest.mark.parametrize(('number', 'exit_status'), [(signal.SIGTERM, 5), (signal.SIGKILL, None)])
def test_a_detached_run_outlives_its_supervisor_which_hears_no_signals(tmp_path, started, number, exit_status):
  go = tmp_path / 'go'
  code = 'import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\nsys.exit(5)'
  identity = run_processes.start_run([*_python(code), str(go)], str(tmp_path / 'run'))
  started.append(identity)
  supervisor = int(pathlib.Path(f'/proc/{identity.pid}/stat').read_text().rpartition(')')[2].split()[1])
  assert 'child_process' in pathlib.Path(f'/proc/{supervisor}/cmdline').read_text()
  os.kill(supervisor, number)
  time.sleep(0.2)
  assert processes.is_alive(identity)
  go.touch()
  _wait(lambda: not processes.is_alive(identity))
  _wait(lambda: not processes.is_alive(dataclasses.replace(identity, pid=supervisor, pid_start=None)))
  assert _run(tmp_path / 'run').started()['exit_status'] == exit_status


def test_what_cannot_be_started_is_reported_and_noted(tmp_path):
  with pytest.raises(errors.UserError, match='/none/program: cannot be started: No such file or directory'):
    run_processes.start_run(['/none/program'], str(tmp_path / 'a'))
  run = _run(tmp_path / 'a')
  _wait(lambda: run.started()['ended'])
  assert statuses.of_run(run).reason == 'ended with status 127 before it began to train'
  assert run_processes.log_tail(run, 1) == ['error: /none/program: cannot be run: No such file or directory']
  with pytest.raises(errors.UserError, match='no such folder'):
    run_processes.start_run(['true'], str(tmp_path / 'a'), cwd=str(tmp_path / 'none'))
  (tmp_path / 'b').mkdir()
  (tmp_path / 'b' / 'run.log').mkdir()
  with pytest.raises(errors.UserError, match='run.log: cannot be started: Is a directory'):
    run_processes.start_run(['true'], str(tmp_path / 'b'))
  (tmp_path / 'file').touch()
  with pytest.raises(errors.StorageError, match='file: cannot be written'):
    run_processes.start_run(['true'], str(tmp_path / 'file'))


def test_passwords_are_not_noted(tmp_path, started):
  started.append(run_processes.start_run(['true', '--set=task.url=https://me:hunter22@host/'], str(tmp_path / 'a')))
  run = _run(tmp_path / 'a')
  assert run.started()['is_masked']
  content = pathlib.Path(run.file('started.json')).read_text() + pathlib.Path(run.log_path()).read_text()
  assert 'hunter22' not in content


def test_an_evaluation_starts_beside_a_training(tmp_path, started):
  started.append(run_processes.start_run(['sleep', '600'], str(tmp_path / 'a')))
  started.append(run_processes.start_run(['sleep', '600'], str(tmp_path / 'a'), mode='continuous_eval'))
  run = _run(tmp_path / 'a')
  assert run.modes() == ['train', 'continuous_eval']
  assert [processes.parse_identity(run.started(mode)) for mode in run.modes()] == started
  assert os.path.exists(run.file('run.continuous_eval.log'))


def test_threads_may_start_runs_at_once(tmp_path, started):
  folders = [str(tmp_path / str(number)) for number in range(4)]
  threads = [
    threading.Thread(target=lambda f=f: started.append(run_processes.start_run(['sleep', '9'], f))) for f in folders
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len({identity.pid for identity in started}) == 4


def test_a_command_that_does_not_start_in_the_background_states_why(tmp_path):
  log = tmp_path / 'log'
  log.write_text('of an earlier one\n')
  with pytest.raises(
    errors.StorageError, match='official-ext runs: has not started: .*none: cannot be read: .*; .*log has its output'
  ):
    run_processes.start_background(['runs', 'list', str(tmp_path / 'none')], str(log), lambda: False)
  assert log.read_text().startswith('of an earlier one\n')
  run_processes.start_background(['runs', 'list', str(tmp_path / 'none')], str(log), lambda: False, done=(2,))
  with pytest.raises(errors.StorageError, match='none/log: No such file or directory'):
    run_processes.start_background(['runs', 'list'], str(tmp_path / 'none' / 'log'), lambda: False)
