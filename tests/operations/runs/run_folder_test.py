"""Tests for run_folder."""

import os
import pkgutil
import subprocess
import sys

import pytest

from official_ext.base import errors
from official_ext.operations import runs
from official_ext.operations.runs import run_folders
from tests.operations.runs import folders


def _names(root):
  return [run.name for run in run_folders.find_runs(str(root))]


def test_no_module_of_the_room_imports_tensorflow():
  modules = [f'official_ext.operations.runs.{module.name}' for module in pkgutil.iter_modules(runs.__path__)]
  modules += ['official_ext.cli.runs', 'official_ext.cli.runs_common', 'official_ext.cli.main']
  code = f'import sys\nfor name in {modules}: __import__(name)\nprint("tensorflow" in sys.modules, len({modules}))'
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert done.stdout.split() == ['False', str(len(modules))]
  assert len(modules) > 12


def test_runs_are_found_over_any_tree_but_not_inside_of_checkpoints(tmp_path):
  for name in (
    'a/run10',
    'a/run2',
    'b',
    'b/nested',
    'odd name [1]*',
    'b/train/no',
    'b/ckpt-7.broken/no',
    '.trash/x/run',
  ):
    folders.make(tmp_path, name)
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'config' / 'params.yaml').parent.mkdir()
  (tmp_path / 'config' / 'params.yaml').write_text('a: 1')
  assert _names(tmp_path) == ['a/run2', 'a/run10', 'b', 'b/nested', 'odd name [1]*']
  assert _names(tmp_path / 'b') == ['.', 'nested']


def test_a_record_of_any_kind_makes_a_run(tmp_path):
  for number, name in enumerate(('run.json', 'run.eval.json', 'run.continuous_eval.json', 'started.json')):
    (tmp_path / str(number)).mkdir()
    (tmp_path / str(number) / name).write_text('{')
  (tmp_path / 'none').mkdir()
  (tmp_path / 'none' / 'run.json.tmp-host-1').write_text('{}')
  assert _names(tmp_path) == ['0', '1', '2', '3']
  assert [run.modes() for run in run_folders.find_runs(str(tmp_path))] == [
    ['train'],
    ['eval'],
    ['continuous_eval'],
    ['train'],
  ]
  assert run_folders.find_runs(str(tmp_path))[0].record() is None


def test_links_are_no_loops_and_lead_to_runs_alone(tmp_path):
  real = folders.make(tmp_path / 'disk', 'far')
  folders.make(tmp_path / 'disk', 'other')
  root = tmp_path / 'runs'
  folders.make(root, 'near')
  (root / 'link').symlink_to(real.path)
  (root / 'again').symlink_to(root / 'near')
  (root / 'loop').symlink_to(root)
  (root / 'self').symlink_to(root / 'self')
  (root / 'disk').symlink_to(tmp_path / 'disk')
  assert _names(root) == ['link', 'near']


def test_names_that_are_no_text_are_no_reason_to_fail(tmp_path):
  folder = os.fsencode(tmp_path) + b'/\xff\n\x1b[31m'
  os.mkdir(folder)
  with open(folder + b'/run.json', 'w') as file:
    file.write('{}')
  assert _names(tmp_path) == ['\udcff\n\x1b[31m']


def test_a_run_is_named_by_its_place_and_not_from_outside(tmp_path):
  inside = folders.make(tmp_path / 'runs', 'a/b')
  outside = folders.make(tmp_path, 'outside')
  root = str(tmp_path / 'runs')
  assert run_folders.get_run(root, 'a/b') == inside.__class__(inside.path, 'a/b')
  assert run_folders.get_run(root, inside.path).name == 'a/b'
  for name in ('../outside', outside.path, 'a/c'):
    with pytest.raises(errors.UserError, match='no run of that name'):
      run_folders.get_run(root, name)


def test_a_folder_that_is_not_there_is_reported(tmp_path):
  with pytest.raises(errors.UserError, match='No such file or directory; name the folder'):
    run_folders.find_runs(str(tmp_path / 'none'))
