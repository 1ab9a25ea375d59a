"""Rollbacks: noted for good, and their leftovers are ignored."""

import os

import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import training_lines
from official_ext.training.checkpoints import warm_start
from official_ext.training.trained import trained_model
from tests.training.loop import small_run


@pytest.fixture
def folder(tmp_path):
  """Checkpoints of the steps 4 and 8, and a rollback from 9 to 4 after which the process was killed at once."""
  for step in (4, 8):
    path = tf.train.Checkpoint(weight=tf.Variable(float(step))).write(f'{tmp_path}/ckpt-{step}')
    manifests.write(path, step=step, num_rollbacks=0)
  listing.Rollbacks(str(tmp_path)).add(listing.Rollback(9, 4, 4))
  return tmp_path


def test_what_was_rolled_back_is_neither_loaded_nor_started_from(folder):
  # Before: the newest on disk, in any state.
  assert warm_start.find(str(folder)) == f'{folder}/ckpt-4'
  params = small_run.make_params()
  assert trained_model.find_checkpoint(str(folder), params) == f'{folder}/ckpt-4'
  with pytest.raises(errors.UserError, match='no checkpoint of step 8; there are those of steps 4'):
    trained_model.find_checkpoint(str(folder), params, 8)
  assert trained_model.find_checkpoint(str(folder), params, f'{folder}/ckpt-8') == f'{folder}/ckpt-8'  # As reported.
  path = tf.train.Checkpoint(weight=tf.Variable(8.0)).write(f'{folder}/ckpt-8')  # Reached again.
  manifests.write(path, step=8, num_rollbacks=1)
  assert warm_start.find(str(folder)) == trained_model.find_checkpoint(str(folder), params) == f'{folder}/ckpt-8'


@pytest.mark.parametrize('find', [warm_start.find, lambda path: trained_model.find_checkpoint(path, params())])
def test_rollbacks_that_cannot_be_read_are_reported_to_all_users_of_the_checkpoints(find, folder):
  (folder / 'rollbacks.json').write_text('[')
  with pytest.raises(errors.UserError, match=r'rollbacks.json: cannot be read [^\n]*$'):
    find(str(folder))


def params():
  return small_run.make_params()


@pytest.mark.parametrize('name', ['rollbacks.json', 'lines.json', 'ckpt-4.manifest.json'])
def test_what_decides_which_checkpoints_count_reaches_the_disk_in_this_order(name, tmp_path, monkeypatch):
  # Before: a machine that lost its power could find an empty file, or the one before it.
  done = []
  path = f'{tmp_path}/{name}'
  sync, replace = os.fsync, os.replace

  def noting_sync(descriptor):
    done.append(('sync', os.path.realpath(f'/proc/self/fd/{descriptor}')))
    sync(descriptor)

  def noting_replace(source, target):
    done.append(('rename', source, target))
    replace(source, target)

  checkpoint = tf.train.Checkpoint(weight=tf.Variable(1.0)).write(f'{tmp_path}/ckpt-4')
  with monkeypatch.context() as patch:
    patch.setattr(os, 'fsync', noting_sync)
    patch.setattr(os, 'replace', noting_replace)
    if name == 'rollbacks.json':
      listing.Rollbacks(str(tmp_path)).add(listing.Rollback(9, 4, 4))
    elif name == 'lines.json':
      origins = [{'checkpoint': 'ckpt-4', 'step': 4, 'is_pending': False}]
      training_lines.begin_line(str(tmp_path), training_lines.Start(checkpoint, origins))
    else:
      manifests.write(checkpoint, step=4)
  (number,) = (number for number, entry in enumerate(done) if entry[0] == 'rename' and entry[2] == path)
  assert ('sync', done[number][1]) in done[:number]  # The content before the name.
  assert ('sync', str(tmp_path)) in done[number:]  # And the name before its users.
