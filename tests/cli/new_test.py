"""official-ext new: its files train and pass the project's tests, and failures leave nothing."""

import importlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

from official.core import exp_factory
import pytest

import experiments
from official_ext.cli import main as cli
from official_ext.cli import new
from official_ext.training.config import short_names
from tests import checkouts
from tests import import_direction_test
from tests import tiers

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = sorted(
  path.parent.name
  for path in (ROOT / 'experiments').glob('*/__init__.py')
  if not (path.parent / 'template.py').exists()  # Of these a file is written, and no folder.
)


@pytest.fixture
def checkout(tmp_path):
  """The current folder: see checkouts.py."""
  with checkouts.current(tmp_path / 'checkout') as folder:
    yield folder
  short_names._registered.pop('another', None)  # Of the next copy of this name.


def files_of(folder):
  return sorted(
    path.relative_to(folder).as_posix()
    for path in folder.rglob('*')
    if path.is_file() and '__pycache__' not in path.parts
  )


def load(path):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def lint(folder, name):
  process = subprocess.run(
    [
      f'{os.path.dirname(sys.executable)}/ruff',
      'check',
      '--no-cache',
      f'experiments/{name}',
      f'tests/experiments/{name}_test.py',
      'registry_imports.py',
    ],
    cwd=folder,
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0, process.stdout


@pytest.mark.slow
def test_it_writes_an_experiment_that_passes_its_test(checkout, tmp_path, capsys):
  before = files_of(checkout)
  assert cli.main(['new', 'rings']) == 0
  written = set(files_of(checkout)) - set(before)
  assert written == {
    'experiments/rings/__init__.py',
    'experiments/rings/configs.py',
    'experiments/rings/task.py',
    'tests/experiments/rings_test.py',
    'tests/golden/rings.yaml',
  }
  assert 'train.py --experiment=rings --mode=train_and_eval' in capsys.readouterr().out
  assert not [name for name in written if re.search('my_task|MyTask', (checkout / name).read_text())]
  lines = [line for line in (checkout / 'registry_imports.py').read_text().splitlines() if line.startswith('from exp')]
  assert 'from experiments import rings' in lines and lines == sorted(lines)
  lint(checkout, 'rings')
  assert [line for line in import_direction_test.violations(checkout) if 'rings' in line] == []
  assert 'classes' not in (checkout / 'tests/golden/rings.yaml').read_text()
  test = load(checkout / 'tests/experiments/rings_test.py')
  test.test_check_finds_no_mistake()
  test.test_it_learns(tmp_path / 'run')


@tiers.parametrize('like', FOLDERS, fast=['digits', 'sft'])
def test_like_copies_any_experiment_under_its_new_name(like, checkout):
  """The copy resolves to the same configuration, but for the name."""
  known = set(exp_factory._REGISTERED_CONFIGS)
  (checkout / 'tests/experiments').mkdir()
  if (ROOT / f'tests/experiments/{like}_test.py').exists():
    shutil.copy(ROOT / f'tests/experiments/{like}_test.py', checkout / 'tests/experiments')
  new.run('another', like=like)
  copied, original = checkout / 'experiments/another', ROOT / 'experiments' / like
  assert sorted(name.replace('another', like) for name in files_of(copied)) == files_of(original)
  registered = set(exp_factory._REGISTERED_CONFIGS) - known
  assert 'another' in registered and all(name.startswith('another') for name in registered)
  goldens = {path.stem for path in (checkout / 'tests/golden').glob('*.yaml')}
  assert goldens == {name.replace('/', '_') for name in registered}
  if (ROOT / f'tests/golden/{like}.yaml').exists():
    assert (checkout / 'tests/golden/another.yaml').read_text().replace('another', like) == (
      ROOT / f'tests/golden/{like}.yaml'
    ).read_text()
  lint(checkout, 'another')
  assert [line for line in import_direction_test.violations(checkout) if 'another' in line] == []
  compile((checkout / 'tests/experiments/another_test.py').read_text(), 'another_test.py', 'exec')


def test_a_copys_own_names_change_and_others_stay(checkout):
  new.run('shapes', like='digits')
  builder = (checkout / 'experiments/shapes/shapes_dataset.py').read_text()
  assert 'class Shapes(tfds.core.GeneratorBasedBuilder)' in builder and 'datasets.load_digits()' in builder
  assert 'Recognition of Handwritten Digits' in builder  # The title of a data set.
  assert "tfds_name='shapes'" in (checkout / 'experiments/shapes/configs.py').read_text()
  assert 'assert logs and all(' in (checkout / 'tests/experiments/shapes_test.py').read_text()


@pytest.mark.soak
def test_the_general_test_trains_a_copy(checkout, tmp_path):
  new.run('perceptron', like='digits_mlp')
  load(checkout / 'tests/experiments/perceptron_test.py').test_it_trains_and_evaluates(tmp_path / 'run')


def test_an_experiment_that_runs_files_gives_one_to_begin_with(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)  # No checkout.
  assert cli.main(['new', 'custom01', '--like=script']) == 0
  out = capsys.readouterr().out
  assert [path.name for path in tmp_path.iterdir()] == ['custom01.py']
  assert out.splitlines() == [
    'wrote  custom01.py',
    'then   official-ext check script --set=script=custom01.py',
    'then   python train.py --experiment=script --mode=train --model_dir=runs/custom01 --set=script=custom01.py '
    '--set=learning_rate=3e-3 --set=max_steps=500 --set=batch_size=16',
  ]
  text = (tmp_path / 'custom01.py').read_text()
  assert 'template' not in text
  assert text.replace('custom01', 'template') == (ROOT / 'experiments/script/template.py').read_text()
  assert cli.main(['describe', 'script', '--set=script=custom01.py', '--set=learning_rate=1e-3']) == 0
  (tmp_path / 'custom01.py').write_text('mine')
  for name, message in (('custom01', 'custom01.py: exists already'), ('yaml', 'yaml: a module of this name is')):
    assert cli.main(['new', name, '--like=script']) == 2
    assert message in capsys.readouterr().err
  assert [path.read_text() for path in tmp_path.iterdir()] == ['mine']


def test_a_package_has_an_entry_point_and_its_test_passes(tmp_path, checkout, monkeypatch, capsys):
  folder = tmp_path / 'elsewhere'
  folder.mkdir()
  monkeypatch.chdir(folder)
  assert cli.main(['new', 'my_rings', '--package']) == 0
  package = folder / 'my_rings'
  assert files_of(folder) == [
    f'my_rings/{name}'
    for name in (
      'README.md',
      'pyproject.toml',
      'src/my_rings/__init__.py',
      'src/my_rings/configs.py',
      'src/my_rings/task.py',
      'tests/my_rings_test.py',
    )
  ]
  project = (package / 'pyproject.toml').read_text()
  assert '[project.entry-points."official_ext.experiments"]\nmy_rings = "my_rings"' in project
  assert not [name for name in files_of(package) if 'experiments.my_rings' in (package / name).read_text()]
  monkeypatch.syspath_prepend(package / 'src')
  module = importlib.import_module('my_rings')
  assert pathlib.Path(module.__file__).is_relative_to(package)
  load(package / 'tests/my_rings_test.py').test_check_finds_no_mistake()
  for name in [name for name in sys.modules if name.partition('.')[0] == 'my_rings']:
    del sys.modules[name]


def test_a_package_may_be_like_an_experiment(checkout):
  new.run('numerals', like='digits', as_package=True)
  task = (checkout / 'numerals/src/numerals/task.py').read_text()
  assert '  from . import numerals_dataset  #' in task and 'experiments' not in task
  assert 'import numerals  # noqa' in (checkout / 'numerals/tests/numerals_test.py').read_text()


BAD = [
  (['new'], 'new: expected official-ext new NAME'),
  (['new', 'a', 'b'], 'a b: expected official-ext new NAME'),
  (['new', 'rings', '--lik=digits'], '--lik=digits: no such flag'),
  (['new', 'my-task'], 'my-task: cannot be the name of a module'),
  (['new', 'MyTask'], 'MyTask: cannot be the name of a module'),
  (['new', '2d'], '2d: cannot be the name of a module'),
  (['new', '../up'], '../up: cannot be the name of a module'),
  (['new', 'class'], 'class: cannot be the name of a module'),
  (['new', 'digits'], 'digits: an experiment of this name is registered already'),
  (['new', 'bert'], 'bert: an experiment of this name is registered already'),
  (['new', 'configs'], 'configs: the code of the template means something else by configs'),
  (['new', 'model'], 'model: '),
  (['new', 'rings', '--like=digts'], '--like=digts: is not a folder of experiments/; did you mean digits?'),
  (['new', 'numpy', '--package'], 'numpy: '),
  (['new', 'yaml', '--package'], 'yaml: a module of this name is installed already'),
  (['new', 'stop'], 'stop: is a word of the library itself (definitions.py, line '),
]


@pytest.mark.parametrize('arguments, start', BAD, ids=[' '.join(arguments)[:40] for arguments, _ in BAD])
def test_a_mistake_is_one_line_and_nothing_is_written(arguments, start, checkout, capsys):
  before = {name: (checkout / name).read_bytes() for name in files_of(checkout)}
  assert cli.main(arguments) == 2
  out, err = capsys.readouterr()
  assert err.startswith(f'error: {start}') and err.count('\n') == 1 and not out
  assert {name: (checkout / name).read_bytes() for name in files_of(checkout)} == before


@pytest.mark.parametrize(
  'path',
  ['experiments/rings/notes.txt', 'tests/experiments/rings_test.py', 'tests/golden/rings.yaml', 'rings/notes.txt'],
)
def test_nothing_is_overwritten(path, checkout, capsys):
  (checkout / path).parent.mkdir(parents=True)
  (checkout / path).write_text('mine')
  before = {name: (checkout / name).read_bytes() for name in files_of(checkout)}
  assert cli.main(['new', 'rings', *(['--package'] if path.startswith('rings') else [])]) == 2
  assert 'exists already; nothing was written' in capsys.readouterr().err
  assert {name: (checkout / name).read_bytes() for name in files_of(checkout)} == before


@pytest.mark.slow
def test_a_copy_that_cannot_be_imported_is_removed(checkout, monkeypatch, capsys):
  broken = checkout / 'experiments/broken'
  broken.mkdir()
  (broken / '__init__.py').write_text('raise RuntimeError("not\\nyet")\n')
  experiments.__path__.append(str(checkout / 'experiments'))
  monkeypatch.setattr(new, '_experiment_files', lambda name: {'__init__.py': (broken / '__init__.py').read_text()})
  before = files_of(checkout)
  assert cli.main(['new', 'rings', '--like=broken']) == 2
  assert capsys.readouterr().err == (
    'error: experiments/rings: cannot be imported: RuntimeError: not yet; nothing was written\n'
  )
  assert files_of(checkout) == before and not (checkout / 'experiments/rings').exists()


def test_elsewhere_a_package_is_proposed(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  assert cli.main(['new', 'rings']) == 2
  assert 'is not a checkout of official_ext' in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.soak
def test_the_whole_project_takes_it_and_a_package_can_be_installed(tmp_path):
  """A copy of the project: lint, types, golden files and its own test; then a package in a separate environment."""
  project = tmp_path / 'project'
  hidden = shutil.ignore_patterns('.*', '__pycache__', '*.egg-info')
  outputs = lambda folder: {'runs'} if pathlib.Path(folder) == pathlib.Path(ROOT) else set()  # Packages have this name.
  shutil.copytree(ROOT, project, ignore=lambda folder, names: hidden(folder, names) | outputs(folder))
  environment = {**os.environ, 'PYTHONPATH': str(project), 'CUDA_VISIBLE_DEVICES': ''}

  def run(*arguments, cwd=project, python=sys.executable):
    process = subprocess.run(
      [python, '-m', *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, f'{arguments}: {process.stdout[-3000:]}\n{process.stderr[-3000:]}'
    return process.stdout

  run('official_ext.cli.main', 'new', 'rings')
  run('official_ext.cli.main', 'new', 'shapes', '--like=digits')
  names = ('rings', 'shapes')
  run(
    'ruff',
    'check',
    'registry_imports.py',
    *(f'experiments/{name}' for name in names),
    *(f'tests/experiments/{name}_test.py' for name in names),
  )
  run('mypy')
  run(
    'pytest',
    '-q',
    'tests/import_direction_test.py',
    'tests/golden',
    'tests/experiments/rings_test.py',
    'tests/experiments/shapes_test.py',
    'tests/benchmarks/all_experiments_test.py::test_every_experiment_of_this_repository_is_trained',
  )
  run(
    'train',
    '--experiment=rings',
    '--mode=train_and_eval',
    f'--model_dir={tmp_path}/runs/rings',
    '--set=train_steps=100',
  )
  # The packages of this environment, and the packages installed beside them.
  subprocess.run([sys.executable, '-m', 'venv', '--without-pip', tmp_path / 'env'], check=True)
  (site,) = (tmp_path / 'env/lib').glob('python*/site-packages')
  packages = next(path for path in sys.path if path.endswith('site-packages'))
  (site / 'all.pth').write_text(f'import site; site.addsitedir({packages!r})\n')
  python = str(tmp_path / 'env/bin/python')
  run('official_ext.cli.main', 'new', 'my_rings', '--package', cwd=tmp_path)
  package = tmp_path / 'my_rings'
  del environment['PYTHONPATH']
  run('pip', 'install', '--no-deps', '--no-build-isolation', '-e', '.', cwd=package, python=python)
  assert 'my_rings ' in run('official_ext.cli.main', 'list', cwd=tmp_path, python=python)
  assert 'none found' in run('official_ext.cli.main', 'check', 'my_rings', cwd=tmp_path, python=python)
  assert '2 passed' in run('pytest', '-q', cwd=package, python=python)
  process = subprocess.run(
    [
      python,
      ROOT / 'train.py',
      '--experiment=my_rings',
      '--mode=train',
      f'--model_dir={tmp_path}/runs/my_rings',
      '--set=train_steps=100',
    ],
    env=environment,
    cwd=tmp_path,
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0 and 'finished 100/100' in process.stdout, process.stderr
  (package / 'src/my_rings/task.py').write_text('import no_such_module\n')
  process = subprocess.run(
    [python, '-m', 'official_ext.cli.main', 'list'],
    env=environment,
    cwd=tmp_path,
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0
  (line,) = [line for line in process.stderr.splitlines() if line.startswith('warning: ')]
  assert 'the installed package my-rings' in line or 'the installed package my_rings' in line
