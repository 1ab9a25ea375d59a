"""The files from train.py to a task's `forward` that a reader opens, by the pages that list them, and by a real run."""

import pathlib
import re

import pytest

from tests import documents

MOST_FILES = 15
ROOT = pathlib.Path(__file__).resolve().parents[1]

_REGISTRY = """
import os
import pathlib
import sys
import threading

import official_ext
from experiments.digits_mlp import task
from official_ext.training.checkpoints import manager
from official_ext.training.loop import base_trainer, controller, training_input
from official_ext.training.record import run_record
from official_ext.training.step import training_step
from official_ext.training.tasks import base_task

ROOT = f'{pathlib.Path(official_ext.__file__).parents[1]}{os.sep}'
# The task, the trainer, the step, the loop, the record of the run, the input, and the checkpoints.
OWNERS = (base_task.Task, base_trainer.Trainer, training_step.TrainingStep, controller.Controller,
          run_record.RecordedRun, training_input.StepInputs, training_input.TrainingInput, manager.CheckpointManager)
CONSTRUCTORS = {owner.__init__.__code__ for owner in OWNERS}
forward, entered, stack, makers = task.DigitsMlpTask.forward, set(), set(), set()


def of_project(frame):
  name = frame.f_code.co_filename
  is_ours = name.startswith(ROOT) and not name.startswith((f'{ROOT}.venv', f'{ROOT}tests', f'{ROOT}experiments'))
  return name[len(ROOT):] if is_ours else None


def profile(frame, event, unused_argument):
  if event != 'call' or of_project(frame) is None:
    return
  entered.add(of_project(frame))
  if frame.f_code in CONSTRUCTORS:
    makers.add(of_project(frame))
    caller = frame.f_back
    while of_project(caller) is None or caller.f_code.co_name == '__init__':  # A subclass, or Model Garden between.
      caller = caller.f_back
    makers.add(of_project(caller))


def traced(self, inputs, model, training):
  frame = sys._getframe()
  while frame is not None:
    stack.add(of_project(frame))
    frame = frame.f_back
  return forward(self, inputs, model, training)


def write():
  for name, files in dict(entered=entered, stack=stack - {None}, makers=makers).items():
    pathlib.Path(os.environ['FILES'], name).write_text('\\n'.join(sorted(files)))


import atexit
task.DigitsMlpTask.forward = traced
original = os._exit
os._exit = lambda status: (write(), original(status))
atexit.register(write)
threading.setprofile(profile)
sys.setprofile(profile)
"""


@pytest.fixture(scope='module')
def files(run_train, tmp_path_factory):
  """The files of a plain run: those that it entered, those above `forward`, and those that make or own its parts."""
  folder = tmp_path_factory.mktemp('reading')
  (folder / 'profiled.py').write_text(_REGISTRY)
  flags = ['--registry=profiled', '--experiment=digits_mlp', '--mode=train', f'--model_dir={folder}/run']
  environment = {'PYTHONPATH': str(folder), 'FILES': str(folder)}
  done = run_train([*flags, '--set=trainer.train_steps=1'], env=environment)
  assert done.returncode == 0, done.stderr
  return {name: set((folder / name).read_text().split()) for name in ('entered', 'stack', 'makers')}


def listed():
  """The files of the tables that lead from train.py to `forward`."""
  start = re.search(r'^## Start\n(.*?)^## ', documents.read('docs/contributing/run_paths.md'), re.DOTALL | re.MULTILINE)
  update = documents.read('docs/contributing/update.md').partition('\n## ')[0]
  tables = [line for text in (start[1], update) for line in text.splitlines() if re.match(r'\| \d', line)]
  found = {path for line in tables for path in re.findall(r'`([\w/]+\.py)[:`]', line)}
  return {path if (ROOT / path).exists() else f'official_ext/{path}' for path in found}


def test_the_way_to_forward_is_short():
  found = listed()
  assert len(found) <= MOST_FILES, sorted(found)
  assert all((ROOT / path).is_file() for path in found), sorted(found)


def test_a_plain_run_enters_every_listed_file(files):
  # The driver itself was entered before the profiler started.
  assert listed() - files['entered'] - files['stack'] == set()


def test_what_is_above_forward_and_what_owns_the_parts_of_a_run_is_listed(files):
  assert files['stack'] - listed() == set()
  assert files['makers'] - listed() == set()
