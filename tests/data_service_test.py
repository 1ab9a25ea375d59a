"""`official-ext data_service` and train.py as processes: the run ends alike after any failure of the service."""

import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from official_ext.cli import main
from tests.soak import comparison

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXPERIMENT = 'digits_mlp_with_scalar'
REGISTRY = '--registry=tests.digits_mlp_with_scalar'
STEPS, INTERVAL = 800, 100  # Long enough for a worker that starts at 3 * INTERVAL to be asked too.
COMMAND = 'import sys; from official_ext.cli import main; sys.exit(main.main(sys.argv[1:]))'


class Services:
  """Processes of `official-ext data_service`."""

  def __init__(self, folder, start_script):
    self._folder, self._start_script = folder, start_script

  def start(self, *arguments, seconds=0.03):
    slow = f'--set=task.reading_seconds={seconds}'
    words = ['data_service', EXPERIMENT, REGISTRY, slow, '--host=localhost', *arguments]
    script = self._start_script(COMMAND, words)
    deadline = time.monotonic() + 60
    while True:
      text = script.stdout()
      found = re.search(r'^dispatcher +(grpc://localhost:\d+)$', text, re.MULTILINE)
      if found and 'runs need' in text:
        return script, found[1]
      assert script.process.poll() is None and time.monotonic() < deadline, script.finish(1)
      time.sleep(0.05)


@pytest.fixture
def services(tmp_path, start_script):
  return Services(tmp_path, start_script)


def _flags(folder, *more):
  return [
    f'--experiment={EXPERIMENT}',
    REGISTRY,
    '--mode=train',
    f'--model_dir={folder}',
    *(f'--set=train_steps={STEPS}', '--set=steps_per_loop=10', f'--set=checkpoint_interval={INTERVAL}'),
    *('--set=validation_interval=0', '--set=runtime.enable_xla=false'),
    *more,
  ]


def _with_service(address, seconds=0.03):
  return [
    f'--tf_data_service={address}',
    '--set=task.train_data.enable_tf_data_service=true',
    f'--set=task.reading_seconds={seconds}',
  ]


def _wait_for(folder: pathlib.Path, step: int, process) -> None:
  deadline = time.monotonic() + 120
  while not (folder / f'ckpt-{step}.manifest.json').exists():
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.02)


@pytest.mark.slow
def test_a_run_ends_alike_when_workers_and_the_dispatcher_are_killed_and_started(
  tmp_path, services, run_train, start_train
):
  straight, disturbed = tmp_path / 'straight', tmp_path / 'disturbed'
  assert run_train(_flags(straight)).returncode == 0
  first, address = services.start('--port=0')
  dispatcher = address.removeprefix('grpc://')
  second, _ = services.start(f'--dispatcher_address={dispatcher}')
  run = start_train(_flags(disturbed, *_with_service(address)))
  _wait_for(disturbed, INTERVAL, run)
  second.process.kill()
  _wait_for(disturbed, 2 * INTERVAL, run)
  first.process.kill()
  again, same = services.start(f'--port={dispatcher.rpartition(":")[2]}')
  assert same == address
  _wait_for(disturbed, 3 * INTERVAL, run)
  third, _ = services.start(f'--dispatcher_address={dispatcher}')
  output, _ = run.communicate(120)
  assert run.returncode == 0, output
  assert comparison.differences(disturbed, straight) == []
  for worker in (again, third):
    worker.process.send_signal(signal.SIGTERM)
    done = worker.finish()
    assert done.returncode == 0, done
    assert int(re.search(r'^made +(\d+) batches$', done.stdout, re.MULTILINE)[1]) > 0


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--dispatcher_address=nowhere'], "error: --dispatcher_address: expected grpc://HOST:PORT, got 'grpc://nowhere'"),
    (['--port=-1'], 'error: data_service: argument --port: expected 0 to 65535'),
    (['--worker_port=65536'], 'error: data_service: argument --worker_port: expected 0 to 65535'),
    (['--port=0', '--host=no such host'], "error: --host: 'no such host' cannot be found"),
    (['--set=nothing=1'], 'error: nothing'),
  ],
)
def test_mistakes_of_a_service_are_one_line(capsys, arguments, message):
  assert main.main(['data_service', 'digits_mlp', *arguments]) == 2
  found = capsys.readouterr().err
  assert found.startswith(message) and len(found.splitlines()) == 1


def test_data_that_are_not_there_are_named(start_script):
  done = start_script(COMMAND, ['data_service', 'resnet_imagenet', '--port=0']).finish()
  assert done.returncode == 2 and 'Traceback' not in done.stderr
  assert "error: task.train_data.input_path: no file matches 'imagenet-2012-tfrecord/train*'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('flag', ['--port', '--worker_port'])
def test_a_port_that_is_taken_is_named(capsys, flag):
  """Also by one who would share it, as TensorFlow's servers do."""
  with socket.socket() as taken:
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    taken.bind(('', 0))
    taken.listen()
    port = taken.getsockname()[1]
    assert main.main(['data_service', 'digits_mlp', f'{flag}={port}']) == 2
  assert capsys.readouterr().err.startswith(
    f'error: {flag}: {port}: no server could be started: Address already in use'
  )


@pytest.mark.slow
def test_what_is_no_dispatcher_is_waited_for_until_a_signal(start_script):
  with socket.create_server(('localhost', 0)) as other:
    address = f'localhost:{other.getsockname()[1]}'
    waiting = start_script(COMMAND, ['data_service', 'digits_mlp', f'--dispatcher_address={address}'])
    deadline = time.monotonic() + 60
    while f'connecting to  the dispatcher at {address}' not in waiting.stdout() and time.monotonic() < deadline:
      time.sleep(0.1)
    time.sleep(3)  # By now it is in TensorFlow's hands.
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.finish().returncode in (-signal.SIGTERM, 0)


# Three pipelines at once, each of which makes its batches in a function of Python, with one thread for operations.
_ON_ONE_CORE = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import threading
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
import official_ext as ext
import numpy as np

data = ext.DataConfig(
  global_batch_size=8, is_training=True, enable_tf_data_service=True, tf_data_service_address='grpc://localhost:1'
)
class Source(ext.Source):
  def __len__(self):
    return 100
  def fetch(self, indices):
    return [{'number': np.float32(index)} for index in indices]
def take(iterator):
  for _ in range(100):
    next(iterator)
threads = [threading.Thread(target=take, args=[iter(ext.build_dataset(Source(), data))]) for _ in range(3)]
for thread in threads:
  thread.start()
for thread in threads:
  thread.join()
print('done', flush=True)
os._exit(0)
"""


@pytest.mark.soak
def test_one_core_is_enough():
  done = subprocess.run(
    [sys.executable, '-c', _ON_ONE_CORE], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
  )
  assert done.stdout == 'done\n', done.stderr
