"""Tests of the driver of Ray's jobs: on a real Ray of this machine, where it is installed."""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Notes its start with its cluster, and goes on as a file says.
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
    [sys.executable, '-m', 'official_ext.engines.ray_jobs'],
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
  command = [sys.executable, '-m', 'official_ext.engines.ray_jobs']
  done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
  assert (done.returncode, done.stderr) == (2, "error: Ray is not installed here: pip install 'official-ext[ray]'\n")


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
    (runs[0] / 'go').write_text('3')  # Diverged: not tried again.
    _wait_for(runs[2] / 'start-0-0', process)
    process.send_signal(signal.SIGTERM)  # Those that run save and stop.
    assert process.wait(120) == 3, (tmp_path / 'driver.err').read_text()
    assert not list(tmp_path.glob('*/start-0-1'))
  finally:
    process.kill()
