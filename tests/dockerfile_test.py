"""Tests for the Dockerfile: its files make the package, its extras exist, and its command is installed."""

import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
_LINES = (ROOT / 'Dockerfile').read_text().splitlines()
_COPIED = [name for line in _LINES if line.startswith('COPY ') for name in line.split()[1:-1]]


@pytest.fixture
def context(tmp_path):
  """The files that the image has."""
  for name in _COPIED:
    if (ROOT / name).is_dir():
      shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns('__pycache__'))
    else:
      shutil.copy(ROOT / name, tmp_path / name)
  return tmp_path


def _metadata(folder):
  """The METADATA and entry points of the wheel of `folder`."""
  options = ['--no-deps', '--no-build-isolation', '--quiet', '--wheel-dir', str(folder / 'dist')]
  subprocess.run([sys.executable, '-m', 'pip', 'wheel', *options, str(folder)], check=True)
  (wheel,) = (folder / 'dist').glob('*.whl')
  with zipfile.ZipFile(wheel) as archive:
    names = {pathlib.Path(name).name: name for name in archive.namelist() if '.dist-info/' in name}
    return archive.read(names['METADATA']).decode(), archive.read(names['entry_points.txt']).decode()


@pytest.mark.slow
def test_files_extras_and_command_exist(context):
  metadata, entry_points = _metadata(context)
  text = '\n'.join(_LINES)
  chosen = re.findall(r'EXTRAS=(\S+)', text)
  extras = set(re.findall(r'^Provides-Extra: (.*)$', metadata, re.MULTILINE))
  assert len(chosen) == 2 and {name for names in chosen for name in names.replace('_', '-').split(',')} <= extras
  (command,) = re.findall(r'ENTRYPOINT \["(.*)"\]', text)
  assert f'{command} =' in entry_points


def test_the_context_has_what_is_copied():
  allowed = {line[1:] for line in (ROOT / '.dockerignore').read_text().splitlines() if line.startswith('!')}
  assert allowed == set(_COPIED)


def test_the_version_of_python_is_supported():
  (version,) = re.findall(r'^FROM python:(\S+?)-', '\n'.join(_LINES), re.MULTILINE)
  assert f'SUPPORTED := 3.11 {version}' in (ROOT / 'Makefile').read_text()
