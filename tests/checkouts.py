"""A folder that is a checkout of this project, but for its experiments, for tests that add one."""

from collections.abc import Iterator
import contextlib
import copy
import pathlib
import shutil
import sys

from official.core import exp_factory
from official.core import task_factory
import pytest

import experiments
from official_ext.data import collators
import registry_imports  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def current(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes the checkout, which is the current folder for a while; registries are then restored."""
  for name in ('another', 'iris', 'my_model', 'numerals', 'perceptron', 'rings', 'shapes'):  # The files of the tests.
    if (ROOT / 'experiments' / name).exists():
      pytest.skip(f'experiments/{name} is there, and this test would write one of that name')
  (folder / 'experiments').mkdir(parents=True)
  (folder / 'tests').mkdir()
  for name in ('train.py', 'registry_imports.py', 'experiments/__init__.py', 'pyproject.toml'):
    shutil.copy(ROOT / name, folder / name)
  (folder / 'official_ext').symlink_to(ROOT / 'official_ext')
  before = set(sys.modules)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    patch.setattr(sys, 'path', list(sys.path))
    patch.setattr(experiments, '__path__', list(experiments.__path__))
    patch.setattr(exp_factory, '_REGISTERED_CONFIGS', copy.deepcopy(exp_factory._REGISTERED_CONFIGS))
    patch.setattr(task_factory, '_REGISTERED_TASK_CLS', dict(task_factory._REGISTERED_TASK_CLS))
    patch.setattr(collators._REGISTRY, '_values', dict(collators._REGISTRY._values))
    try:
      yield folder
    finally:
      for name in set(sys.modules) - before:
        if name.startswith('experiments.'):
          forget(name.split('.')[1])


def forget(experiment: str) -> None:
  """Lets the next import of an experiment read its files anew."""
  exp_factory._REGISTERED_CONFIGS.pop(experiment, None)
  collators._REGISTRY._values.pop(experiment, None)
  for name in [name for name in sys.modules if f'{name}.'.startswith(f'experiments.{experiment}.')]:
    del sys.modules[name]
  if hasattr(experiments, experiment):
    delattr(experiments, experiment)
