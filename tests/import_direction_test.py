"""Imports go only downward: train.py -> registry_imports -> experiments -> official_ext, and room by room inside."""

import ast
import pathlib
import textwrap

import pytest

from official_ext.cli import new
from tools import rooms

ROOT = pathlib.Path(__file__).resolve().parent.parent


def violations(root):
  """What is out of order in a tree, as lines of text."""
  return rooms.violations(root) + rooms.circles(root)


def names_of_experiments(root):
  """Where the loop names an experiment: a string in its code that is one, or a path of one."""
  experiments = {path.parent.name for path in (root / 'experiments').glob('*/__init__.py')}
  found = []
  for path in sorted(path for room in new.ROOMS_OF_THE_LOOP for path in (root / 'official_ext' / room).rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value in experiments or node.value.startswith('experiments.'):
          found.append(f'{path.name}:{node.lineno}: {node.value}')
  return found


def test_imports_go_downward():
  assert violations(ROOT) == []


def test_every_room_and_every_module_of_the_loop_has_one_place():
  names = [room for row in rooms.ORDER for room in row]
  assert len(names) == len(set(names))
  modules = rooms.sources(ROOT)
  for room, order in rooms.INSIDE.items():
    assert sorted(order) == sorted(
      name.rpartition('.')[2] for name in modules if name.startswith(f'official_ext.{room}.')
    ), room


def test_core_names_no_experiment():
  assert names_of_experiments(ROOT) == []


def test_the_sources_are_found():
  graph = rooms.graph(ROOT)
  assert {'registry_imports', 'official_ext.errors', 'official_ext.data.sampling'} <= graph.keys()
  assert 'official_ext.errors' in graph['official_ext.runtime.distribute']
  assert 'tensorflow' in graph['official_ext.runtime.distribute']


def test_the_picture_of_the_rooms_is_that_of_the_imports():
  told = 'docs/rooms.svg is old: python -m tools.rooms draws it anew'
  assert (ROOT / 'docs/rooms.svg').read_text() == rooms.picture(ROOT), told


@pytest.fixture
def copy(tmp_path):
  """The sources of this project in a folder of their own."""
  for path in rooms.sources(ROOT).values():
    target = tmp_path / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(path.read_text())
  return tmp_path


@pytest.mark.parametrize(
  ('path', 'code', 'expected'),
  [
    ('core/run_record.py', 'from official_ext.checks import findings', 'checks is above core'),
    ('core/profiling.py', 'from official_ext.checks import op_trace', 'checks is above core'),
    ('step/gradient_tap.py', 'from official_ext.core import run_record', 'core is above step'),
    ('step/step_state.py', 'from official_ext.actions import triggers', 'actions is above step'),
    ('checkpoints/manifests.py', 'def f():\n  from official_ext.config import parser', 'read configurations'),
    ('config/checks.py', 'from official_ext.step import step_state', 'step is above config'),
    ('checkpoints/manifests.py', 'from official_ext.checkpoints import manager', 'manager comes after manifests'),
    ('step/step_plan.py', 'from official_ext.step import updates', 'updates comes after step_plan'),
    ('core/base_task.py', 'from official_ext.core import base_trainer', 'base_trainer comes after base_task'),
    ('core/base_task.py', 'import official_ext.cli.main', 'cli is above core'),
    ('data/sampling.py', 'from official_ext.monitoring import writers', 'monitoring is beside data'),
    ('errors.py', 'from official_ext.files import paths', 'files is above errors'),
    ('core/helper.py', '', 'core.helper: has no place in the order of its room'),
    ('attic/old.py', '', 'the room attic has no place'),
    ('core/base_task.py', 'from experiments import gan', 'the library knows none of its users'),
    ('errors.py', 'def f():\n  import registry_imports', 'the library knows none of its users'),
    ('errors.py', 'from keras import layers', 'Keras 3'),
    ('../experiments/gan/task.py', 'from experiments.digits import model', 'another experiment'),
    ('../experiments/gan/task.py', 'import registry_imports', 'nothing above itself'),
    ('../experiments/gan/task.py', 'from official_ext.step import gradient_tap', 'the public face'),
    ('../registry_imports.py', 'from official_ext import errors', 'it lists what registers'),
    ('../train.py', 'from experiments import gan', 'registry_imports does'),
  ],
)
def test_a_wrong_import_is_refused(copy, path, code, expected):
  """Planted one at a time. Some look harmless: a constant, a helper, an import inside a function."""
  target = copy / 'official_ext' / path
  target.parent.mkdir(parents=True, exist_ok=True)
  before = target.read_text() if target.exists() else ''
  target.write_text(f'{before}\n{textwrap.dedent(code)}\n')
  assert any(expected in line for line in violations(copy)), violations(copy)


def test_a_circle_is_found(copy):
  (copy / 'official_ext/data/a.py').write_text('from official_ext.data import b')
  (copy / 'official_ext/data/b.py').write_text('from official_ext.data import a')
  assert 'official_ext.data.a imports itself, by way of others' in violations(copy)


def test_a_name_of_an_experiment_in_core_is_found(tmp_path):
  for path, text in {
    'experiments/cifar/__init__.py': '',
    'official_ext/core/x.py': '"""As the cifar experiment does."""\nif name == "cifar":\n  pass\n',
  }.items():
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
  assert names_of_experiments(tmp_path) == ['x.py:2: cifar']
