"""Tests for invocation."""

import json
import os
import pathlib
import shlex
import subprocess
import sys

from official_ext.base import launcher

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_CODE = """
import json
from official_ext.base import launcher
print(json.dumps([launcher.own_command(), launcher.relevant_environment()]))
"""


def _reported(*words, cwd, **variables):
  env = {'PATH': os.environ['PATH'], 'PYTHONPATH': str(_ROOT), **variables}
  return json.loads(subprocess.check_output([sys.executable, *words], cwd=cwd, env=env))


def test_a_command_has_all_words_that_python_was_given(tmp_path):
  (tmp_path / 'tell.py').write_text(_CODE)
  for words in (
    ('tell.py', '--set=a b', '--mode=train'),
    ('-m', 'tell', '--mode=train'),
    ('-X', 'utf8', '-u', 'tell.py', '--mode=train'),
    ('-c', _CODE, '--mode=train'),
  ):
    command, _ = _reported(*words, cwd=tmp_path)
    assert shlex.split(command) == [sys.executable, *words]
  assert _reported('tell.py', cwd=tmp_path)[0] == shlex.join([sys.executable, 'tell.py'])
  masked, _ = _reported('tell.py', '--set=url=https://me:hunter22@host/', cwd=tmp_path)
  assert 'hunter22' not in masked


def test_a_process_with_other_arguments_than_python_got_is_named_by_them(monkeypatch):
  monkeypatch.setattr(sys, 'argv', ['train.py', '--mode=train'])  # As in a process that was forked.
  assert shlex.split(launcher.own_command()) == [sys.executable, 'train.py', '--mode=train']


def test_of_the_environment_what_decides_the_result_is_recorded_and_no_secret(tmp_path):
  (tmp_path / 'tell.py').write_text(_CODE)
  kept = {'XLA_FLAGS': '--xla_x=1', 'TF_DETERMINISTIC_OPS': '1', 'HF_HOME': '/data', 'CUDA_VISIBLE_DEVICES': ''}
  others = {'HF_TOKEN': 'abcdefgh', 'EDITOR': 'vi', 'TF_URL': 'https://me:hunter22@host/', 'XLA': '1'}
  _, found = _reported('tell.py', cwd=tmp_path, **kept, **others)
  assert found == {'PYTHONPATH': str(_ROOT), **kept}


def test_variables_that_libraries_set_are_not_recorded(tmp_path):
  """Those that scikit-learn and cv2 set when they are imported would stand in the command of every clone."""
  set_by_imports = {'KMP_DUPLICATE_LIB_OK': 'True', 'KMP_INIT_AT_FORK': 'FALSE', 'LD_LIBRARY_PATH': '/cv2:/mine'}
  (tmp_path / 'tell.py').write_text(f'import os\nos.environ.update({set_by_imports!r})\n{_CODE}')
  assert _reported('tell.py', cwd=tmp_path)[1] == {'PYTHONPATH': str(_ROOT)}
  _, found = _reported('tell.py', cwd=tmp_path, LD_LIBRARY_PATH='/mine')
  assert found == {'PYTHONPATH': str(_ROOT), 'LD_LIBRARY_PATH': '/mine'}


def test_what_matters_is_as_it_was_and_all_else_as_it_is():
  recorded = {'XLA_FLAGS': 'then', 'CUDA_VISIBLE_DEVICES': '1'}
  present = {'XLA_FLAGS': 'now', 'TF_X': 'now', 'HOME': '/h', 'HF_TOKEN': 'a'}
  assert launcher.restored_environment(recorded, present) == {**recorded, 'HOME': '/h', 'HF_TOKEN': 'a'}
  assert launcher.restored_environment(recorded, {'CUDA_VISIBLE_DEVICES': '2'}) == {
    'XLA_FLAGS': 'then',
    'CUDA_VISIBLE_DEVICES': '2',
  }


def test_how_many_processes_a_run_has_is_read_from_its_cluster():
  config = {'cluster': {'chief': ['a:1'], 'worker': ['b:1', 'c:1']}}
  assert launcher.num_tasks({'TF_CONFIG': json.dumps(config)}) == 3
  for text in ('', '{', '[]', '{"cluster": 3}', '{"cluster": {"worker": 3}}', '{"cluster": {}}', '[' * 100_000):
    assert launcher.num_tasks({'TF_CONFIG': text}) == 1
  assert launcher.num_tasks({}) == 1
