"""What all tests share: devices, environment, and the driver as a real process."""

import official_ext  # noqa: F401  Before tensorflow.

# isort: split
import os
import pathlib
import signal
import subprocess
import sys

# Two test processes share two cores: one thread for each operation. Processes that tests start inherit this.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_NUM_INTRAOP_THREADS', '1')
# Programs of a few steps are compiled, not optimised: a fifth of the time of such tests. Processes do not inherit this.
os.environ.setdefault('XLA_FLAGS', '--xla_backend_optimization_level=0')

import pytest
import tensorflow as tf

from tests import train_processes

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUM_CPUS = 4

# `nohup make test` ignores it, and the programs of this library then do too: they are started by tests that send it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

tf.config.set_logical_device_configuration(
  tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * NUM_CPUS
)


def _iterate_without_autotune() -> None:
  """Lets no data set that is iterated in this process tune itself.

  tf.data's tuning thread sleeps between its rounds, ever longer, and TensorFlow's cancellation does not wake it
  (`Model::OptimizeLoop` looks at a flag that is set after the wake-up call). So the garbage collection of an iterator,
  at any moment, may take as long as the iterator has lived, up to a minute.
  """
  apply_debug_options = tf.data.Dataset._apply_debug_options

  def without_autotune(dataset):
    options = tf.data.Options()
    options.autotune.enabled = False
    return apply_debug_options(dataset.with_options(options))

  tf.data.Dataset._apply_debug_options = without_autotune


_iterate_without_autotune()


@pytest.fixture(scope='session')
def train_server():
  """What `run_train` and `start_train` fork from; started at first use."""
  servers = []

  def server() -> train_processes.Server:
    if not servers:
      servers.append(train_processes.Server())
    return servers[0]

  yield server
  for each in servers:
    each.close()


@pytest.fixture(scope='session')
def run_train(train_server):
  """Runs `python train.py ARGUMENTS` to its end as a process of its own.

  run_train(arguments, timeout=300, env=None, cwd=ROOT, fresh=False) -> subprocess.CompletedProcess with text in stdout
  and stderr. `env` is added to this process's environment. A run that takes longer than `timeout` seconds is killed and
  fails. `fresh` starts another interpreter, instead of a fork of one that has TensorFlow imported.
  """

  def run(arguments, timeout=300, env=None, cwd=ROOT, fresh=False) -> subprocess.CompletedProcess:
    if not fresh:
      return train_processes.run(train_server(), arguments, timeout, env, cwd)
    return subprocess.run(
      [sys.executable, str(ROOT / 'train.py'), *arguments],
      cwd=cwd,
      env=train_processes.environment(env),
      capture_output=True,
      text=True,
      timeout=timeout,
      check=False,
    )

  return run


@pytest.fixture
def start_train(train_server):
  """Starts `python train.py ARGUMENTS` and returns its process; what still runs at the end is killed.

  start_train(arguments, env=None, cwd=ROOT) -> train_processes.PipedProcess.
  """
  started = []

  def start(arguments, env=None, cwd=ROOT) -> train_processes.PipedProcess:
    started.append(train_processes.PipedProcess(train_server(), arguments, env, cwd))
    return started[-1]

  yield start
  for process in started:
    process.kill()
    process.communicate()


@pytest.fixture
def start_script(train_server, tmp_path_factory):
  """start_script(code, arguments=(), env=None) -> train_processes.Script. What still runs at the end is killed."""
  started = []

  def start(code, arguments=(), env=None) -> train_processes.Script:
    started.append(train_processes.Script(train_server(), tmp_path_factory.mktemp('script'), code, arguments, env))
    return started[-1]

  yield start
  for script in started:
    script.kill()


@pytest.fixture(scope='session')
def unused_ports():
  """unused_ports(n) -> n TCP ports that nothing listens on."""
  import portpicker

  return lambda count: [portpicker.pick_unused_port() for _ in range(count)]
