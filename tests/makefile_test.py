"""Tests for the Makefile: when `.venv` is installed, and when it is left alone."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Stands for python3.11: makes the folder that venv makes, and writes down each installation.
_PYTHON = """#!/bin/sh
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *"pip install"*) echo "$*" >> installs; test ! -e broken ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
  """A folder with the real Makefile and what it depends on, and a Python that only takes notes."""
  for name in ('Makefile', 'setup.py', 'constraints.txt'):
    shutil.copy(ROOT / name, tmp_path / name)
  python = tmp_path / 'bin/python3.11'
  python.parent.mkdir()
  python.write_text(_PYTHON)
  python.chmod(0o755)
  return tmp_path


def _make(checkout, *arguments):
  environment = {key: value for key, value in os.environ.items() if key not in ('MAKEFLAGS', 'MFLAGS', 'MAKELEVEL')}
  environment['PATH'] = f'{checkout / "bin"}:{environment["PATH"]}'
  return subprocess.run(
    ['make', *arguments], cwd=checkout, env=environment, capture_output=True, text=True, timeout=60, check=False
  )


def _installs(checkout):
  path = checkout / 'installs'
  return path.read_text().splitlines() if path.exists() else []


def test_a_second_run_installs_nothing(checkout):
  assert _make(checkout, '.venv').returncode == 0
  (install,) = _installs(checkout)
  assert '--constraint constraints.txt' in install and '--editable .[test]' in install
  os.utime(checkout / 'setup.py')  # As after a checkout of the same file.
  assert _make(checkout, '.venv').returncode == 0
  assert len(_installs(checkout)) == 1
  assert _make(checkout, '--question', '.venv').returncode == 0


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


@pytest.mark.parametrize('target', ['demo', 'test', 'check', 'bench', 'experiments'])
def test_every_target_sets_itself_up(checkout, target):
  planned = _make(checkout, '--dry-run', target).stdout
  assert 'pip install' in planned
  _make(checkout, '.venv')
  assert 'pip install' not in _make(checkout, '--dry-run', target).stdout


def test_another_python_is_refused(checkout):
  (checkout / 'bin/python3.11').write_text('#!/bin/sh\nexit 1\n')
  process = _make(checkout, '.venv')
  assert process.returncode != 0 and 'error: Python 3.11 is needed' in process.stderr
  assert not (checkout / '.venv').exists()


@pytest.mark.parametrize(
  ('closing', 'status'), [('==== 3 passed in 1.25s ====', 0), ('= 1 failed in 60.1s (0:01:00) =', 2)]
)
def test_ci_ends_with_the_closing_line_of_pytest(tmp_path, closing, status):
  (tmp_path / '.ci').mkdir()
  shutil.copy(ROOT / '.ci/run', tmp_path / '.ci/run')
  (tmp_path / 'Makefile').write_text(f"test:\n\t@echo 'first'\n\t@echo '{closing}'; exit {status}\n")
  process = subprocess.run([tmp_path / '.ci/run'], capture_output=True, text=True, timeout=60, check=False)
  assert process.returncode == status
  assert process.stdout.splitlines()[-1] == closing
  assert process.stdout.splitlines()[0] == 'first'
