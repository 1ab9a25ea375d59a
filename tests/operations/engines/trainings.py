"""Trainings that engines run, which are to end alike when they are disturbed: flags, how far they are, weights."""

from collections.abc import Callable, Mapping, Sequence
import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

from official_ext.base.run_folder import run_status
from official_ext.cli import main

STEPS = 4000  # Of ten seconds or so: time to disturb it after the first checkpoint.
FIRST_CHECKPOINT = 500
SWEEP_FLAGS = (
  *(f'--set=train_steps={STEPS}', '--set=steps_per_loop=5', '--set=validation_interval=1000'),
  *(f'--set=checkpoint_interval={FIRST_CHECKPOINT}', '--set=runtime.enable_xla=false'),
)
# A pause of the whole machine does not count as a lost worker.
FLAGS = ('--experiment=digits_mlp', '--mode=train', *SWEEP_FLAGS, '--set=runtime.worker_timeout_seconds=900')
COMMAND = (sys.executable, '-m', 'official_ext.cli.main')
_ROOT = pathlib.Path(__file__).resolve().parents[3]
_INTERVALS = (50, 100, 200, 400)


def write_sweep(path: pathlib.Path, runs_dir: pathlib.Path, num_points: int) -> list[pathlib.Path]:
  """A sweep over a field that changes no result, so that all its points must end alike; returns their folders."""
  values = _INTERVALS[:num_points]
  path.write_text(
    'experiment: digits_mlp\nmethod: grid\nmetric: {name: validation_accuracy, goal: maximize}\n'
    f'parameters: {{trainer.summary_interval: {{values: {list(values)}}}}}\n'
  )
  folder = runs_dir / path.stem
  return [folder / f'{number:03d}-summary_interval={value}' for number, value in enumerate(values, 1)]


def call(words: Sequence[str], environment: Mapping[str, str], timeout: float, status: int = 0) -> str:
  """Runs a command as a separate process.

  Args:
    words: the command, such as `COMMAND` with its arguments.
    environment: its variables, but for those that lead to GPUs and to this checkout.
    timeout: in seconds.
    status: that it must end with.

  Returns:
    Its output: on stdout if `status` is 0, else on stderr.
  """
  done = subprocess.run(
    words,
    cwd=_ROOT,
    env={**environment, 'CUDA_VISIBLE_DEVICES': '', 'PYTHONPATH': str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=timeout,
    check=False,
  )
  assert done.returncode == status, done.stderr
  return done.stdout if status == 0 else done.stderr


def points(capsys, runs_dir: pathlib.Path, name: str) -> list[dict]:
  """The points of a sweep as in `sweep show`."""
  capsys.readouterr()
  assert main.main(['sweep', 'show', str(runs_dir), name, '--json']) == 0
  return json.loads(capsys.readouterr().out)['points']


def wait_for_checkpoint(model_dir: pathlib.Path, refuse: Callable[[], None]) -> dict:
  """Waits for the first checkpoint of a run; returns its record. `refuse` raises if there never will be one."""
  deadline, look = time.monotonic() + 900, time.monotonic()
  while not (model_dir / f'ckpt-{FIRST_CHECKPOINT}.manifest.json').exists():  # The record is a few seconds old.
    if time.monotonic() > look:
      refuse()  # Which may take seconds.
      look = time.monotonic() + 30
    assert time.monotonic() < deadline, log(model_dir)
    time.sleep(0.1)
  return run_status.read(str(model_dir))


def log(model_dir: pathlib.Path) -> str:
  """The output of a run."""
  path = model_dir / 'run.log'
  return path.read_text() if path.exists() else f'{path}: is not there'


def weights(model_dir: pathlib.Path) -> dict[str, np.ndarray]:
  """All values of the last checkpoint but the number of saves."""
  reader = tf.train.load_checkpoint(f'{model_dir}/ckpt-{STEPS}')
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if 'save_counter' not in name}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
  """Two checkpoints are the same, bit by bit."""
  assert expected.keys() == found.keys() and len(expected) > 4
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)
