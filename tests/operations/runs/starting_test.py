"""Tests for starting and watcher: real processes."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from official_ext.base import errors
from official_ext.base.processes import process_identity
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import run_log
from official_ext.operations.runs import starting


def _run(path):
  return run_folder.Run(str(path), path.name)


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
    if process_identity.is_alive(identity):
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
    identity = starting.start(
      [*_python(code), "it's 1 word", str(go)], str(folder), env={**os.environ, 'MINE': 'x'}, cwd=str(tmp_path)
    )
  finally:
    os.close(kept)
  started.append(identity)
  run = _run(folder)
  assert process_identity.parse(run.started()) == identity
  assert process_identity.is_alive(identity)
  assert judged_status.of_run(run).status == 'starting'
  _wait(lambda: len(run_log.tail(run, 100)) > 1)
  facts = json.loads(run_log.tail(run, 1)[0])
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
    starting.start(['true'], str(folder))
  go.touch()
  _wait(lambda: run.started()['ended'])
  assert run.started()['exit_status'] == 7
  assert judged_status.of_run(run).status == 'failed'
  started.append(starting.start(['true'], str(folder)))  # Once it is gone another may start.
  assert 'new/run' not in run.started()['command']


def test_a_run_outlives_its_starter_and_is_started_once_by_many(tmp_path, started):
  folder = tmp_path / 'run'
  code = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).resolve().parents[3])!r})
from official_ext.base import errors
from official_ext.operations.runs import starting
try:
  starting.start(['sleep', '600'], {str(folder)!r})
  print('started')
except errors.UserError as error:
  print('refused:', error)
"""
  starters = [subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
  said = [process.communicate(timeout=120)[0] for process in starters]
  identity = process_identity.parse(_run(folder).started())
  started.append(identity)
  assert sorted(line.split()[0] for line in said) == ['refused:', 'refused:', 'started']
  assert process_identity.is_alive(identity)  # Its starter is gone.
  assert run_log.tail(_run(folder), 100)[0].endswith('] sleep 600')
  assert len(run_log.tail(_run(folder), 100)) == 1


def test_a_starter_that_is_killed_at_any_moment_leaves_no_unknown_process(tmp_path, started):
  """The note names the running process, after a kill of the starter at any point."""
  mark = f'{600 + os.getpid() / 1e7}'
  for number in range(4):
    folder = tmp_path / str(number)
    code = f"""
import os, sys, threading, time
sys.path.insert(0, {str(pathlib.Path(__file__).resolve().parents[3])!r})
from official_ext.operations.runs import starting
threading.Timer({number * 0.03}, lambda: os.kill(os.getpid(), 9)).start()
starting.start(['sleep', '{mark}'], {str(folder)!r})
time.sleep(60)
"""
    subprocess.run([sys.executable, '-c', code], check=False, timeout=120)
  time.sleep(1.0)  # A watcher may still be at work.
  noted = [process_identity.parse(_run(tmp_path / str(n)).started() or {}) for n in range(4)]
  started += [identity for identity in noted if identity]
  found = subprocess.run(['pgrep', '-f', f'^sleep {mark}$'], capture_output=True, text=True).stdout.split()
  assert sorted(map(int, found)) == sorted(identity.pid for identity in noted if identity)


def test_what_cannot_be_started_is_told_and_noted(tmp_path):
  with pytest.raises(errors.UserError, match='/none/program: cannot be started: No such file or directory'):
    starting.start(['/none/program'], str(tmp_path / 'a'))
  run = _run(tmp_path / 'a')
  _wait(lambda: run.started()['ended'])
  assert judged_status.of_run(run).reason == 'ended with status 127 before it began to train'
  assert run_log.tail(run, 1) == ['/none/program: No such file or directory']
  with pytest.raises(errors.UserError, match='no such folder'):
    starting.start(['true'], str(tmp_path / 'a'), cwd=str(tmp_path / 'none'))
  (tmp_path / 'b').mkdir()
  (tmp_path / 'b' / 'run.log').mkdir()
  with pytest.raises(errors.UserError, match='run.log: cannot be started: Is a directory'):
    starting.start(['true'], str(tmp_path / 'b'))
  (tmp_path / 'file').touch()
  with pytest.raises(errors.StorageError, match='file: cannot be written'):
    starting.start(['true'], str(tmp_path / 'file'))


def test_passwords_are_not_noted(tmp_path, started):
  started.append(starting.start(['true', '--set=task.url=https://me:hunter22@host/'], str(tmp_path / 'a')))
  run = _run(tmp_path / 'a')
  assert run.started()['is_masked']
  content = pathlib.Path(run.file('started.json')).read_text() + pathlib.Path(run.log_path()).read_text()
  assert 'hunter22' not in content


def test_an_evaluation_starts_beside_a_training(tmp_path, started):
  started.append(starting.start(['sleep', '600'], str(tmp_path / 'a')))
  started.append(starting.start(['sleep', '600'], str(tmp_path / 'a'), mode='continuous_eval'))
  run = _run(tmp_path / 'a')
  assert run.modes() == ['train', 'continuous_eval']
  assert [process_identity.parse(run.started(mode)) for mode in run.modes()] == started
  assert os.path.exists(run.file('run.continuous_eval.log'))


def test_threads_may_start_runs_at_once(tmp_path, started):
  folders = [str(tmp_path / str(number)) for number in range(4)]
  threads = [threading.Thread(target=lambda f=f: started.append(starting.start(['sleep', '9'], f))) for f in folders]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len({identity.pid for identity in started}) == 4
