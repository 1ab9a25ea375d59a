"""official-ext doctor: its lines, its JSON, its exit status."""

import json
import sys

import pytest

from official_ext.cli import main

_TENSORFLOW = """
import types
__version__ = '2.20.0'
config = types.SimpleNamespace(list_physical_devices=lambda kind: [])
sysconfig = types.SimpleNamespace(get_build_info=dict)
"""


@pytest.fixture
def plant(tmp_path, monkeypatch):
  """`plant(code)` makes a module `tensorflow` of that code, which processes started from here import."""

  def make(code):
    (tmp_path / 'tensorflow.py').write_text(code)
    monkeypatch.setenv('PYTHONPATH', f'{tmp_path}:{":".join(sys.path)}')

  return make


def test_a_line_for_each_check_and_status_0_without_a_problem(plant, capsys):
  plant(_TENSORFLOW)
  assert main.main(['doctor', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  names = [each['name'] for each in found]
  assert {'python', 'packages', 'memory', 'disk', 'ports', 'extras', 'tensorflow', 'gpu'} <= set(names)
  assert main.main(['doctor']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert [line.split()[1] for line in lines] == names
  assert [line.split()[0] for line in lines] == [each['level'] for each in found]


def test_a_problem_is_one_line_with_its_fix_and_status_1(plant, capsys):
  plant("raise ImportError('libcudart is broken')")
  assert main.main(['doctor']) == 1
  (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith('problem')]
  assert 'cannot be imported: ImportError: libcudart is broken; pip install --force-reinstall' in line
