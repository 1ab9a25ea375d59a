"""Tests of Ray's jobs and their driver: on a real Ray of this machine, where it is installed."""

import argparse
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from official_ext.base.run_folder import run_status
from official_ext.operations.engines import ray_jobs
from tests.operations.engines import ray_cluster
from tests.operations.engines import rendered
from tests.operations.engines import trainings

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Notes its start with its cluster, and continues as a file says.
_PROGRAM = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
index = json.loads(os.environ.get('TF_CONFIG', '{"task": {"index": 0}}'))['task']['index']
number = len(list(folder.glob(f'start-{index}-*')))
(folder / f'start-{index}-{number}').write_text(f"{os.getpid()} {os.environ.get('TF_CONFIG', '')}")
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
while not (folder / 'go').exists():
  time.sleep(0.05)
sys.exit(int((folder / 'go').read_text()))
"""
_needs_ray = pytest.mark.skipif(importlib.util.find_spec('ray') is None, reason='no Ray here: pip install ray[default]')


def _start(tmp_path, runs, **values):
  program = tmp_path / 'program.py'
  program.write_text(_PROGRAM)
  words = [[sys.executable, str(program), str(run)] for run in runs]
  for run in runs:
    run.mkdir()
  spec = {'runs': words, 'logs': [], 'cwd': str(tmp_path), 'env': {}, 'num_workers': 1, 'cpus': 1, 'gpus': 0}
  spec |= {'at_once': None, 'max_restarts': 3, **values}
  return subprocess.Popen(
    [sys.executable, '-m', 'official_ext.operations.engines.ray_jobs'],
    stdin=_file(tmp_path / 'job.json', json.dumps(spec)),
    cwd=ROOT,
    stderr=(tmp_path / 'driver.err').open('w'),
    env={**os.environ, 'RAY_DEDUP_LOGS': '0', 'RAY_USAGE_STATS_ENABLED': '0'},
  )


def _file(path, text):
  path.write_text(text)
  return path.open()


def _wait_for(path, process):
  deadline = time.monotonic() + 300
  while not (path.exists() and path.read_text()):
    assert time.monotonic() < deadline and process.poll() is None, path
    time.sleep(0.1)
  return path.read_text()


@pytest.mark.skipif(importlib.util.find_spec('ray') is not None, reason='Ray is installed')
def test_a_missing_ray_is_one_line():
  command = [sys.executable, '-m', 'official_ext.operations.engines.ray_jobs']
  done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
  assert (done.returncode, done.stderr) == (2, "error: Ray is not installed here: pip install 'official-ext[ray]'\n")


@pytest.mark.parametrize(
  ('answer', 'expected'),
  [
    ("INFO cli.py:92 -- Status for job 'failed-once': RUNNING", True),
    ("INFO cli.py:92 -- Status for job 'a': PENDING\nStatus message: Job has not started yet.", True),
    ("SUCC cli.py:64 -- Job 'a' succeeded", False),
    ("WARN cli.py:85 -- Job 'a' was stopped", False),
    ("ERR cli.py:72 -- Job 'a' failed", False),
    ('something else', None),
  ],
)
def test_how_a_job_stands_is_read_from_what_ray_prints(monkeypatch, tmp_path, answer, expected):
  rendered.fake(tmp_path, 'ray', f'cat <<"END"\n{answer}\nEND')
  monkeypatch.setenv('PATH', rendered.path_of(tmp_path))
  assert ray_jobs.is_active('a', argparse.Namespace(address=None)) is expected


@_needs_ray
@pytest.mark.soak
def test_a_worker_that_is_killed_is_replaced(tmp_path):
  run = tmp_path / 'run'
  process = _start(tmp_path, [run], num_workers=2)
  try:
    texts = [_wait_for(run / f'start-{index}-0', process).split(maxsplit=1) for index in range(2)]
    clusters = [json.loads(text)['cluster']['worker'] for _, text in texts]
    assert clusters[0] == clusters[1] and len(set(clusters[0])) == 2
    os.kill(int(texts[1][0]), signal.SIGKILL)  # The other one saves, and both are started again.
    texts = [_wait_for(run / f'start-{index}-1', process) for index in range(2)]
    actor = pathlib.Path(f'/proc/{texts[0].split()[0]}/stat').read_text().rpartition(')')[2].split()[1]
    os.kill(int(actor), signal.SIGKILL)  # Its process ends with it.
    for index in range(2):
      _wait_for(run / f'start-{index}-2', process)
    (run / 'go').write_text('0')
    assert process.wait(120) == 0, (tmp_path / 'driver.err').read_text()
  finally:
    process.kill()


@_needs_ray
@pytest.mark.soak
def test_many_runs_are_started_as_there_is_room(tmp_path):
  runs = [tmp_path / name for name in 'abc']
  process = _start(tmp_path, runs, at_once=2)
  try:
    for run in runs[:2]:
      _wait_for(run / 'start-0-0', process)
    assert not (runs[2] / 'start-0-0').exists()
    (runs[0] / 'go').write_text('3')  # Diverged: not retried.
    _wait_for(runs[2] / 'start-0-0', process)
    process.send_signal(signal.SIGTERM)  # Those that run save and stop.
    assert process.wait(120) == 3, (tmp_path / 'driver.err').read_text()
    assert not list(tmp_path.glob('*/start-0-1'))
  finally:
    process.kill()


# Trainings, submitted by the command.


@pytest.fixture(scope='module')
def cluster(unused_ports):
  if reason := ray_cluster.missing():
    pytest.skip(f'no Ray here: {reason}')
  with ray_cluster.running(unused_ports(4)) as found:
    yield found


def _call(cluster, *words, status=0):
  """Submits by a separate process; returns its output."""
  words = [*trainings.COMMAND, 'submit', '--engine=ray', f'--address={cluster.address}', *words]
  return trainings.call(words, cluster.environment, 600, status)


def _wait_for_checkpoint(cluster, job, model_dir):
  def refuse():
    assert cluster.state(job) in ('PENDING', 'RUNNING', ''), cluster.logs(job)

  return trainings.wait_for_checkpoint(model_dir, refuse)


@pytest.mark.soak
def test_two_workers_train_together_and_one_is_killed_in_the_middle(cluster, tmp_path):
  straight, disturbed = tmp_path / 'straight', tmp_path / "it's $disturbed"
  for folder in (straight, disturbed):
    _call(cluster, f'--name={folder.name[-8:]}', '--nodes=2', '--', f'--model_dir={folder}', *trainings.FLAGS)
    if folder == disturbed:
      chief = _wait_for_checkpoint(cluster, 'isturbed', disturbed)['pid']
      os.kill(_other_worker(chief, disturbed), signal.SIGKILL)
    assert cluster.wait(folder.name[-8:]) == 'succeeded', cluster.logs(folder.name[-8:])
  record = run_status.read(str(disturbed))
  assert (record['status'], record['attempt'], record['step']) == ('finished', 2, trainings.STEPS)
  assert json.loads(record['environment']['TF_CONFIG'])['task'] == {'type': 'worker', 'index': 0}
  trainings.assert_same(trainings.weights(disturbed), trainings.weights(straight))


def _other_worker(chief, model_dir):
  """The process of the run's second worker."""
  flag = f'--model_dir={model_dir}'.encode()
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    try:
      words = path.read_bytes().split(b'\0')
    except OSError:
      continue
    if flag in words and b'-u' in words[:2] and int(path.parent.name) != chief:
      return int(path.parent.name)
  raise AssertionError('there is no other worker')


@pytest.mark.soak
def test_the_points_of_a_sweep_are_runs_of_a_job(cluster, tmp_path, capsys):
  runs = tmp_path / 'runs'
  folders = trainings.write_sweep(tmp_path / 'all.yaml', runs, 3)
  array = [f'--array={tmp_path}/all.yaml', f'--runs_dir={runs}', '--slots=2', '--', *trainings.SWEEP_FLAGS]
  assert '3 runs' in _call(cluster, *array)
  for folder, number in zip(folders, (signal.SIGTERM, signal.SIGKILL)):  # A preemption, and a machine that is lost.
    record = _wait_for_checkpoint(cluster, 'all', folder)
    assert record['status'] == 'running'
    os.kill(record['pid'], number)
  assert cluster.wait('all') == 'succeeded', cluster.logs('all')
  found = trainings.points(capsys, runs, 'all')
  assert [point['status'] for point in found] == ['finished'] * 3
  assert len({point['value'] for point in found}) == 1 and found[0]['value'] > 0.8
  assert [run_status.read(str(folder))['attempt'] for folder in folders] == [2, 2, 1]
  for folder in folders[:2]:
    trainings.assert_same(*(trainings.weights(each) for each in (folder, folders[2])))
  assert 'no point is left' in _call(cluster, *array, status=2)
