"""A run that goes on with other code says which of its files have changed; code that was moved is the same."""

import re
import shutil

import numpy as np

from official_ext.checkpoints import manifests
from official_ext.core import code_identity
from official_ext.data import identity
from tests import own_tasks
from tests.core import small_run


def changes(output):
  """What is said behind `other code than before: `; None if nothing is."""
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
  assert noted['own_package/losses.py'] == identity.digest([own_tasks.LOSSES.encode()])
  moved = tmp_path / 'elsewhere' / 'code'
  shutil.copytree(place, moved)
  (moved / 'own_package' / 'unused.py').write_text('CHANGED = True\n')
  assert changes(run(4, moved)) is None
  (moved / 'own_package' / 'losses.py').write_text(own_tasks.LOSSES.replace('tf.reduce_mean(', '3 * tf.reduce_mean('))
  assert changes(run(6, moved)) == 'own_package/losses.py'
  assert changes(run(6, moved, 'eval')) is None
  (moved / 'own_package' / 'losses.py').write_text('from own_package.unused import CHANGED\n' + own_tasks.LOSSES)
  expected = 'own_package/losses.py, own_package/unused.py (new)'
  assert changes(run(6, moved, 'eval')) == expected  # What it measures is not what the training would have.
  assert changes(run(8, moved)) == expected


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
  (tmp_path / 'inner' / 'part.py').write_text('this is no Python')
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
  assert 'tests/own_tasks.py' in found and 'tests/core/code_identity_test.py' in found
  assert found['chat.jinja'] == identity.digest([b'{{ messages }}'])
