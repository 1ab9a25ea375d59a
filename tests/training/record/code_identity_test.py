"""A run that continues with other code says which of its files have changed; code that was moved is the same."""

import re
import shutil
import sys

import numpy as np
import pytest

from official_ext.data import data_identity
from official_ext.training.checkpoints import manifests
from official_ext.training.record import code_identity
from tests import own_tasks
from tests.training.loop import small_run


def changes(output):
  """The text behind `other code than before: `; None if nothing is."""
  found = re.findall(r'^(\S+): other code than before: (.*)$', output, re.M)
  assert len(found) <= 1
  return found[0][1] if found else None


def test_a_resumed_run_names_the_files_that_have_changed(run_train, tmp_path):
  np.save(tmp_path / 'data.npy', np.ones([8, 1], np.float32))
  place = own_tasks.write(tmp_path / 'code')
  folder = tmp_path / 'run'

  def run(steps, place, mode='train'):
    env = {'PYTHONPATH': str(place), 'OWN_DATA': str(tmp_path / 'data.npy')}
    flags = [*own_tasks.FLAGS, f'--mode={mode}', f'--model_dir={folder}', f'--set=train_steps={steps}']
    done = run_train(flags, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout

  assert changes(run(2, place)) is None
  noted = manifests.read(f'{folder}/ckpt-2')['code']
  assert set(noted) == {'own_package/__init__.py', 'own_package/losses.py', 'own_package/task.py', 'official_ext'}
  assert noted['own_package/losses.py'] == data_identity.digest([own_tasks.LOSSES.encode()])
  moved = tmp_path / 'elsewhere' / 'code'
  shutil.copytree(place, moved)
  (moved / 'own_package' / 'unused.py').write_text('CHANGED = True\n')
  assert changes(run(4, moved)) is None
  (moved / 'own_package' / 'losses.py').write_text(own_tasks.LOSSES.replace('tf.reduce_mean(', '3 * tf.reduce_mean('))
  assert changes(run(6, moved)) == 'own_package/losses.py'
  assert changes(run(6, moved, 'eval')) is None
  (moved / 'own_package' / 'losses.py').write_text('from own_package.unused import CHANGED\n' + own_tasks.LOSSES)
  expected = 'own_package/losses.py, own_package/unused.py (new)'
  assert changes(run(6, moved, 'eval')) == expected  # Its metrics are not those of the training.
  assert changes(run(8, moved)) == expected


@pytest.mark.slow
def test_other_versions_of_packages_and_of_the_library_are_named(tmp_path, capsys):
  small_run.run(tmp_path, trainer={'train_steps': 4})
  content = manifests.read(f'{tmp_path}/ckpt-4')
  assert content['versions'] == code_identity.versions()
  content['versions']['tensorflow'] = '2.1.0'
  content['code']['official_ext'] = 'another'
  manifests.write(f'{tmp_path}/ckpt-4', **{name: value for name, value in content.items() if name != 'files'})
  capsys.readouterr()
  small_run.run(tmp_path, trainer={'train_steps': 8})
  now = code_identity.versions()['tensorflow']
  assert changes(capsys.readouterr().out) == f'the library official_ext, tensorflow: 2.1.0 -> {now}'


def test_packages_that_an_older_version_did_not_note_are_not_named():
  now = {'versions': {'numpy': '2.0', 'tokenizers': '0.22', 'jinja2': None}}
  assert code_identity.describe_changes({'versions': {'numpy': '2.0'}}, now) == ''
  assert code_identity.describe_changes({'versions': {'numpy': '1.0', 'jinja2': '3.1'}}, now) == (
    'jinja2: 3.1 -> none, numpy: 1.0 -> 2.0'
  )


@pytest.mark.slow
def test_a_checkpoint_that_notes_no_code_is_taken_as_it_is(tmp_path, capsys):
  small_run.run(tmp_path, trainer={'train_steps': 4})
  content = manifests.read(f'{tmp_path}/ckpt-4')
  kept = {name: value for name, value in content.items() if name not in ('files', 'code', 'versions')}
  manifests.write(f'{tmp_path}/ckpt-4', **kept)
  capsys.readouterr()
  small_run.run(tmp_path, trainer={'train_steps': 8})
  assert changes(capsys.readouterr().out) is None


class FilesTask:
  """Names further code and files."""

  task_config = trainer_cls = None

  def __init__(self, files):
    self._files = files

  def code_files(self):
    return self._files


def test_files_functions_and_what_scripts_import_count(tmp_path):
  (tmp_path / 'script.py').write_text('import helpers, json, numpy\nfrom tests import own_tasks\n')
  (tmp_path / 'helpers.py').write_text('from inner import part\n')
  (tmp_path / 'inner').mkdir()
  (tmp_path / 'inner' / '__init__.py').write_text('from . import beside\n')
  (tmp_path / 'inner' / 'beside.py').write_text('')
  (tmp_path / 'inner' / 'part.py').write_text('this is not Python')
  (tmp_path / 'chat.jinja').write_text('{{ messages }}')
  files = {
    'script.py': str(tmp_path / 'script.py'),
    'chat.jinja': tmp_path / 'chat.jinja',
    'tokenizer': b'digest',
    'reward': own_tasks.write,
  }
  found = code_identity.of_task(FilesTask(files))
  assert {name for name in found if not name.startswith('tests/')} == {
    'script.py', 'helpers.py', 'inner/__init__.py', 'inner/beside.py', 'inner/part.py', 'chat.jinja', 'tokenizer',
    'official_ext',
  }  # fmt: skip
  assert 'tests/own_tasks.py' in found and 'tests/training/record/code_identity_test.py' in found
  assert found['chat.jinja'] == data_identity.digest([b'{{ messages }}'])


def test_a_folder_of_that_name_beside_a_script_makes_no_installed_package_user_code(tmp_path):
  (tmp_path / 'jinja2' / 'run-1').mkdir(parents=True)
  (tmp_path / 'space').mkdir()
  (tmp_path / 'space' / 'part.py').write_text('')
  (tmp_path / 'script.py').write_text('import jinja2.utils\nfrom jinja2 import nodes\nfrom space import part\n')
  found = code_identity.of_task(FilesTask({'script.py': str(tmp_path / 'script.py')}))
  assert {name for name in found if not name.startswith('tests/')} == {'script.py', 'space/part.py', 'official_ext'}


@pytest.mark.slow
def test_editable_installs_are_not_user_code_unless_they_are_named(tmp_path, monkeypatch):
  (tmp_path / 'info' / 'big_library-1.0.dist-info').mkdir(parents=True)  # As `pip install --editable` writes it.
  (tmp_path / 'info' / 'big_library-1.0.dist-info' / 'METADATA').write_text('Name: big-library\nVersion: 1.0\n')
  (tmp_path / 'info' / 'big_library-1.0.dist-info' / 'top_level.txt').write_text('big_library\n')
  for name in ('big_library', 'own_helpers'):
    (tmp_path / 'sources' / name).mkdir(parents=True)
    (tmp_path / 'sources' / name / '__init__.py').write_text('')
  monkeypatch.syspath_prepend(tmp_path / 'info')
  monkeypatch.syspath_prepend(tmp_path / 'sources')
  code_identity._names_in_distributions.cache_clear()
  (tmp_path / 'script').mkdir()
  (tmp_path / 'script' / 'script.py').write_text('import big_library, own_helpers\n')
  task = FilesTask({'script.py': str(tmp_path / 'script' / 'script.py')})
  found = code_identity.of_task(task)
  assert 'own_helpers/__init__.py' in found and 'big_library/__init__.py' not in found
  assert 'big_library/__init__.py' in code_identity.of_task(task, origin={'registry': ['big_library']})


def test_the_files_of_a_task_are_not_replaced_by_modules_of_the_same_name():
  name = 'tests/training/record/code_identity_test.py'
  assert code_identity.of_task(FilesTask({name: b'own'}))[name] == data_identity.digest([b'own'])


@pytest.mark.parametrize('name', ['tensorflow', 'tensorflow-cpu'])
def test_tensorflow_has_one_version_under_all_its_names(tmp_path, monkeypatch, name):
  (tmp_path / f'{name.replace("-", "_")}-2.99.0.dist-info').mkdir()
  (tmp_path / f'{name.replace("-", "_")}-2.99.0.dist-info' / 'METADATA').write_text(f'Name: {name}\nVersion: 2.99.0\n')
  monkeypatch.setattr(sys, 'path', [str(tmp_path)])
  found = code_identity.versions()
  assert found['tensorflow'] == '2.99.0' and found['numpy'] is None and 'tensorflow-cpu' not in found
