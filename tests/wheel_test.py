"""The wheel, installed in a new environment, without the source tree: every command that starts runs."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
import zipfile

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]

ROOT = pathlib.Path(__file__).resolve().parent.parent
_SOURCES = ('official_ext', 'experiments', 'setup.py', 'pyproject.toml', 'README.md', 'LICENSE')
_STEPS = 40
_FLAGS = (
  '--experiment=digits_mlp',
  '--mode=train',
  f'--set=train_steps={_STEPS}',
  '--set=checkpoint_interval=10',
  '--set=steps_per_loop=10',
)
_REGISTRY = """
import experiments.mine
"""
_MINE = """
import dataclasses

from official.core import exp_factory

from official_ext.experiments import digits_mlp


@exp_factory.register_config_factory('digits')
def digits():
  '''Mine, not the library's.'''
  return digits_mlp.digits_mlp()
"""


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  """The path of the wheel."""
  folder = tmp_path_factory.mktemp('wheel')
  leave_out = shutil.ignore_patterns('__pycache__')
  for name in _SOURCES:
    source = ROOT / name
    if source.is_dir():
      shutil.copytree(source, folder / 'source' / name, ignore=leave_out)
    else:
      shutil.copy(source, folder / 'source' / name)
  arguments = ['--no-deps', '--no-build-isolation', '--quiet', '--wheel-dir', str(folder), str(folder / 'source')]
  subprocess.run([sys.executable, '-m', 'pip', 'wheel', *arguments], check=True)
  (found,) = folder.glob('*.whl')
  return found


class Installed:
  """The wheel in a new environment, and a folder to work in.

  Attributes:
    folder: the current folder of its commands.
    bin: the folder of the environment's commands.
  """

  def __init__(self, bin_folder, folder):
    self.bin = bin_folder
    self.folder = folder
    self._environment = {name: value for name, value in os.environ.items() if name not in ('PYTHONPATH', 'XLA_FLAGS')}
    self._environment |= {'CUDA_VISIBLE_DEVICES': '', 'XDG_CACHE_HOME': str(folder / 'cache'), 'COLUMNS': '120'}

  def start(self, *arguments, **values):
    """Starts `official-ext ARGUMENTS`."""
    command = [str(self.bin / 'official-ext'), *map(str, arguments)]
    return subprocess.Popen(command, cwd=self.folder, env=self._environment, text=True, **values)

  def run(self, *arguments, status=0):
    """Runs `official-ext ARGUMENTS` to its end; returns what it printed on both streams."""
    process = self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == status, output
    return output

  def python(self, *arguments):
    """Runs the environment's Python; returns its output."""
    command = [str(self.bin / 'python'), *arguments]
    return subprocess.run(
      command, cwd=self.folder, env=self._environment, text=True, check=True, capture_output=True
    ).stdout


@pytest.fixture(scope='module')
def environment(wheel, tmp_path_factory):
  """The folder of an environment with the wheel, and the packages of this one without its source tree."""
  folder = tmp_path_factory.mktemp('environment') / 'venv'
  venv.create(folder, with_pip=True)
  packages = folder / f'lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages'
  # A path file in a folder that one of these names is not read: an editable installation stays out.
  (packages / 'others.pth').write_text(sysconfig.get_path('purelib') + '\n')
  subprocess.run([folder / 'bin/python', '-m', 'pip', 'install', '--quiet', '--no-deps', wheel], check=True)
  return folder


@pytest.fixture
def installed(environment, tmp_path):
  return Installed(environment / 'bin', tmp_path)


def _steps(run):
  events = [json.loads(line) for line in (run / 'events.jsonl').read_text().splitlines()]
  return [event['step'] for event in events if event['event'] == 'train']


def _status(run):
  path = run / 'run.json'
  return json.loads(path.read_text())['status'] if path.exists() else None


def _wait_until(is_true, seconds=300):
  end = time.monotonic() + seconds
  while not is_true():
    assert time.monotonic() < end
    time.sleep(0.05)


def test_the_wheel_has_one_package_and_what_it_ships(wheel):
  names = zipfile.ZipFile(wheel).namelist()
  assert {name.partition('/')[0] for name in names if '.dist-info/' not in name} == {'official_ext'}
  shipped = {path.parent.name for path in (ROOT / 'experiments').glob('*/__init__.py')}
  assert {f'official_ext/experiments/{name}/__init__.py' for name in shipped} <= set(names)


def test_the_library_is_that_of_the_wheel(installed, environment):
  print_path = 'import official_ext; print(official_ext.__file__)'
  assert installed.python('-c', print_path).startswith(str(environment))


def test_shipped_experiments_are_listed_once_and_checked(installed):
  listed = [line.split()[0] for line in installed.run('list').splitlines()]
  assert len(listed) == len(set(listed))
  assert {'digits', 'gan', 'resnet_imagenet'} <= set(listed)
  installed.run('check', 'digits_mlp')  # Its exit status tells.


def test_a_killed_run_resumes_by_each_command_and_ends_as_one_that_was_not(installed):
  runs = installed.folder / 'runs'
  installed.run('train', *_FLAGS, f'--model_dir={runs}/whole')
  process = installed.start('train', *_FLAGS, f'--model_dir={runs}/killed')
  _wait_until(lambda: (runs / 'killed/ckpt-10.index').exists())
  process.kill()
  process.wait()
  installed.run('runs', 'resume', runs, 'killed')
  _wait_until(lambda: _status(runs / 'killed') == 'finished')
  print_sum = (
    'import hashlib, sys, tensorflow as tf; r = tf.train.load_checkpoint(sys.argv[1]);'
    'print([(n, hashlib.sha256(r.get_tensor(n).tobytes()).hexdigest()) for n in sorted(r.get_variable_to_shape_map())'
    ' if "VARIABLE_VALUE" in n])'
  )
  whole, killed = (installed.python('-c', print_sum, f'{runs}/{name}/ckpt-{_STEPS}') for name in ('whole', 'killed'))
  assert whole == killed and 'kernel' in whole


def test_a_queue_a_sweep_and_a_launcher_start_the_installed_driver(installed):
  runs = installed.folder / 'runs'
  installed.run('queue', 'add', runs, '--', *_FLAGS, f'--model_dir={runs}/queued')
  installed.run('queue', 'run', runs, '--slots=1', '--until_empty')
  assert _status(runs / 'queued') == 'finished'
  flags = ('--experiment=digits_mlp', '--set=learning_rate=1e-2,1e-3', '--metric=validation_loss', '--name=lr')
  installed.run('sweep', runs, *flags, '--', '--set=train_steps=20')
  points = [path.parent for path in runs.glob('lr/*/run.json')]
  assert len(points) == 2 and {_status(point) for point in points} == {'finished'}
  installed.run('launch', '--num_workers=2', '--', *_FLAGS, f'--model_dir={runs}/launched')
  assert _status(runs / 'launched') == 'finished' and _steps(runs / 'launched')[-1] == _STEPS
  installed.run('export', f'{runs}/queued')
  assert list((runs / 'queued/export').glob('*/saved_model.pb'))
  installed.run('runs', 'clone', runs, 'queued', '--set=train_steps=20', '--name=longer', '--start')
  _wait_until(lambda: _status(runs / 'longer') == 'finished')


def test_the_form_of_the_console_starts_a_run(installed):
  runs = installed.folder / 'runs'
  runs.mkdir()
  console = installed.start('console', runs, '--port=0', stdout=subprocess.PIPE)
  try:
    url = re.search(r'http://\S+:\d+', console.stdout.readline()).group()

    def ask(path, body=None):
      content = None if body is None else json.dumps(body).encode()
      headers = {} if body is None else {'Content-Type': 'application/json', 'Origin': url, 'X-Console-Token': token}
      with urllib.request.urlopen(urllib.request.Request(url + path, content, headers), timeout=300) as answer:
        return json.load(answer)

    token = ask('/api/session')['token']
    assert 'gan' in [each['name'] for each in ask('/api/new/experiments')['experiments']]
    form = {
      'experiment': 'digits_mlp',
      'mode': 'train',
      'name': 'made',
      'edits': [{'key': 'train_steps', 'text': '20'}],
    }
    found = ask('/api/new/form', form)
    assert found['lines'] == [] and '-m official_ext.cli.train' in found['command']
    assert ask('/api/new/start', form) == {'run': 'made'}
    _wait_until(lambda: _status(runs / 'made') == 'finished')
  finally:
    console.terminate()
    console.wait()


def test_a_new_package_trains(installed, tmp_path_factory):
  # Its finder adds it to the environment: it is installed by the path of its sources instead.
  installed.run('new', 'iris', '--package')
  installed.run('new', 'perceptron', '--package', '--like=digits_mlp')
  for name in ('iris', 'perceptron'):
    source = installed.folder / name / 'src'
    script = (
      'import sys; sys.path[0] = sys.argv.pop(1); import official_ext; from official_ext.cli import train; train.run()'
    )
    flags = [f'--registry={name}', f'--experiment={name}', '--mode=train', '--set=train_steps=2']
    installed.python('-c', script, str(source), *flags, f'--model_dir={installed.folder}/runs/{name}')
    assert _status(installed.folder / 'runs' / name) == 'finished'


def test_a_registry_of_the_current_folder_wins(installed):
  (installed.folder / 'experiments').mkdir()
  (installed.folder / 'registry_imports.py').write_text(_REGISTRY)
  (installed.folder / 'experiments/mine.py').write_text(_MINE)
  lines = {name: text.strip() for name, _, text in (line.partition(' ') for line in installed.run('list').splitlines())}
  assert lines['digits'] == "Mine, not the library's." and 'gan' in lines
  installed.run('train', '--experiment=digits', '--mode=train', '--set=train_steps=2', '--model_dir=runs/mine')
  assert 'hidden' in (installed.folder / 'runs/mine/params.yaml').read_text()


def test_a_registry_that_is_named_is_not_the_librarys(installed):
  found = installed.run('train', '--registry=registry_imports', *_FLAGS, '--model_dir=runs/a', status=2)
  assert (
    "--registry=registry_imports: cannot be imported: ModuleNotFoundError: No module named 'registry_imports'" in found
  )
  assert not (installed.folder / 'runs').exists()
