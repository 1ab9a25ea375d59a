"""Tests for launch, with a small program in place of train.py."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from official_ext.base import errors
from official_ext.cli import launch
from official_ext.operations import launch as operations_launch
from tests import tiers

# A worker that notes its start, and then follows its arguments for its number and its attempt: WORKER:ATTEMPT:DO.
_PROGRAM = """
import ctypes, json, os, pathlib, signal, socket, subprocess, sys, time
from official_ext.base import launcher
config = json.loads(os.environ['TF_CONFIG'])
index = config['task']['index']
folder = pathlib.Path(sys.argv[1])
attempt = len(list(folder.glob(f'{index}.*')))
(folder / f'{index}.{attempt}').write_text(json.dumps([os.getpid(), config, os.environ.get('CUDA_VISIBLE_DEVICES')]))
print('hello', index, attempt)
print('to stderr', file=sys.stderr)

def stop(*_):
  print('stopping')
  sys.exit(75)

plans = dict(plan.rsplit(':', 1) for plan in sys.argv[2:])
for do in plans.get(f'{index}:{attempt}', plans.get(f'{index}:*', '0')).split(','):
  if do == 'kill':
    os.kill(os.getpid(), signal.SIGKILL)
  elif do == 'suspend':
    os.kill(os.getpid(), signal.SIGSTOP)
  elif do == 'hang':
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print('hanging')
    time.sleep(100)
  elif do in ('leave', 'leave_elsewhere'):  # A child, which has this process's pipes.
    code = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid()); time.sleep(100)"
    child = subprocess.Popen([sys.executable, '-uc', code], start_new_session=do == 'leave_elsewhere')
    (folder / 'left').write_text(str(child.pid))
  elif do == 'wait':
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print('waiting')
    while True:  # Python runs no handler of a signal that comes right before a long sleep until its end.
      time.sleep(0.05)
  elif do in ('listen', 'connect'):
    host, port = config['cluster']['worker'][0].split(':')
    if do == 'listen':
      server = socket.create_server((host, int(port)))
      print('listening')
      server.accept()
      time.sleep(0.5)
    else:
      while not (folder / 'connect').exists():
        time.sleep(0.05)
      socket.create_connection((host, int(port)), timeout=5)
      print('connected')
  elif do == 'keep_the_lock':
    launcher.SignsOfLife().give()
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # The second waits for ever.
      ctypes.PyDLL(None).pthread_mutex_lock(mutex)
  elif do == 'give_signs':
    signs = launcher.SignsOfLife()
    for _ in range(30):
      signs.give()
      time.sleep(0.1)
    signs.leave()
  elif do.startswith('sleep'):
    time.sleep(float(do[5:]))
  else:
    sys.exit(int(do))
"""


class Run:
  """`official-ext launch` over _PROGRAM."""

  def __init__(self, folder, *plans, num_workers=2, max_restarts=3, grace=60.0, env=None, flags=(), redirected=''):
    self.folder = folder
    program = folder / 'program.py'
    program.write_text(textwrap.dedent(_PROGRAM))
    self.process = subprocess.Popen(
      [
        *('sh', '-c', f'exec "$@" {redirected}', 'sh'),
        sys.executable,
        '-m',
        'official_ext.cli.launch',
        f'--num_workers={num_workers}',
        f'--max_restarts={max_restarts}',
        f'--grace_seconds={grace}',
        *flags,
        f'--program={program}',
        '--',
        str(folder),
        *plans,
      ],
      env={**os.environ, 'CUDA_VISIBLE_DEVICES': '', **(env or {})},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def end(self):
    self.stdout, self.stderr = self.process.communicate(timeout=60)
    return self.process.returncode

  def starts(self, worker):
    """The notes of each attempt of a worker: its pid, TF_CONFIG, CUDA_VISIBLE_DEVICES."""
    return [json.loads(path.read_text()) for path in sorted(self.folder.glob(f'{worker}.*'))]

  def wait_for(self, line):
    for each in self.process.stdout:
      if line in each:
        return
    raise AssertionError(f'no line {line!r}')


def test_workers_get_their_cluster_and_their_lines_a_number(tmp_path):
  run = Run(tmp_path, num_workers=3)
  assert run.end() == 0
  configs = [run.starts(index)[0][1] for index in range(3)]
  addresses = configs[0]['cluster']['worker']
  assert len(set(addresses)) == 3 and all(address.startswith('127.0.0.1:') for address in addresses)
  for index, config in enumerate(configs):
    assert config == {'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': index}}
    assert f'[{index}] hello {index} 0\n' in run.stdout
    assert f'[{index}] to stderr\n' in run.stderr
  assert run.stderr.endswith('launch: the run has ended with status 0\n')


@tiers.parametrize(('do', 'outcome'), [('kill', 'was killed by SIGKILL'), ('1', 'stopped with status 1')], fast=1)
def test_all_are_started_again_after_a_crash(tmp_path, do, outcome):
  run = Run(tmp_path, f'1:0:{do}', f'0:1:{do}')
  assert run.end() == 0
  assert len(run.starts(0)) == len(run.starts(1)) == 3
  assert f'worker 1 {outcome}' in run.stderr and 'restart 2 of 3' in run.stderr


def test_a_preempted_run_is_started_again(tmp_path):
  run = Run(tmp_path, '0:0:75', '1:0:sleep1,75')  # The second worker takes its time, and has it.
  assert run.end() == 0
  assert len(run.starts(0)) == len(run.starts(1)) == 2 and 'killed' not in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize(('restarts', 'status'), [(1, 0), (0, 75)])
def test_a_suspended_worker_is_killed_when_the_others_have_stopped(tmp_path, restarts, status):
  # One that is suspended hears of nothing; the other notices that the run hangs, and stops with 75.
  run = Run(tmp_path, '0:0:sleep0.5,75', '1:0:suspend', grace=1.0, max_restarts=restarts)
  assert run.end() == status
  assert 'worker 1 is suspended, 1 s after another has ended, and killed' in run.stderr
  assert len(run.starts(0)) == 1 + restarts


@pytest.mark.slow
def test_a_worker_whose_interpreter_hangs_is_killed_when_the_others_have_stopped(tmp_path, monkeypatch, capfd):
  # Of three: one notices that the run hangs; one gives signs of life for long, as while it saves, and owes none at its
  # end; in one a native function keeps Python's lock.
  monkeypatch.setattr(operations_launch, '_LEAST_SILENCE_SECONDS', 2.0)
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
  program = tmp_path / 'program.py'
  program.write_text(_PROGRAM)
  plans = ['0:0:sleep0.5,75', '1:0:give_signs,sleep2,75', '2:0:keep_the_lock']
  words = ['--num_workers=3', '--max_restarts=1', '--grace_seconds=1', f'--program={program}', '--', str(tmp_path)]
  assert launch.main([*words, *plans]) == 0
  _, err = capfd.readouterr()
  assert 'launch: worker 2 sends no heartbeat; its threads:' in err
  line = 1 + _PROGRAM.splitlines().index('      ctypes.PyDLL(None).pthread_mutex_lock(mutex)')
  assert f'[2]   File "{program}", line {line} in ' in err
  assert 'launch: worker 2 has given no sign of life for ' in err
  assert 'worker 1 stopped with status 75' in err and 'worker 2 was killed by SIGKILL' in err
  assert [len(list(tmp_path.glob(f'{worker}.*'))) for worker in range(3)] == [2, 2, 2]


@pytest.mark.parametrize('status', [2, 3])
def test_what_would_fail_again_is_not_tried_again(tmp_path, status):
  run = Run(tmp_path, f'0:0:{status}', '1:0:1')
  assert run.end() == status
  assert len(run.starts(0)) == 1


def test_restarts_are_bounded(tmp_path):
  run = Run(tmp_path, '1:*:7', max_restarts=2)
  assert run.end() == 7
  assert len(run.starts(0)) == 3 and 'after 2 restarts' in run.stderr


@pytest.mark.slow
def test_a_worker_that_does_not_end_after_another_was_lost_is_killed(tmp_path):
  run = Run(tmp_path, '0:0:hang', '1:0:sleep0.5,kill', grace=1.0)
  assert run.end() == 0
  assert run.stderr.count('still running after 1 s, and killed: workers [0]') == 1
  assert len(run.starts(0)) == 2


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_end_the_run(tmp_path, number):
  run = Run(tmp_path, '0:*:wait', '1:*:wait')
  run.wait_for('waiting'), run.wait_for('waiting')
  run.process.send_signal(number)
  assert run.end() == 75
  assert run.stdout.count('stopping') == 2 and len(run.starts(0)) == 1


@pytest.mark.slow
@pytest.mark.parametrize('redirected', ['>/dev/full 2>/dev/full', '>&- 2>&- <&-'])
def test_a_launcher_whose_output_cannot_be_written_continues(tmp_path, redirected):
  run = Run(tmp_path, '1:0:1', redirected=redirected)
  assert run.end() == 0
  assert len(run.starts(0)) == len(run.starts(1)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
  'plans', [('0:*:sleep100', '1:*:sleep100'), ('0:*:sleep100', '1:*:wait'), ('0:*:0', '1:*:hang')]
)
def test_workers_that_a_stop_ends_before_they_can_save_have_not_failed(tmp_path, plans):
  # As while they import; or who does not listen is killed.
  run = Run(tmp_path, *plans, grace=1.0)
  run.wait_for('hanging' if 'hang' in plans[1] else 'waiting' if 'wait' in plans[1] else 'hello')
  while len(list(tmp_path.glob('?.0'))) < 2:
    time.sleep(0.05)
  run.process.terminate()
  if 'hang' in plans[1]:
    time.sleep(0.5)
    os.kill(run.starts(1)[0][0], signal.SIGKILL)
  assert run.end() == 75 and len(run.starts(0)) == 1


@pytest.mark.slow
def test_a_suspended_worker_hears_a_stop_and_one_that_is_suspended_after_it_is_killed(tmp_path):
  run = Run(tmp_path, '0:*:wait', '1:*:wait')
  run.wait_for('waiting'), run.wait_for('waiting')
  os.kill(run.starts(1)[0][0], signal.SIGSTOP)
  run.process.send_signal(signal.SIGHUP)  # Which this program does not treat as a request to save.
  assert run.end() == 75 and run.stdout.count('stopping') == 2
  other = tmp_path / 'other'
  other.mkdir()
  run = Run(other, '0:*:sleep100', '1:*:hang', grace=1.0)
  run.wait_for('hanging')
  run.process.terminate()
  time.sleep(0.3)
  os.kill(run.starts(1)[0][0], signal.SIGSTOP)
  assert run.end() == 75 and run.stderr.count('killed: workers [1]') <= 1
  assert 'worker 1 was killed by SIGKILL' in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize('do', ['leave', 'leave_elsewhere'])
def test_what_a_worker_leaves_behind_keeps_nobody_waiting(tmp_path, monkeypatch, capfd, do):
  monkeypatch.setattr(operations_launch, '_STRAYS_SECONDS', 1.0)
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
  (tmp_path / 'program.py').write_text(_PROGRAM)
  start = time.monotonic()
  words = ['--max_restarts=0', f'--program={tmp_path}/program.py', '--', str(tmp_path), f'1:*:{do},sleep0.5,7']
  assert launch.main(words) == 7
  assert time.monotonic() - start < 30
  child = int((tmp_path / 'left').read_text())
  assert f'[1] {child}\n' in capfd.readouterr().out
  assert _is_running(child) == (do == 'leave_elsewhere')  # A process that left the session is meant to live on.
  if do == 'leave_elsewhere':
    os.kill(child, signal.SIGKILL)


def test_workers_end_with_a_launcher_that_was_killed(tmp_path):
  run = Run(tmp_path, '0:*:wait', '1:*:wait')
  run.wait_for('waiting'), run.wait_for('waiting')
  run.process.kill()
  pids = [run.starts(index)[0][0] for index in range(2)]
  deadline = time.monotonic() + 60
  while any(_is_running(pid) for pid in pids) and time.monotonic() < deadline:
    time.sleep(0.1)
  assert not any(_is_running(pid) for pid in pids)
  run.process.communicate()


@pytest.mark.slow
def _allows_private_networks():
  code = 'from official_ext.operations import launch; launch.enter_private_network("--x")'
  return subprocess.run([sys.executable, '-c', code], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _allows_private_networks(), reason='this system gives no network namespaces')
def test_nobody_outside_reaches_workers_in_a_private_network(tmp_path):
  run = Run(tmp_path, '0:0:listen', '1:0:connect', flags=['--private_network'])
  run.wait_for('listening')
  host, port = run.starts(0)[0][1]['cluster']['worker'][0].split(':')
  with pytest.raises(ConnectionRefusedError):
    socket.create_connection((host, int(port)), timeout=5)
  (tmp_path / 'connect').touch()
  assert run.end() == 0
  assert '[1] connected' in run.stdout


def _is_running(pid):
  try:
    with open(f'/proc/{pid}/stat') as f:
      return f.read().rpartition(')')[2].split()[0] != 'Z'
  except FileNotFoundError:
    return False


def test_gpus_are_shared_out(tmp_path, monkeypatch):
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3,1,0,2,5')
  assert operations_launch.gpu_shares(2) == ['3,1', '0,2']
  with pytest.raises(errors.UserError, match='--num_workers=6: there are 5 GPUs'):
    operations_launch.gpu_shares(6)
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
  assert operations_launch.gpu_shares(2) is None
  run = Run(tmp_path, env={'CUDA_VISIBLE_DEVICES': '0,1'})
  assert run.end() == 0
  assert [run.starts(index)[0][2] for index in range(2)] == ['0', '1']


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ([], 'launch: the flags of train.py must follow --'),
    (['--num_workers=0', '--', '--mode=train'], '--num_workers=0: expected 1 or more'),
    (['--grace_seconds=nan', '--', '--mode=train'], '--grace_seconds=nan: expected 0 or more'),
    (['--num_workers=two', '--', '--mode=train'], 'launch: argument --num_workers: invalid int value'),
    (['--workers=2', '--', '--mode=train'], 'launch: --workers: no such flag; '),
    (['--program=no_such.py', '--', '--mode=train'], '--program=no_such.py: no such file'),
  ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
  assert launch.main(arguments) == 2
  assert capsys.readouterr().err.startswith(f'error: {message}')
