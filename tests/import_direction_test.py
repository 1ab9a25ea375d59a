"""Imports go only downward: train.py -> registry_imports -> experiments -> official_ext. Read from the sources."""

import ast
import pathlib
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ('official_ext', 'experiments')

# Inside official_ext, from the top down. A module may import its own row and those below, directly or by way of others.
LEVELS = (
  {'official_ext.checks.dry_run', 'official_ext.checks.debugging'},
  {'official_ext.core.train_lib'},
  {'official_ext.core.controller', 'official_ext.core.actions', 'official_ext.core.base_trainer'},
  {'official_ext.core.training_step', 'official_ext.core.checkpoints', 'official_ext.core.base_task'},
  {'official_ext.core.config_definitions'},
  {'official_ext.core.files'},
  {'official_ext.core.errors'},
)
# These know nothing of the loop.
INDEPENDENT = ('data', 'metrics', 'modeling', 'optimization', 'monitoring')
THEIR_CORE = {'official_ext.core.errors', 'official_ext.core.files', 'official_ext.core.config_definitions'}


def _sources(root):
  """Dotted module name -> path, of every module of the packages and of the top level."""
  paths = [path for package in PACKAGES for path in (root / package).rglob('*.py')] + sorted(root.glob('*.py'))
  parts = {path: path.relative_to(root).with_suffix('').parts for path in paths}
  return {'.'.join(name[:-1] if name[-1] == '__init__' else name): path for path, name in parts.items()}


def _imports(path, known):
  """The modules that a file imports, anywhere in it: those of `known` in full, others by their package."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(), str(path))):
    names = []
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{path}:{node.lineno}: a relative import'
      full = [f'{node.module}.{alias.name}' for alias in node.names]
      names = [name if name in known else node.module for name in full]
    found.update(name if name in known else name.split('.')[0] for name in names)
  return found


def _graph(root):
  sources = _sources(root)
  return {name: _imports(path, sources) for name, path in sources.items()}


def _reachable(graph, start):
  seen, pending = set(), [start]
  while pending:
    for name in graph.get(pending.pop(), ()):
      if name not in seen:
        seen.add(name)
        pending.append(name)
  return seen


def _within(name, package):
  return name == package or name.startswith(package + '.')


def violations(root):
  """Every import that goes up, as a line of text."""
  graph = _graph(root)
  reachable = {name: _reachable(graph, name) for name in graph}
  found = [f'{name} imports itself, by way of others' for name in graph if name in reachable[name]]
  above = set()
  for level in LEVELS:
    for name in level & graph.keys():
      found += [f'{name} reaches up to {other}' for other in reachable[name] & above]
    above |= level
  for name, imported in graph.items():
    for other in imported:
      allowed = True
      if other == 'keras':
        allowed = False  # Keras 3: this project, as Model Garden, is written for tf_keras.
      elif _within(name, 'official_ext'):
        allowed = other not in ('experiments', 'registry_imports', 'train', 'tests', 'benchmarks')
        allowed = allowed and not _within(other, 'experiments')
        allowed = allowed and (_within(name, 'official_ext.cli') or not _within(other, 'official_ext.cli'))
        for package in (f'official_ext.{part}' for part in INDEPENDENT):
          if _within(name, package) and _within(other, 'official_ext'):
            allowed = allowed and (_within(other, package) or other in THEIR_CORE)
      elif _within(name, 'experiments'):
        own = '.'.join(name.split('.')[:2])
        allowed = other not in ('registry_imports', 'train', 'tests', 'benchmarks')
        allowed = allowed and (not _within(other, 'experiments') or _within(other, own))
      elif name == 'train':
        allowed = not _within(other, 'experiments')
      elif name == 'registry_imports':
        allowed = _within(other, 'experiments') or other == 'official'
      if not allowed:
        found.append(f'{name} must not import {other}')
  return sorted(found)


def names_of_experiments(root):
  """Where core names an experiment: a string in its code that is one, or a path of one."""
  experiments = {path.parent.name for path in (root / 'experiments').glob('*/__init__.py')}
  found = []
  for path in sorted((root / 'official_ext/core').rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value in experiments or node.value.startswith('experiments.'):
          found.append(f'{path.name}:{node.lineno}: {node.value}')
  return found


def test_imports_go_downward():
  assert violations(ROOT) == []


def test_core_names_no_experiment():
  assert names_of_experiments(ROOT) == []


def test_the_sources_are_found():
  graph = _graph(ROOT)
  assert {'registry_imports', 'official_ext.core.errors', 'official_ext.data.sampling'} <= graph.keys()
  assert 'official_ext.core.errors' in graph['official_ext.core.distribute']
  assert 'tensorflow' in graph['official_ext.core.distribute']


@pytest.mark.parametrize(
  ('path', 'code', 'expected'),
  [
    ('experiments/a/task.py', 'from experiments.b import task', 'a.task must not import experiments.b.task'),
    ('experiments/a/task.py', 'import registry_imports', 'experiments.a.task must not import registry_imports'),
    ('official_ext/core/base_task.py', 'from experiments import b', 'must not import experiments.b'),
    ('official_ext/core/errors.py', 'def f():\n  import registry_imports', 'must not import registry_imports'),
    ('official_ext/data/x.py', 'from official_ext.core import base_trainer', 'must not import official_ext.core.base'),
    ('official_ext/data/x.py', 'from official_ext.monitoring import y', 'must not import official_ext.monitoring.y'),
    ('official_ext/core/base_task.py', 'from official_ext.core import base_trainer', 'reaches up to official_ext.core'),
    ('official_ext/core/helper.py', 'import official_ext.core.base_trainer', 'core.errors reaches up to'),
    ('official_ext/core/checkpoints.py', 'from official_ext.core import base_task', 'base_task imports itself'),
    ('official_ext/core/errors.py', 'from official_ext.cli import main', 'must not import official_ext.cli.main'),
    ('official_ext/core/errors.py', 'from keras import layers', 'must not import keras'),
    ('registry_imports.py', 'from official_ext.core import errors', 'registry_imports must not import'),
    ('train.py', 'from experiments import a', 'train must not import experiments.a'),
  ],
)
def test_what_goes_up_is_found(tmp_path, path, code, expected):
  """A small tree that is in order, and one import that is not."""
  tree = {
    'experiments/a/__init__.py': '',
    'experiments/a/task.py': 'from experiments.a import model\nfrom official_ext.core import base_task',
    'experiments/a/model.py': '',
    'experiments/b/__init__.py': '',
    'experiments/b/task.py': '',
    'official_ext/__init__.py': '',
    'official_ext/cli/main.py': 'from official_ext.core import base_trainer',
    'official_ext/core/errors.py': 'from official_ext.core import helper',
    'official_ext/core/helper.py': '',
    'official_ext/core/base_task.py': 'from official_ext.core import checkpoints',
    'official_ext/core/checkpoints.py': '',
    'official_ext/core/base_trainer.py': 'from official_ext.core import base_task\nfrom official_ext.data import x',
    'official_ext/data/x.py': 'from official_ext.core import errors',
    'official_ext/monitoring/y.py': '',
    'registry_imports.py': 'from experiments import a, b\nfrom official.common import registry_imports',
    'train.py': 'import registry_imports\nfrom official_ext.core import base_trainer',
  }
  for name, text in tree.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
  assert violations(tmp_path) == []
  with (tmp_path / path).open('a') as f:
    f.write('\n' + textwrap.dedent(code))
  assert any(expected in line for line in violations(tmp_path)), violations(tmp_path)


def test_a_name_of_an_experiment_in_core_is_found(tmp_path):
  for path, text in {
    'experiments/cifar/__init__.py': '',
    'official_ext/core/x.py': '"""As the cifar experiment does."""\nif name == "cifar":\n  pass\n',
  }.items():
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
  assert names_of_experiments(tmp_path) == ['x.py:2: cifar']
