"""Runs Model Garden's own test modules with this library's Trainer in place of the original.

    python tests/model_garden/run_official_tests.py [official.core.base_trainer_test ...] [--stock]

A module runs unmodified, as `python -m` would run it, in a separate process. For each a line of JSON is printed: how
many tests ran, which were skipped or failed, and which Trainer classes were instantiated. Without arguments all of
`MODULES` run, one after the other. Exit status 0 if every test passed or was skipped.
"""

import os

os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')

# pylint: disable=wrong-import-position
import argparse
import inspect
import json
import pathlib
import runpy
import subprocess
import sys
import unittest

# Before anything that binds the class as a default argument or by `from ... import`.
from official.core import base_trainer
import tensorflow as tf

# pylint: enable=wrong-import-position

STOCK_TRAINER = base_trainer.Trainer

# As a script this file has its own folder on sys.path; the library's is two above.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

MODULES = (
  'official.core.base_trainer_test',
  'official.core.train_lib_test',
  'official.core.actions_test',
  'official.core.train_utils_test',
)


def substitute_trainer() -> type:
  """Makes `official.core.base_trainer.Trainer` this library's class, everywhere in Model Garden.

  Returns:
    The present class.
  """
  from official_ext.training.loop import base_trainer as loop_base_trainer

  ours = loop_base_trainer.Trainer
  base_trainer.Trainer = ours
  from official.core import train_utils

  # A default argument is bound when the module is imported, which this library's Trainer may have done above.
  create_trainer = inspect.unwrap(train_utils.create_trainer)
  defaults = create_trainer.__defaults__
  create_trainer.__defaults__ = tuple(ours if value is STOCK_TRAINER else value for value in defaults)
  if inspect.signature(train_utils.create_trainer).parameters['trainer_cls'].default is not ours:
    raise AssertionError('train_utils.create_trainer still makes the stock Trainer.')
  for name, module in list(sys.modules.items()):
    if name.startswith('official.') and getattr(module, 'Trainer', None) is STOCK_TRAINER:
      raise AssertionError(f'{name}.Trainer is still the stock one.')
  return ours


def record_instances(classes: set[type]) -> None:
  """Adds the class of every Trainer that is made from now on to `classes`."""
  stock_init = STOCK_TRAINER.__init__

  def recording_init(self, *args, **kwargs):
    classes.add(type(self))
    stock_init(self, *args, **kwargs)

  STOCK_TRAINER.__init__ = recording_init


def record_results(results: list[unittest.TestResult]) -> None:
  """Adds every unittest result that is made from now on to `results`."""
  stock_init = unittest.TestResult.__init__

  def recording_init(self, *args, **kwargs):
    stock_init(self, *args, **kwargs)
    results.append(self)

  unittest.TestResult.__init__ = recording_init


def run(module: str, stock: bool) -> dict:
  """Runs a test module to its end.

  Args:
    module: its dotted name.
    stock: whether to leave Model Garden's Trainer in its place.

  Returns:
    The record that `main` prints.
  """
  from tests import tensorflow_import

  classes: set[type] = set()
  results: list[unittest.TestResult] = []
  trainer = STOCK_TRAINER if stock else substitute_trainer()
  record_instances(classes)
  record_results(results)
  tensorflow_import.iterate_without_autotune(tf)
  status: object | None = None
  sys.argv = [module]
  try:
    runpy.run_module(module, run_name='__main__', alter_sys=True)
  except SystemExit as e:
    status = e.code
  return {
    'module': module,
    'exit_status': int(status or 0),
    'tests': sum(result.testsRun for result in results),
    'skipped': sum(len(result.skipped) for result in results),
    'failed': sorted(str(test) for result in results for test, _ in result.failures + result.errors),
    'trainers': sorted(f'{cls.__module__}.{cls.__qualname__}' for cls in classes),
    'only_ours': all(issubclass(cls, trainer) for cls in classes),
  }


def main(argv: list[str] | None = None) -> int:
  """Runs the modules that the command line names.

  Args:
    argv: arguments instead of the process's.

  Returns:
    0 if every test passed or was skipped.
  """
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('modules', nargs='*', default=list(MODULES))
  parser.add_argument('--stock', action='store_true', help="run with Model Garden's own Trainer, as a control")
  args = parser.parse_args(argv)
  if len(args.modules) > 1:
    options = ['--stock'] if args.stock else []
    command = [sys.executable, os.path.abspath(__file__), *options]
    return max([subprocess.run([*command, module], check=False).returncode for module in args.modules])
  record = run(args.modules[0], args.stock)
  sys.stdout.flush()
  sys.stderr.flush()
  print(json.dumps(record), flush=True)
  return record['exit_status']


if __name__ == '__main__':
  sys.exit(main())
