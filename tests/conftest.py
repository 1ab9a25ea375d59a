"""What all tests share: devices, environment, and the driver as a real process."""

import os
import pathlib
import subprocess
import sys
from typing import Mapping, Optional, Sequence

# Two test processes share two cores: one thread for each operation. Processes that tests start inherit this.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_NUM_INTRAOP_THREADS', '1')

import official_ext  # noqa: F401  Before tensorflow.
import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUM_CPUS = 4

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


def _command(arguments: Sequence[str], script: str = 'train.py') -> Sequence[str]:
  return [sys.executable, str(ROOT / script), *arguments]


def _environment(changes: Optional[Mapping[str, str]]) -> Mapping[str, str]:
  # No GPU: what a test expects must not depend on the machine that it runs on.
  return {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'COLUMNS': '120', **(changes or {})}


@pytest.fixture(scope='session')
def run_train():
  """Runs `python train.py ARGUMENTS` to its end as a process of its own.

  run_train(arguments, timeout=300, env=None, cwd=ROOT) -> subprocess.CompletedProcess with text in stdout and stderr.
  `env` is added to this process's environment. A run that takes longer than `timeout` seconds is killed and fails.
  """

  def run(arguments, timeout=300, env=None, cwd=ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(
      _command(arguments), cwd=cwd, env=_environment(env), capture_output=True, text=True, timeout=timeout, check=False
    )

  return run


@pytest.fixture
def start_train():
  """Starts `python train.py ARGUMENTS` and returns its subprocess.Popen; what still runs at the end is killed.

  start_train(arguments, env=None, cwd=ROOT, **popen_arguments). stdout and stderr go to one text pipe,
  `process.stdout`, where the arguments do not say otherwise.
  """
  started = []

  def start(arguments, env=None, cwd=ROOT, **popen_arguments) -> subprocess.Popen:
    popen_arguments = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True, **popen_arguments}
    started.append(subprocess.Popen(_command(arguments), cwd=cwd, env=_environment(env), **popen_arguments))
    return started[-1]

  yield start
  for process in started:
    if process.poll() is None:
      process.kill()
    process.communicate()


@pytest.fixture(scope='session')
def unused_ports():
  """unused_ports(n) -> n TCP ports that nothing listens on."""
  import portpicker

  return lambda count: [portpicker.pick_unused_port() for _ in range(count)]
