"""The tiers: `make test-fast` imports no TensorFlow, and leaves out nothing that can do without."""

import pathlib
import re
import subprocess
import sys

import pytest

from tests import tensorflow_import
from tests import tiers

ROOT = pathlib.Path(__file__).resolve().parent.parent


def _pytest(*arguments, **kwargs):
  command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', *arguments]
  return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False, **kwargs)


def test_tensorflow_is_refused_here_and_in_child_processes(tmp_path):
  test = """
import subprocess
import sys

import pytest

def test_here():
  with pytest.raises(ImportError, match='--no-tensorflow'):
    import tensorflow

def test_in_a_child():
  done = subprocess.run([sys.executable, '-c', 'import tensorflow'], capture_output=True, text=True, check=False)
  assert done.returncode == 1 and '--no-tensorflow' in done.stderr

@pytest.mark.tensorflow
def test_that_needs_it():
  import tensorflow

def test_of_the_driver(run_train):
  pass
"""
  (tmp_path / 'here_test.py').write_text(test)
  (tmp_path / 'needing_test.py').write_text('import tensorflow\n\ndef test_it():\n  pass\n')
  (tmp_path / 'conftest.py').write_text((ROOT / 'tests/conftest.py').read_text())
  done = _pytest('--no-tensorflow', '--rootdir', tmp_path, '-c', ROOT / 'pyproject.toml', tmp_path)
  assert re.search(r'^2 passed, 2 deselected', done.stdout, re.MULTILINE), done.stdout


# All of their tests start the driver, or are slow.
_LEFT_OUT = {
  'console/models_api',
  'console/new_run_api',
  'console/run_api',
  'console/worker',
  'engines/ray_jobs',
  'engines/slurm',
  'runs/irregular_files',
  'runs/tensorboard_server',
}


@pytest.mark.slow
def test_the_fast_part_has_the_other_modules_of_operations():
  done = _pytest('--no-tensorflow', '--collect-only', '--ignore=tests/operations/console/browser', 'tests/operations')
  collected = {line.split('::')[0] for line in done.stdout.splitlines() if '::' in line}
  paths = (ROOT / 'tests/operations').rglob('*_test.py')
  named = {str(path.relative_to(ROOT)) for path in paths if path.parent.name != 'browser'}
  assert named - collected <= {f'tests/operations/{name}_test.py' for name in _LEFT_OUT}


def test_the_fast_part_is_run_without_tensorflow():
  makefile = (ROOT / 'Makefile').read_text()
  assert re.search(r'^test-fast: .*\n\t\$\(TEST_FAST\)$', makefile, re.MULTILINE)
  assert '--no-tensorflow' in re.search(r'^TEST_FAST := (.*)$', makefile, re.MULTILINE).group(1)


@pytest.mark.slow
def test_devices_are_configured_by_the_import():
  code = f"""
    from tests import tensorflow_import
    tensorflow_import.configure_on_import()
    import tensorflow as tf
    assert len(tf.config.list_logical_devices('CPU')) == {tensorflow_import.NUM_CPUS}
  """
  lines = '\n'.join(line.strip() for line in code.splitlines())
  subprocess.run([sys.executable, '-c', lines], cwd=ROOT, timeout=300, check=True)


def marks(values, fast, names='a'):
  mark = tiers.parametrize(names, values, fast)
  return [[each.name for each in getattr(value, 'marks', [])] for value in mark.args[1]]


def test_all_but_the_first_or_the_named_cases_are_slow():
  assert marks(['a', 'b', 'c'], 1) == [[], ['slow'], ['slow']]
  assert marks([(1, 2), (3, 4)], [(3, 4)], 'a, b') == [['slow'], []]
  long = pytest.param('b', marks=pytest.mark.soak)
  assert marks(['a', long, 'c'], ['a']) == [[], ['soak'], ['slow']]
