"""Imports go only downward: from train.py to registry_imports, experiments and official_ext, and inside each."""

import ast
import pathlib
import textwrap

import pytest

from official_ext.cli import new
from tools import layers

ROOT = pathlib.Path(__file__).resolve().parent.parent


def violations(root):
  """The violations in a tree, as lines of text."""
  return layers.violations(root) + layers.circles(root)


def names_of_experiments(root):
  """The places where the loop names an experiment: a string in its code that is one, or a path of one."""
  experiments = {path.parent.name for path in (root / 'experiments').glob('*/__init__.py')}
  found = []
  folders = [root / 'official_ext/training' / package for package in new.PACKAGES_OF_THE_LOOP]
  for path in sorted(path for folder in folders for path in folder.rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value in experiments or node.value.startswith('experiments.'):
          found.append(f'{path.name}:{node.lineno}: {node.value}')
  return found


def test_imports_go_downward():
  assert violations(ROOT) == []


def test_every_package_and_every_module_of_the_loop_has_one_place():
  names = [package for row in layers.ORDER for package in row]
  assert sorted(names) == sorted(path.parent.name for path in (ROOT / 'official_ext').glob('*/__init__.py'))
  for package, rows in layers.SUBPACKAGES.items():
    folder = ROOT / 'official_ext' / package
    parts = [*(p.parent.name for p in folder.glob('*/__init__.py')), *(p.stem for p in folder.glob('[!_]*.py'))]
    assert sorted(name for row in rows for name in row) == sorted(parts)
  modules = layers.sources(ROOT)
  for subpackage, order in layers.INSIDE.items():
    assert sorted(order) == sorted(
      name.rpartition('.')[2] for name in modules if name.startswith(f'official_ext.{subpackage}.')
    ), subpackage


def test_core_names_no_experiment():
  assert names_of_experiments(ROOT) == []


def test_the_sources_are_found():
  graph = layers.graph(ROOT)
  assert {'registry_imports', 'official_ext.base.errors', 'official_ext.data.keyed_random'} <= graph.keys()
  assert 'official_ext.base.errors' in graph['official_ext.training.devices.distribute']
  assert 'tensorflow' in graph['official_ext.training.devices.distribute']


def test_the_picture_of_the_packages_is_that_of_the_imports():
  message = 'docs/images/packages.svg is out of date: python -m tools.layers redraws it'
  assert (ROOT / 'docs/images/packages.svg').read_text() == layers.picture(ROOT), message


@pytest.fixture(scope='module')
def _sources(tmp_path_factory):
  folder = tmp_path_factory.mktemp('sources')
  for path in layers.sources(ROOT).values():
    target = folder / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(path.read_text())
  return folder


@pytest.fixture
def plant(_sources):
  """plant(path, code): adds code to a module, or makes it, in a copy of the sources, which is returned."""
  changed = []

  def _plant(path, code):
    target = _sources / 'official_ext' / path
    target.parent.mkdir(parents=True, exist_ok=True)
    before = target.read_text() if target.exists() else None
    changed.append((target, before))
    target.write_text(f'{before or ""}\n{textwrap.dedent(code)}\n')
    return _sources

  yield _plant
  for target, before in reversed(changed):
    if before is None:
      target.unlink()
    else:
      target.write_text(before)


@pytest.mark.parametrize(
  ('path', 'code', 'expected'),
  [
    (
      'training/record/run_record.py',
      'from official_ext.training.diagnosis import findings',
      'diagnosis is above record',
    ),
    (
      'training/record/profiling.py',
      'from official_ext.training.diagnosis import finite_checks',
      'diagnosis is above record',
    ),
    ('training/step/gradient_tap.py', 'from official_ext.training.record import run_record', 'record is above step'),
    ('training/step/task_step.py', 'from official_ext.training.actions import triggers', 'actions is above step'),
    (
      'training/checkpoints/manifests.py',
      'def f():\n  from official_ext.training.config import parser',
      'read configurations',
    ),
    ('training/config/checks.py', 'from official_ext.training.step import task_step', 'step is above config'),
    (
      'training/checkpoints/manifests.py',
      'from official_ext.training.checkpoints import manager',
      'manager comes after manifests',
    ),
    ('training/step/step_plan.py', 'from official_ext.training.step import updates', 'updates comes after step_plan'),
    (
      'training/tasks/base_task.py',
      'from official_ext.training.loop import base_trainer',
      'loop is above tasks',
    ),
    ('training/tasks/base_task.py', 'import official_ext.cli.main', 'cli is above training'),
    ('training/writers/writers.py', 'from official_ext.training import metrics', 'metrics is beside writers'),
    ('data/keyed_random.py', 'from official_ext.training.writers import writers', 'training is above data'),
    ('base/errors.py', 'from official_ext.data import sources', 'data is above base'),
    ('operations/runs/run_processes.py', 'from official_ext.data import sources', 'operations imports only base'),
    (
      'operations/runs/run_processes.py',
      'from official_ext.training.writers import writers',
      'operations imports only base',
    ),
    (
      'language/text/token_rows.py',
      'from official_ext.operations.runs import run_processes',
      'operations is beside language',
    ),
    ('training/loop/helper.py', '', 'helper: has no place in the order of training.loop'),
    ('training/attic/old.py', '', 'has no place in the order of training'),
    ('attic/old.py', '', 'the package attic has no place'),
    ('training/tasks/base_task.py', 'from experiments import gan', 'the library knows none of its users'),
    ('base/errors.py', 'def f():\n  import registry_imports', 'the library knows none of its users'),
    ('base/errors.py', 'from keras import layers', 'Keras 3'),
    ('../experiments/gan/task.py', 'from experiments.digits import model', 'another experiment'),
    ('../experiments/gan/task.py', 'import registry_imports', 'nothing above itself'),
    ('../experiments/gan/task.py', 'from official_ext.training.step import gradient_tap', 'the public face'),
    ('../registry_imports.py', 'from official_ext.base import errors', 'it lists the modules that register'),
    ('../train.py', 'from experiments import gan', 'registry_imports does'),
  ],
)
def test_a_wrong_import_is_refused(plant, path, code, expected):
  """Planted one at a time. Some look harmless: a constant, a helper, an import inside a function."""
  found = violations(plant(path, code))
  assert any(expected in line for line in found), found


def test_a_circle_is_found(plant):
  plant('data/a.py', 'from official_ext.data import b')
  found = violations(plant('data/b.py', 'from official_ext.data import a'))
  assert 'official_ext.data.a imports itself, by way of others' in found


def test_a_name_of_an_experiment_in_core_is_found(tmp_path):
  for path, text in {
    'experiments/cifar/__init__.py': '',
    'official_ext/training/loop/x.py': '"""As the cifar experiment does."""\nif name == "cifar":\n  pass\n',
  }.items():
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
  assert names_of_experiments(tmp_path) == ['x.py:2: cifar']
