"""The start of a line of training: --checkpoint of a mode that trains, its repetition, and branches."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import training_lines
from official_ext.training.devices import signals
from tests.training.loop import small_run


def save(folder, *steps, **entries):
  """Leaves checkpoints with manifests."""
  folder.mkdir(parents=True, exist_ok=True)
  for step in steps:
    path = tf.train.Checkpoint(weight=tf.Variable(float(step))).write(f'{folder}/ckpt-{step}')
    manifests.write(path, step=step, folder=str(folder), **entries)


def start(run, checkpoint, branch=False, subfolders=()):
  """Chooses and begins as a training does; the path that is restored, None for the newest in the folder."""
  chosen = training_lines.choose_start(str(run), checkpoint and str(checkpoint), branch)
  training_lines.begin_line(str(run), chosen, subfolders)
  return chosen.checkpoint


def names(folder):
  return sorted(path.name for path in folder.iterdir() if path.name.endswith('.index'))


def test_the_same_command_resumes_from_its_own_newest(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  source, run = tmp_path / 'source', tmp_path / 'run'
  save(source, 8)
  assert start(run, 'source/ckpt-8') == 'source/ckpt-8'
  assert start(run, 'source/ckpt-8') == str(source / 'ckpt-8')  # Killed before it has saved.
  assert start(run, None) == str(source / 'ckpt-8')  # Nor is it silently begun at step 0.
  os.rename(source, tmp_path / 'away')
  with pytest.raises(errors.UserError, match='source/ckpt-8, which is not there any more'):
    start(run, None)
  os.rename(tmp_path / 'away', source)
  save(run, 4)
  os.symlink(source, tmp_path / 'link')
  for name in ('source/ckpt-8', source / 'ckpt-8', '../' + tmp_path.name + '/source/ckpt-8', 'link/ckpt-8'):
    assert start(run, name) is None
  os.rename(source, tmp_path / 'moved')
  assert start(run, tmp_path / 'moved/ckpt-8') is None and start(run, source / 'ckpt-8') is None


@pytest.mark.parametrize('noted', ['relative', 'absolute'])
def test_a_copied_run_starts_from_its_own_checkpoint(noted, tmp_path):
  # Before: from that of the original, as long as that existed.
  run, copy = tmp_path / 'run', tmp_path / 'copy'
  save(run / 'best', 8)
  assert start(run, run / 'best/ckpt-8') == str(run / 'best/ckpt-8')
  lines = run / 'lines.json'
  assert json.loads(lines.read_text())[0]['checkpoint'] == 'best/ckpt-8'
  if noted == 'absolute':  # As before.
    lines.write_text(lines.read_text().replace('best/ckpt-8', f'{run}/best/ckpt-8'))
    assert start(run, run / 'best/ckpt-8') == str(run / 'best/ckpt-8')
  shutil.copytree(run, copy)
  assert start(copy, None) == str(copy / 'best/ckpt-8')


def test_a_best_checkpoint_that_was_set_aside_is_found_again(tmp_path):
  # Before: "does not exist any more", after a kill in front of the new line's first save.
  run = tmp_path / 'run'
  save(run, 4)
  save(run / 'best', 8)
  assert start(run, run / 'best/ckpt-8', branch=True, subfolders=['best']) == str(run / 'best/ckpt-8')
  assert start(run, None) == str(run / 'line_0/best/ckpt-8')


def test_another_checkpoint_over_checkpoints_is_refused_and_writes_nothing(tmp_path):
  save(tmp_path / 'source', 8)
  save(tmp_path / 'other', 8, 9)
  run = tmp_path / 'run'
  start(run, tmp_path / 'source/ckpt-8')
  save(run, 4, 12)
  before = {path.name: path.read_bytes() for path in run.iterdir()}
  for name in ('other/ckpt-8', 'other/ckpt-9', 'run/ckpt-4'):
    with pytest.raises(errors.UserError, match=r'holds checkpoints of another line of training, the newest ckpt-12\.'):
      start(run, tmp_path / name)
  with pytest.raises(errors.UserError, match='no such checkpoint'):
    start(run, tmp_path / 'other/ckpt-10', branch=True)
  assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_the_newest_of_the_folder_itself_is_no_new_line(tmp_path):
  save(tmp_path, 4, 8)
  for _ in range(2):
    assert start(tmp_path, tmp_path / 'ckpt-8') in (f'{tmp_path}/ckpt-8', None)
  save(tmp_path, 12)
  assert start(tmp_path, tmp_path / 'ckpt-8') is None  # The same command, later.
  manifests.remove(f'{tmp_path}/ckpt-8')  # As max_to_keep does.
  assert start(tmp_path, tmp_path / 'ckpt-8') is None


def test_what_a_cut_off_first_save_leaves_is_no_checkpoint(tmp_path):
  save(tmp_path / 'source', 8)
  run = tmp_path / 'run'
  start(run, tmp_path / 'source/ckpt-8')
  (run / 'ckpt-12_temp').mkdir()
  (run / 'ckpt-12.data-00000-of-00001').touch()
  assert start(run, tmp_path / 'source/ckpt-8') == str(tmp_path / 'source/ckpt-8')
  (run / 'ckpt-12.broken.index').touch()  # But here one was lost, and the restore has to report it.
  assert start(run, tmp_path / 'source/ckpt-8') is None


@pytest.mark.parametrize(
  'content', ['{', '[]', '{}', 'null', '[1]', '[{"checkpoint": 3, "step": 1}]', '[{"checkpoint": "a", "step": "1"}]']
)
def test_a_damaged_record_is_no_traceback(content, tmp_path):
  save(tmp_path, 4)
  (tmp_path / 'lines.json').write_text(content)
  assert start(tmp_path, None) is None
  with pytest.raises(errors.UserError, match='another line'):
    save(tmp_path / 'source', 8)
    start(tmp_path, tmp_path / 'source/ckpt-8')


def branched(run, **kwargs):
  save(run, 4, num_rollbacks=1)
  save(run, 8, 12, num_rollbacks=2)
  (run / 'best').mkdir()
  (run / 'best/history.json').write_text('[]')
  made = listing.Rollbacks(str(run))
  made.add(listing.Rollback(3, 1, 1))
  made.add(listing.Rollback(6, 4, 2))
  return start(run, **kwargs, branch=True, subfolders=('best', 'ema_checkpoints', '..', '.'))


def test_a_branch_inside_a_run_sets_aside_what_came_after(tmp_path):
  assert branched(tmp_path, checkpoint=tmp_path / 'ckpt-4') == f'{tmp_path}/ckpt-4'
  assert names(tmp_path) == ['ckpt-4.index'] and names(tmp_path / 'line_0') == ['ckpt-12.index', 'ckpt-8.index']
  assert (tmp_path / 'line_0/best/history.json').exists() and not (tmp_path / 'best').exists()
  assert manifests.find_damage(f'{tmp_path}/line_0/ckpt-12') is None
  assert len(listing.Rollbacks(str(tmp_path))) == 1 and len(listing.Rollbacks(str(tmp_path / 'line_0'))) == 2
  # The same command, before and after it has saved; the one before, which continues in the new line.
  assert start(tmp_path, tmp_path / 'ckpt-4', branch=True) is None
  save(tmp_path, 8)
  assert start(tmp_path, tmp_path / 'ckpt-4', branch=True) is None
  assert start(tmp_path, None) is None
  # And once more.
  assert start(tmp_path, tmp_path / 'line_0/ckpt-12', branch=True) == str(tmp_path / 'line_0/ckpt-12')
  assert names(tmp_path) == [] and names(tmp_path / 'line_1') == ['ckpt-4.index', 'ckpt-8.index']
  assert not len(listing.Rollbacks(str(tmp_path)))


def test_a_branch_that_was_killed_half_way_is_finished(tmp_path):
  branched(tmp_path, checkpoint=tmp_path / 'ckpt-4')
  # As before all was moved.
  origins = json.loads((tmp_path / 'lines.json').read_text())
  (tmp_path / 'lines.json').write_text(json.dumps([{**origins[-1], 'is_pending': True}]))
  for path in (tmp_path / 'line_0').glob('ckpt-12.*'):
    path.rename(tmp_path / path.name)
  for checkpoint in (tmp_path / 'ckpt-4', None):
    assert training_lines.choose_start(str(tmp_path), checkpoint and str(checkpoint)).checkpoint == f'{tmp_path}/ckpt-4'
  assert start(tmp_path, None) == f'{tmp_path}/ckpt-4'
  assert names(tmp_path) == ['ckpt-4.index'] and names(tmp_path / 'line_0') == ['ckpt-12.index', 'ckpt-8.index']
  assert start(tmp_path, None) is None


# Whole runs.


def steps_of(folder, event):
  return [line['step'] for line in small_run.events(folder, event)]


def weights(folder, step):
  reader = tf.train.load_checkpoint(f'{folder}/ckpt-{step}')
  return {
    name: np.asarray(reader.get_tensor(name)).tobytes()
    for name in reader.get_variable_to_shape_map()
    if name.startswith('model/')
  }


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  """A run with the checkpoints 4, 8 and 12."""
  folder = tmp_path_factory.mktemp('source')
  small_run.run(folder, 'train')
  return folder


def signal_at(step):

  def action(logs):
    if int(logs['model_global_step']) == step:
      os.kill(os.getpid(), signal.SIGTERM)

  return action


@pytest.mark.slow
def test_a_run_that_starts_elsewhere_is_killed_and_asked_to_stop_and_resumes(source, tmp_path):
  command = {'mode': 'train', 'checkpoint': str(source / 'ckpt-4'), 'trainer': {'max_to_keep': 1}}

  def kill(logs):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):  # Before its first save.
    small_run.run(tmp_path, **command, train_actions=[kill])
  with signals.PreemptionWatch() as watch, pytest.raises(errors.PreemptedError):
    small_run.run(tmp_path, **command, train_actions=[signal_at(10)], watch=watch)
  assert steps_of(tmp_path, 'restored') == [4, 4]
  small_run.run(tmp_path, **command)  # Before: from step 4 again.
  assert steps_of(tmp_path, 'restored') == [4, 4, 10] and steps_of(tmp_path, 'checkpoint') == [8, 10, 12]
  assert weights(tmp_path, 12) == weights(source, 12)
  assert small_run.record(tmp_path)['started_from'] == str(source / 'ckpt-4')


@pytest.mark.slow
def test_a_branch_keeps_what_it_saves_and_what_was_there(source, tmp_path):
  best = {'best_checkpoint_export_subdir': 'best', 'best_checkpoint_eval_metric': 'validation_loss', 'max_to_keep': 1}
  small_run.run(tmp_path, trainer=best)
  before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
  with pytest.raises(errors.UserError, match='holds checkpoints of another line'):
    small_run.run(tmp_path, trainer=best, checkpoint=str(source / 'ckpt-4'))
  assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
  for _ in range(2):
    small_run.run(tmp_path, trainer=best, checkpoint=str(source / 'ckpt-4'), branch=True)
  # The second start finds the line finished, and reports nothing again.
  # ckpt-8 stays although ckpt-12 of the line before has a higher number.
  assert steps_of(tmp_path, 'restored') == [4] and steps_of(tmp_path, 'checkpoint')[-2:] == [8, 12]
  assert weights(tmp_path, 12) == weights(source, 12) and weights(tmp_path / 'line_0', 12)
  history = json.loads((tmp_path / 'best/history.json').read_text())
  assert [entry['step'] for entry in history] == [6, 12]
  assert (tmp_path / 'line_0/best/history.json').exists()


def test_a_line_that_cannot_be_noted_has_not_begun_and_leaves_nothing(tmp_path):
  # Before: lines.json.tmp stayed, and the error was TensorFlow's.
  save(tmp_path / 'source', 8)
  (tmp_path / 'run/lines.json/something').mkdir(parents=True)
  with pytest.raises(errors.StorageError, match='run/lines.json: cannot be written: '):
    start(tmp_path / 'run', tmp_path / 'source/ckpt-8')
  assert [path.name for path in (tmp_path / 'run').iterdir()] == ['lines.json']
