"""The way from train.py to a task's `forward` is short, and returns to no file that it has left but train.py itself."""

import pathlib

import pytest

_REGISTRY = """
import os
import pathlib
import traceback

from experiments.digits_mlp import task

forward = task.DigitsMlpTask.forward


def traced(self, inputs, model, training):
  frames = [f'{frame.filename} {frame.name}' for frame in traceback.extract_stack()]
  pathlib.Path(os.environ['FRAMES']).write_text('\\n'.join(frames))
  return forward(self, inputs, model, training)


task.DigitsMlpTask.forward = traced
"""


@pytest.fixture
def frames(run_train, tmp_path):
  """(file below the project, function) of each frame of the project above `forward`, the outermost first."""
  (tmp_path / 'tracing_task.py').write_text(_REGISTRY)
  flags = ['--registry=tracing_task', '--experiment=digits_mlp', '--mode=train', f'--model_dir={tmp_path}/run']
  sets = ['--set=trainer.train_steps=1']
  environment = {'PYTHONPATH': str(tmp_path), 'FRAMES': str(tmp_path / 'frames.txt')}
  done = run_train([*flags, *sets], env=environment)
  assert done.returncode == 0, done.stderr
  root = pathlib.Path(__file__).resolve().parents[1]
  lines = [line.rpartition(' ') for line in (tmp_path / 'frames.txt').read_text().splitlines()]
  paths = [(pathlib.Path(file), name) for file, _, name in lines]
  return [
    (str(path.relative_to(root)), name)
    for path, name in paths
    if path.is_relative_to(root) and not path.is_relative_to(root / '.venv') and path.parts[len(root.parts)] != 'tests'
  ]


def _returns(files):
  """How often a path enters a file that it has left."""
  entered = [file for number, file in enumerate(files) if not number or files[number - 1] != file]
  return len(entered) - len(set(entered))


def test_the_way_to_forward_is_short(frames):
  assert frames[-1] == ('official_ext/training/loop/base_task.py', '_loss_and_logs')
  files = [file for file, _ in frames]
  assert len(frames) <= 16 and len(set(files)) <= 7 and _returns(files) <= 1, frames
  outer = files.index('official_ext/training/loop/controller.py')
  assert len(files[outer:]) <= 10 and len(set(files[outer:])) <= 4 and _returns(files[outer:]) == 0, frames[outer:]


def test_returns_are_counted():
  assert _returns(['a', 'a', 'b', 'a', 'b']) == 2 and _returns(['a', 'b', 'c']) == 0
