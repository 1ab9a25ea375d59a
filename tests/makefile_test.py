"""Tests for the Makefile: when `.venv` is installed, and when it is left alone."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Replaces python3.N: makes the folder that venv makes, and writes down each installation.
_PYTHON = """#!/bin/sh
case "$*" in
  *version_info*) echo VERSION ;;
  "-c import urllib"*) test ! -e unreachable ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *"pip install"*) echo "$*" >> installs; test ! -e broken ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
  """A folder with the real Makefile and its dependencies, and a Python that only takes notes."""
  for name in (
    'Makefile',
    'setup.py',
    'constraints.txt',
    'benchmarks/peers/requirements.txt',
    'tests/operations/engines/published.txt',
  ):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / name, tmp_path / name)
  (tmp_path / 'bin').mkdir()
  for command in ('make', 'sh', 'mkdir', 'cp', 'cat', 'cksum', 'cut', 'rm', 'touch'):  # No other Python than ours.
    (tmp_path / 'bin' / command).symlink_to(shutil.which(command))
  _add_python(tmp_path, '3.11')
  return tmp_path


def _add_python(checkout, version, name=''):
  python = checkout / 'bin' / (name or f'python{version}')
  python.write_text(_PYTHON.replace('VERSION', version))
  python.chmod(0o755)


# What `make test PYTHON=...` around these tests exports: its own state, and the variables that were given to it.
_OF_MAKE = {'MAKEFLAGS', 'MFLAGS', 'MAKELEVEL', *re.findall(r'^(\w+) [?:]?=', (ROOT / 'Makefile').read_text(), re.M)}


def _make(checkout, *arguments):
  environment = {key: value for key, value in os.environ.items() if key not in _OF_MAKE}
  environment['PATH'] = str(checkout / 'bin')
  return subprocess.run(
    ['make', *arguments], cwd=checkout, env=environment, capture_output=True, text=True, timeout=60, check=False
  )


def _installs(checkout):
  path = checkout / 'installs'
  return path.read_text().splitlines() if path.exists() else []


def test_a_second_run_installs_nothing(checkout):
  assert _make(checkout, '.venv').returncode == 0
  (install,) = _installs(checkout)
  assert '--constraint constraints.txt' in install and '--editable .[console]' in install
  os.utime(checkout / 'setup.py')  # As after a checkout of the same file.
  assert _make(checkout, '.venv').returncode == 0
  assert len(_installs(checkout)) == 1
  assert _make(checkout, '--question', '.venv').returncode == 0


@pytest.mark.parametrize('target', ['demo', 'console'])
def test_what_only_tests_need_is_not_installed_for_others(checkout, target):
  _make(checkout, '.venv')
  assert 'install' not in _make(checkout, '--dry-run', target).stdout
  assert 'install' in _make(checkout, '--dry-run', 'test').stdout


@pytest.mark.parametrize('is_reachable', [True, False])
def test_what_tests_need_comes_on_top_with_the_cpu_build_of_pytorch_if_its_index_is_reachable(checkout, is_reachable):
  _make(checkout, '.venv')
  if not is_reachable:
    (checkout / 'unreachable').touch()
  assert _make(checkout, '.venv-test').returncode == 0
  _, install = _installs(checkout)
  assert install.endswith('--editable .[test]') and '--constraint constraints.txt' in install
  assert ('--extra-index-url https://download.pytorch.org/whl/cpu' in install) == is_reachable
  assert _make(checkout, '.venv-test').returncode == 0
  assert len(_installs(checkout)) == 2


def test_uv_installs_if_it_is_there(checkout):
  uv = checkout / 'bin/uv'
  uv.write_text('#!/bin/sh\necho "uv $*" >> installs\n')
  uv.chmod(0o755)
  assert _make(checkout, '.venv-test').returncode == 0
  core, tests = _installs(checkout)
  assert core == 'uv pip install --python .venv/bin/python --constraint constraints.txt --editable .[console]'
  assert tests == (
    'uv pip install --python .venv/bin/python --constraint constraints.txt --torch-backend=cpu --editable .[test]'
  )


@pytest.mark.parametrize('name', ['setup.py', 'constraints.txt'])
def test_a_change_installs_again(checkout, name):
  _make(checkout, '.venv')
  with (checkout / name).open('a') as f:
    f.write('# changed\n')
  assert _make(checkout, '.venv').returncode == 0
  assert len(_installs(checkout)) == 2
  assert _make(checkout, '.venv').returncode == 0
  assert len(_installs(checkout)) == 2


def test_an_installation_that_failed_is_done_again(checkout):
  (checkout / 'broken').touch()
  assert _make(checkout, '.venv').returncode != 0
  (checkout / 'broken').unlink()
  assert _make(checkout, '.venv').returncode == 0
  assert len(_installs(checkout)) == 2


@pytest.mark.parametrize(
  'target', ['demo', 'test', 'test-fast', 'coverage', 'test-all', 'test-slow', 'check', 'bench', 'experiments']
)
def test_every_target_sets_itself_up(checkout, target):
  planned = _make(checkout, '--dry-run', target).stdout
  assert 'pip install' in planned
  _make(checkout, '.venv-test')
  if target == 'bench':
    assert 'pip install' in _make(checkout, '--dry-run', target).stdout
    _make(checkout, '.venv-peers')
  assert 'pip install' not in _make(checkout, '--dry-run', target).stdout


def test_what_peers_need_comes_into_an_environment_of_its_own_once(checkout):
  assert _make(checkout, '.venv-peers').returncode == 0
  ours, theirs = _installs(checkout)
  assert '--editable' in ours and theirs.endswith('--requirement benchmarks/peers/requirements.txt')
  assert (checkout / '.venv-peers/bin/python').exists()
  assert _make(checkout, '.venv-peers').returncode == 0
  assert len(_installs(checkout)) == 2
  with (checkout / 'benchmarks/peers/requirements.txt').open('a') as f:
    f.write('# changed\n')
  assert _make(checkout, '.venv-peers').returncode == 0
  assert len(_installs(checkout)) == 3


@pytest.mark.parametrize('version', ['3.12', '3.13'])
def test_the_only_python_at_hand_is_taken(checkout, version):
  (checkout / 'bin/python3.11').write_text('#!/bin/sh\nexit 127\n')  # As pyenv leaves one that is not installed.
  _add_python(checkout, version)
  assert _make(checkout, '.venv').returncode == 0
  assert len(_installs(checkout)) == 1
  assert f'echo {version}' in (checkout / '.venv/bin/python').read_text()


def test_the_environment_of_another_python_is_made_anew(checkout):
  _add_python(checkout, '3.13')
  assert _make(checkout, '.venv').returncode == 0
  (checkout / '.venv/old').touch()
  assert _make(checkout, '.venv', 'PYTHON=python3.13').returncode == 0
  assert len(_installs(checkout)) == 2
  assert 'echo 3.13' in (checkout / '.venv/bin/python').read_text()
  assert not (checkout / '.venv/old').exists()


@pytest.mark.parametrize(
  ('version', 'message'), [('3.10', 'is Python 3.10'), ('3.14', 'is Python 3.14'), ('', 'does not run')]
)
def test_another_python_is_refused_with_what_to_do(checkout, version, message):
  (checkout / 'bin/python3.11').unlink()
  if version:
    _add_python(checkout, version, 'python3')
  process = _make(checkout, '.venv')
  assert process.returncode != 0
  assert f'error: python3 {message}; one of 3.11 3.12 3.13 is needed: install it' in process.stderr
  assert 'make PYTHON=/path/to/python3.12' in process.stderr
  assert not (checkout / '.venv').exists()


def test_the_smoke_part_runs_on_every_python_at_hand_in_an_environment_of_its_own(checkout):
  _add_python(checkout, '3.13')
  process = _make(checkout, '--dry-run', 'pythons')
  output = _make(checkout, 'pythons', 'MAKE=echo would make').stdout.splitlines()
  assert process.returncode == 0
  assert output == [
    'would make PYTHON=python3.11 VENV=.venv-3.11 smoke',
    'python3.12: not installed',
    'would make PYTHON=python3.13 VENV=.venv-3.13 smoke',
  ]


_PASSED = '==== 3 passed in 1.25s ===='
_FAILED = '= 1 failed in 60.1s (0:01:00) ='


@pytest.fixture
def ci_run(tmp_path):
  """The real .ci/run, in `tmp_path`."""
  (tmp_path / '.ci').mkdir()
  return shutil.copy(ROOT / '.ci/run', tmp_path / '.ci/run')


@pytest.mark.parametrize(
  ('statuses', 'printed'),
  [
    ((0, 0), ['short', _PASSED, 'long', _PASSED]),
    ((0, 2), ['short', _PASSED, 'long', _FAILED]),
    ((2, 0), ['short', _FAILED]),
  ],
)
def test_ci_ends_with_the_closing_line_of_pytest(ci_run, tmp_path, statuses, printed):
  rules = [
    f"{target}:\n\t@echo '{first}'\n\t@echo '{_FAILED if status else _PASSED}'; exit {status}\n"
    for target, first, status in zip(('test', 'test-slow'), ('short', 'long'), statuses, strict=True)
  ]
  (tmp_path / 'Makefile').write_text('\n'.join(rules))
  process = subprocess.run([ci_run], capture_output=True, text=True, timeout=60, check=False)
  lines = process.stdout.splitlines()
  assert process.returncode == max(statuses)
  assert [line for line in lines[:-1] if line.startswith(('short', 'long', '='))] + lines[-1:] == (
    printed + printed[-1:] if any(statuses) else printed
  )


def test_each_commit_decides_which_quarter_of_the_slow_tests_ci_runs(ci_run, tmp_path):
  (tmp_path / 'Makefile').write_text('test:\n\t@true\ntest-slow:\n\t@echo "$(PART)"\n')

  def run(*command) -> str:
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

  assert run(ci_run) == '1/4'
  run('git', 'init')
  seen = set()
  for i in range(128):
    run('git', '-c', 'user.name=a', '-c', 'user.email=a@b.c', 'commit', '--allow-empty', '-m', str(i))
    commit, part = run('git', 'rev-parse', 'HEAD'), run(ci_run)
    assert part == f'{int(commit, 16) % 4 + 1}/4'
    seen.add(part)
    if len(seen) == 4:
      break
  assert seen == {'1/4', '2/4', '3/4', '4/4'}


def test_metadata_promises_the_pythons_that_make_takes():
  def stated(path, pattern):
    return re.search(pattern, (ROOT / path).read_text()).group(1)

  supported = stated('Makefile', r'SUPPORTED := (.*)').split()
  first, (major, minor) = supported[0], map(int, supported[-1].split('.'))
  promised = f'>={first},<{major}.{minor + 1}'
  assert stated('setup.py', "python_requires='(.*)'") == promised
  assert stated('official_ext/cli/templates/package/pyproject.toml.txt', 'requires-python = "(.*)"') == promised


@pytest.mark.parametrize(
  'pattern', [r'^smoke: .*\n((?:\t.*\n)+)', r'^FAST := ((?:.*\\\n)*.*\n)'], ids=['smoke', 'fast']
)
def test_a_part_names_tests_that_are_there(pattern):
  recipe = re.search(pattern, (ROOT / 'Makefile').read_text(), re.MULTILINE).group(1)
  named = re.findall(r'tests/\S+', recipe)
  assert len(named) > 5 and all((ROOT / path).exists() for path in named), named
