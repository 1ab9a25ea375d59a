"""The fixtures of all tests: environment, devices, and the driver as a real process.

It imports no TensorFlow: a test module that needs it does, and devices are configured by that import.
"""

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

from tests import tensorflow_import
from tests import train_processes

ROOT = pathlib.Path(__file__).resolve().parent.parent

tensorflow_import.configure_on_import()

# `nohup make test` ignores it, and the programs of this library then do too: they are started by tests that send it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


class _ModuleWithoutTensorFlow(pytest.Module):
  """A test module that has no tests if importing it imports TensorFlow."""

  def collect(self):
    try:
      return super().collect()
    except self.CollectError as error:
      if tensorflow_import.REFUSED not in str(error):
        raise
      return []


def pytest_addoption(parser) -> None:
  parser.addoption(
    '--no-tensorflow',
    action='store_true',
    help='refuse to import TensorFlow, here and in child processes; leave out the tests that need it',
  )


def pytest_configure(config) -> None:
  if config.getoption('no_tensorflow'):
    tensorflow_import.refuse()


def pytest_pycollect_makemodule(module_path, parent):
  if parent.config.getoption('no_tensorflow'):
    return _ModuleWithoutTensorFlow.from_parent(parent, path=module_path)
  return None


# Seconds for a test with its fixtures, so that a hang has a name: pytest-timeout prints all stacks, and ends it.
_TIMEOUTS = {'': 300, 'slow': 1800, 'soak': 0}


def pytest_collection_modifyitems(config, items) -> None:
  """Limits the time of each test. With --no-tensorflow, leaves out tests that need TensorFlow."""
  for item in items:
    tier = next((name for name in ('soak', 'slow') if item.get_closest_marker(name)), '')
    item.add_marker(pytest.mark.timeout(_TIMEOUTS[tier], method='thread'))
  if not config.getoption('no_tensorflow'):
    return
  needing = [item for item in items if 'train_server' in item.fixturenames or item.get_closest_marker('tensorflow')]
  config.hook.pytest_deselected(items=needing)
  items[:] = [item for item in items if item not in needing]


@pytest.fixture(scope='module', autouse=True)
def free_memory():
  """Lets go of the trainers of a module, which saving threads hold to the end of the process."""
  yield
  tensorflow_import.end_saving_threads()


@pytest.fixture(scope='session')
def train_server():
  """The process that `run_train` and `start_train` fork from; started at first use."""
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
  """Runs `python train.py ARGUMENTS` to its end as a separate process.

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
  """Starts `python train.py ARGUMENTS` and returns its process; it is killed at the end if it still runs.

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
  """start_script(code, arguments=(), env=None) -> train_processes.Script, which is killed if it runs at the end."""
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
