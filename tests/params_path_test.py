"""The whole configuration of an experiment stops at few functions of the library: the others take the part they read.

A stop is a function of official_ext that takes the ExperimentConfig as an argument, or that hands it on from an object
that carries it, such as the run's `Experiment`. Methods of the configuration itself are not stops.
"""

import collections

import pytest

_REGISTRY = """
import inspect
import os
import pathlib
import sys
import threading

import official_ext
from official_ext.base import model_garden_configs
from official_ext.training.loop import train_lib

ROOT = f'{pathlib.Path(official_ext.__file__).parent}{os.sep}'
original, stops = train_lib.run_experiment, {}


def is_whole(value):
  return isinstance(value, model_garden_configs.ExperimentConfig)


def profile(frame, event, unused_argument):
  if event != 'call':
    return
  caller = frame.f_back
  names = [each.f_code.co_filename for each in (caller, frame) if each is not None]
  if not any(name.startswith(ROOT) for name in names):
    return
  arguments = inspect.getargvalues(frame)
  taken = [arguments.locals.get(name) for name in arguments.args if name != 'self']
  taken += [*arguments.locals.get(arguments.varargs, ()), *arguments.locals.get(arguments.keywords, {}).values()]
  if any(map(is_whole, taken)):
    for each in (caller, frame):
      if each.f_code.co_filename.startswith(ROOT):
        stops[f'{each.f_code.co_filename[len(ROOT):]} {each.f_code.co_qualname}'] = None


def run_experiment(*args, **kwargs):
  threading.setprofile(profile)
  sys.setprofile(profile)
  try:
    return original(*args, **kwargs)
  finally:
    sys.setprofile(None)
    threading.setprofile(None)
    pathlib.Path(os.environ['STOPS']).write_text('\\n'.join(stops))


train_lib.run_experiment = run_experiment
"""


@pytest.fixture
def stops(run_train, tmp_path):
  """(file below official_ext, function) of each stop from `run_experiment` on, in the order of the run."""
  (tmp_path / 'profiling_registry.py').write_text(_REGISTRY)
  flags = ['--registry=profiling_registry', '--experiment=digits_mlp', '--mode=train_and_eval']
  sets = [f'--set=trainer.{name}={value}' for name, value in (('train_steps', 2), ('validation_interval', 1))]
  environment = {'PYTHONPATH': str(tmp_path), 'STOPS': str(tmp_path / 'stops.txt')}
  done = run_train([*flags, *sets, f'--model_dir={tmp_path}/run'], env=environment)
  assert done.returncode == 0, done.stderr
  return [tuple(line.split(' ')) for line in (tmp_path / 'stops.txt').read_text().splitlines()]


def test_the_whole_configuration_stops_at_few_functions(stops):
  files = collections.Counter(file for file, _ in stops)
  assert ('training/loop/base_trainer.py', 'Trainer.__init__') in stops, stops
  assert len(stops) <= 10 and len(files) <= 6, '\n'.join(f'{file} {name}' for file, name in stops)
