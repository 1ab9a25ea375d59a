"""Type checkers know the public names: mypy finds nothing in authors' first files, and finds planted mistakes."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from official_ext.cli import main as cli
from tests import documents

ROOT = pathlib.Path(__file__).resolve().parent.parent


def replaced(path: pathlib.Path, text: str, other: str) -> int:
  """Replaces a text that is in the file once; returns its line."""
  content = path.read_text()
  assert content.count(text) == 1, content
  path.write_text(content.replace(text, other))
  return content[: content.index(text)].count('\n') + 1


@pytest.fixture(scope='module')
def found(tmp_path_factory):
  """(errors by module, lines of planted mistakes by module): one process of mypy for all of it.

  It has the configuration and the cache of `make check`: with the latter it takes seconds.
  """
  folder = tmp_path_factory.mktemp('typed')
  (code,) = documents.code(documents.read('README.md'))
  for name in ('rings', 'wrong_rings'):
    (folder / f'{name}.py').write_text(code)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    assert cli.main(['new', 'spirals', '--package']) == 0
    assert cli.main(['new', 'wrong_spirals', '--package']) == 0
  script, package = folder / 'wrong_rings.py', folder / 'wrong_spirals/src/wrong_spirals'
  array = 'ext.ArraySource(make_examples(bool(params.is_training), params.noise))'
  planted = {
    'wrong_rings.py': [
      replaced(script, 'experiment(RingsConfig()', 'experiment(RingsConfig(hiden_size=8)'),
      replaced(script, 'ext.register_task(RingsConfig)', 'ext.register_task()'),
    ],
    'configs.py': [replaced(package / 'configs.py', 'num_steps = 1000', 'num_steps = WrongSpiralsConfig().steps')],
    'task.py': [replaced(package / 'task.py', array, 'ext.ArraySource(params.noise)')],
  }
  paths = [folder / 'rings.py', script, folder / 'spirals/src/spirals', package]
  process = subprocess.run(
    [sys.executable, '-m', 'mypy', '--config-file=pyproject.toml', *map(str, paths)],
    cwd=ROOT,
    env={**os.environ, 'MYPYPATH': os.pathsep.join(map(str, [folder, *folder.glob('*/src')]))},
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode in (0, 1), process.stdout + process.stderr
  errors = re.findall(r'^(\S+):(\d+): error: (.*)$', process.stdout, re.MULTILINE)
  return [(str(pathlib.Path(path).resolve()), int(line), message) for path, line, message in errors], planted


@pytest.mark.slow
def test_the_example_and_a_new_package_have_no_errors(found):
  errors, _ = found
  assert [error for error in errors if 'wrong_' not in error[0]] == []


@pytest.mark.slow
def test_a_wrong_field_and_a_wrong_argument_are_found(found):
  errors, planted = found
  lines = {name: [line for path, line, _ in errors if 'wrong_' in path and path.endswith(name)] for name in planted}
  assert {name: sorted(set(each)) for name, each in lines.items()} == {
    name: sorted(each) for name, each in planted.items()
  }
