"""Trainings that engines run, which are to end alike when they are disturbed: flags, how far they are, weights."""

from collections.abc import Callable
import json
import pathlib
import time

import numpy as np
import tensorflow as tf

from official_ext.cli import main
from official_ext.runtime import run_status

STEPS = 60
# Of two workers; one alone is too fast to be disturbed.
FLAGS = (
  *('--experiment=digits_mlp', '--mode=train', f'--set=train_steps={STEPS}', '--set=steps_per_loop=5'),
  *('--set=checkpoint_interval=20', '--set=runtime.enable_xla=false', '--set=trainer.summary_interval=5'),
)
SWEEP_STEPS = 4000
SWEEP_FLAGS = (
  *(f'--set=train_steps={SWEEP_STEPS}', '--set=steps_per_loop=5', '--set=validation_interval=1000'),
  *('--set=checkpoint_interval=500', '--set=runtime.enable_xla=false'),
)
_INTERVALS = (50, 100, 200, 400)


def write_sweep(path: pathlib.Path, runs_dir: pathlib.Path, num_points: int) -> list[pathlib.Path]:
  """A sweep over what changes no result, so that all its points must end alike; returns the folders of its points."""
  values = _INTERVALS[:num_points]
  path.write_text(
    'experiment: digits_mlp\nmethod: grid\nmetric: {name: validation_accuracy, goal: maximize}\n'
    f'parameters: {{trainer.summary_interval: {{values: {list(values)}}}}}\n'
  )
  folder = runs_dir / path.stem
  return [folder / f'{number:03d}-summary_interval={value}' for number, value in enumerate(values, 1)]


def points(capsys, runs_dir: pathlib.Path, name: str) -> list[dict]:
  """The points of a sweep as `sweep show` tells them."""
  capsys.readouterr()
  assert main.main(['sweep', 'show', str(runs_dir), name, '--json']) == 0
  return json.loads(capsys.readouterr().out)['points']


def wait_for_step(model_dir: pathlib.Path, step: int, refuse: Callable[[], None]) -> dict:
  """Waits until a run is as far; returns its record. `refuse` raises if it never will be."""
  deadline = time.monotonic() + 900
  while True:
    record = run_status.read(str(model_dir)) or {}
    saved = [int(path.name.split('.')[0][5:]) for path in model_dir.glob('ckpt-*.manifest.json')]
    if max([record.get('step') or 0, *saved]) >= step:  # The record is a few seconds old.
      return record
    refuse()
    assert time.monotonic() < deadline, log(model_dir)
    time.sleep(0.2)


def log(model_dir: pathlib.Path) -> str:
  """What a run has printed."""
  path = model_dir / 'run.log'
  return path.read_text() if path.exists() else f'{path}: is not there'


def weights(model_dir: pathlib.Path, step: int = STEPS) -> dict[str, np.ndarray]:
  """All values of a checkpoint but the number of saves."""
  reader = tf.train.load_checkpoint(f'{model_dir}/ckpt-{step}')
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if 'save_counter' not in name}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
  """Two checkpoints are the same, bit by bit."""
  assert expected.keys() == found.keys() and len(expected) > 4
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)
