"""Checkpoints under damage: the newest good one is restored, and no good one is ever lost."""

import contextlib
import errno
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.checkpoints import contents
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manager
from official_ext.training.checkpoints import manifests
from tests import file_calls
from tests import tiers
from tests import train_processes


class Run:
  """A model, an optimizer and a step, whose weights at step s are all s."""

  def __init__(self, folder, units=3, name='dense', **kwargs):
    self.model = tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.Dense(units, name=name)])
    self.optimizer = tf_keras.optimizers.SGD(0.1, momentum=0.9)
    self.optimizer.build(self.model.trainable_variables)
    self.step = tf.Variable(0, dtype=tf.int64)
    self.checkpoint = tf.train.Checkpoint(global_step=self.step, model=self.model, optimizer=self.optimizer)
    self.initialized = False
    self.manager = manager.CheckpointManager(
      self.checkpoint,
      str(folder),
      step_counter=self.step,
      init_fn=self._initialize,
      **{'max_to_keep': 3, 'checkpoint_interval': 1, **kwargs},
    )

  def _initialize(self):
    self.initialized = True

  def save(self, *steps):
    for step in steps:
      self.step.assign(step)
      for variable in self.model.variables:
        variable.assign(tf.fill(variable.shape, float(step)))
      self.manager.save(step)
    self.manager.sync()
    return self

  def state(self):
    return int(self.step.numpy()), {float(x) for v in self.model.variables for x in np.ravel(v.numpy())}


@pytest.fixture(scope='module')
def good(tmp_path_factory):
  """A folder with the checkpoints 10, 20 and 30."""
  folder = tmp_path_factory.mktemp('good')
  Run(folder).save(10, 20, 30)
  return folder


@pytest.fixture
def folder(good, tmp_path):
  shutil.copytree(good, tmp_path / 'run')
  return tmp_path / 'run'


def test_a_start_finishes_a_deletion_that_was_interrupted(folder):
  """Also if it trains nothing more, and so saves nothing."""
  (folder / 'checkpoint').write_text('model_checkpoint_path: "ckpt-20"\n')
  (folder / 'checkpoint.tmp').write_text('half')
  run = Run(folder, max_to_keep=2)
  assert run.manager.restore_or_initialize() == str(folder / 'ckpt-30')
  assert {path.name.split('.')[0] for path in folder.glob('ckpt-*')} == {'ckpt-20', 'ckpt-30'}
  assert 'model_checkpoint_path: "ckpt-30"' in (folder / 'checkpoint').read_text()
  assert not (folder / 'checkpoint.tmp').exists()


def test_a_start_deletes_nothing_of_another_program(folder):
  for path in folder.glob('*.manifest.json'):
    path.unlink()
  before = {path.name: path.read_bytes() for path in folder.iterdir()}
  assert Run(folder, max_to_keep=1).manager.restore_or_initialize() == str(folder / 'ckpt-30')
  assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize('asynchronous', [False, True])
def test_saves_restores_and_keeps(tmp_path, asynchronous):
  run = Run(tmp_path, asynchronous=asynchronous, max_to_keep=2, keep_every=20).save(10, 20, 30, 40, 50, 70)
  assert [manifests.step_of(path) for path in run.manager.checkpoints] == [20, 40, 50, 70]
  names = {os.path.basename(path).split('.')[0] for path in tmp_path.glob('ckpt-*')}
  assert names == {'ckpt-20', 'ckpt-40', 'ckpt-50', 'ckpt-70'}
  assert tf.train.latest_checkpoint(str(tmp_path)) == f'{tmp_path}/ckpt-70'  # TensorFlow's own tools find it.
  again = Run(tmp_path)
  assert again.manager.restore_or_initialize() == f'{tmp_path}/ckpt-70'
  assert again.state() == (70, {70.0}) and not again.initialized


def test_initializes_only_where_there_is_nothing(tmp_path):
  run = Run(tmp_path)
  assert run.manager.restore_or_initialize() is None
  assert run.initialized


def test_a_save_that_was_cut_off_does_not_count(folder):
  os.rename(f'{folder}/ckpt-30.manifest.json', f'{folder}/ckpt-30{manifests.UNFINISHED}')
  os.remove(f'{folder}/checkpoint')  # A kill before the manifest is a kill before this file.
  os.mkdir(f'{folder}/ckpt-40_temp')  # The folder in which TensorFlow collects the parts of a checkpoint.
  (folder / 'ckpt-40_temp/part-00000-of-00001').touch()
  run = Run(folder)
  assert run.manager.restore_or_initialize() == f'{folder}/ckpt-20'
  assert not (folder / 'ckpt-40_temp').exists()
  assert run.state() == (20, {20.0})
  run.save(30)  # The leftovers of the first attempt are in nobody's way.
  assert manifests.find_damage(f'{folder}/ckpt-30') is None


_KILLED = """
  import os, signal, sys
  import tensorflow as tf
  from official_ext.training.checkpoints import manager, manifests
  from official_ext.base.files import paths, storage

  folder, calls_before_kill = sys.argv[1], int(sys.argv[2])
  calls = 0

  def kill_before(owner, name):
    function = getattr(owner, name)
    def counted(*args, **kwargs):
      global calls
      calls += 1
      if calls > calls_before_kill:
        os.kill(os.getpid(), signal.SIGKILL)
      return function(*args, **kwargs)
    setattr(owner, name, counted)

  step = tf.Variable(0, dtype=tf.int64)
  saving = manager.CheckpointManager(tf.train.Checkpoint(global_step=step), folder, max_to_keep=1, step_counter=step)
  saving.restore_or_initialize()
  for owner, name in (
    (manifests, 'begin'),
    (paths, 'write_atomically'),
    (storage, 'remove'),
    (tf.io.gfile, 'remove'),
    (os, 'replace'),
  ):
    kill_before(owner, name)
  while step < 20:
    step.assign_add(10)
    saving.save(int(step))
  os._exit(0)
"""


@pytest.mark.slow
def test_killed_before_any_change_of_a_file_nothing_is_left_for_ever(tmp_path, train_server):
  """The first checkpoint too: without a manifest, it looks like one of Model Garden's own trainer."""
  steps = []
  for num_calls in range(100):
    folder = tmp_path / str(num_calls)
    folder.mkdir()
    killed = train_processes.Script(train_server(), folder, _KILLED, [folder / 'run', num_calls]).finish()
    assert killed.returncode in (0, -signal.SIGKILL), killed.stderr
    complete = manifests.complete_paths(str(folder / 'run'))
    assert listing.newest(str(folder / 'run')) == (complete[-1] if complete else None)
    step = tf.Variable(0, dtype=tf.int64)
    again = manager.CheckpointManager(
      tf.train.Checkpoint(global_step=step), str(folder / 'run'), max_to_keep=1, step_counter=step
    )
    assert again.restore_or_initialize() == (complete[-1] if complete else None)
    steps.append(int(step))
    again.save(40)
    left = {'checkpoint', *(f'ckpt-40.{kind}' for kind in ('index', 'data-00000-of-00001', 'manifest.json'))}
    assert set(os.listdir(folder / 'run')) == left
    if killed.returncode == 0:
      break
  assert steps == sorted(steps) and set(steps) == {0, 10, 20}
  assert steps.count(0) >= 3  # Before the mark, before the files, before the manifest.


def test_model_gardens_own_checkpoint_is_read_after_a_save_of_its_step_was_cut_off(tmp_path):
  step = tf.Variable(7, dtype=tf.int64)
  manifests.begin(f'{tmp_path}/ckpt-7')
  os.utime(f'{tmp_path}/ckpt-7{manifests.UNFINISHED}', (0, 0))  # Before the other program's first start.
  stock = tf.train.CheckpointManager(tf.train.Checkpoint(global_step=step), str(tmp_path), 1, step_counter=step)
  stock.save(7)
  step.assign(0)
  ours = manager.CheckpointManager(tf.train.Checkpoint(global_step=step), str(tmp_path), step_counter=step)
  assert ours.restore_or_initialize() == f'{tmp_path}/ckpt-7' and int(step) == 7
  assert not manifests.is_unfinished(f'{tmp_path}/ckpt-7')


def _truncate(path, offset):
  with open(path, 'r+b') as f:
    f.truncate(offset)


def _flip_bit(path, offset):
  with open(path, 'r+b') as f:
    f.seek(offset)
    byte = f.read(1)
    f.seek(offset)
    f.write(bytes([byte[0] ^ 0x10]))


def _save_without_manifests(run, *steps):
  """As Model Garden's trainer does after a run of this library."""
  stock = tf.train.CheckpointManager(run.checkpoint, str(run.manager.directory), max_to_keep=5)
  for step in steps:
    run.step.assign(step)
    for variable in run.model.variables:
      variable.assign(tf.fill(variable.shape, float(step)))
    stock.save(checkpoint_number=step)


def test_newer_checkpoints_of_another_program_are_resumed_and_kept(folder, caplog):
  run = Run(folder)
  run.manager.restore_or_initialize()
  _save_without_manifests(run, 40, 50)
  for trains in (False, True):
    caplog.clear()
    again = Run(folder, trains=trains)
    assert again.manager.restore_or_initialize() == f'{folder}/ckpt-50'
    assert again.state() == (50, {50.0})
    (line,) = [record.getMessage() for record in caplog.records if 'ckpt-50' in record.getMessage()]
    assert 'ckpt-30' in line and 'no manifest' in line
  again.save(60)
  caplog.clear()
  last = Run(folder)
  assert last.manager.restore_or_initialize() == f'{folder}/ckpt-60' and not caplog.records
  assert (folder / 'ckpt-40.index').exists() and (folder / 'ckpt-50.index').exists()


def test_a_damaged_newer_checkpoint_of_another_program_is_set_aside(folder, caplog):
  run = Run(folder, max_to_keep=5)
  run.manager.restore_or_initialize()
  _save_without_manifests(run, 40)
  _truncate(folder / 'ckpt-40.data-00000-of-00001', 10)
  again = Run(folder)
  assert again.manager.restore_or_initialize() == f'{folder}/ckpt-30'
  assert 'ckpt-40 is damaged' in caplog.text and (folder / 'ckpt-40.broken.index').exists()


@tiers.parametrize('suffix', ['index', 'data-00000-of-00001', 'manifest.json'], fast=1)
def test_any_damage_of_any_file_falls_back_to_the_checkpoint_before(good, tmp_path, suffix):
  # Stock: IndexError or DataLossError, though the checkpoint before is whole.
  """Truncation at many offsets, flipped bits, an empty file, a missing file: each of them is noticed."""
  name = f'ckpt-30.{suffix}'
  size = os.path.getsize(good / name)
  offsets = sorted({0, 1, size // 2, size - 1, *np.random.default_rng(0).integers(0, size, 12).tolist()})
  damages = [(_truncate, offset) for offset in offsets] + [(_flip_bit, offset) for offset in offsets]
  run = Run(tmp_path / 'unused')
  for number, (damage, offset) in enumerate(damages):
    folder = tmp_path / str(number)
    shutil.copytree(good, folder)
    damage(folder / name, offset)
    run.manager.directory = str(folder)
    restored = run.manager.restore_or_initialize()
    assert restored == f'{folder}/ckpt-20', (damage.__name__, offset)
    assert run.state() == (20, {20.0})
    assert list(folder.glob('ckpt-30.broken*')) and not list(folder.glob('ckpt-30.[imd]*'))


@pytest.mark.parametrize('suffix', ['index', 'data-00000-of-00001'])
def test_a_missing_file(folder, suffix, caplog):
  os.remove(f'{folder}/ckpt-30.{suffix}')
  run = Run(folder)
  assert run.manager.restore_or_initialize() == f'{folder}/ckpt-20'
  assert f'ckpt-30.{suffix} is missing' in caplog.text


def test_a_missing_or_damaged_state_file_changes_nothing(folder):
  # Stock: without the file named `checkpoint` the run starts from step 0 over the present files.
  _truncate(folder / 'checkpoint', 5)
  assert Run(folder).manager.restore_or_initialize() == f'{folder}/ckpt-30'
  os.remove(folder / 'checkpoint')
  assert Run(folder).manager.restore_or_initialize() == f'{folder}/ckpt-30'


def test_never_starts_again_over_checkpoints_none_of_which_is_good(folder):
  for step in (10, 20, 30):
    _truncate(folder / f'ckpt-{step}.data-00000-of-00001', 7)
  for _ in range(2):  # The second time all of them are set aside already.
    run = Run(folder)
    with pytest.raises(errors.CheckpointError, match='no checkpoint in it can be read'):
      run.manager.restore_or_initialize()
    assert not run.initialized


def test_an_evaluator_renames_nothing(folder):
  _truncate(folder / 'ckpt-30.index', 3)
  before = sorted(os.listdir(folder))
  run = Run(folder, trains=False)
  assert run.manager.restore_or_initialize() == f'{folder}/ckpt-20'
  assert sorted(os.listdir(folder)) == before


def test_a_checkpoint_of_another_program_is_taken_if_it_can_be_read(tmp_path):
  run = Run(tmp_path)
  run.step.assign(7)
  tf.train.CheckpointManager(run.checkpoint, str(tmp_path), max_to_keep=5).save(checkpoint_number=7)
  again = Run(tmp_path)
  assert again.manager.restore_or_initialize() == f'{tmp_path}/ckpt-7'
  assert int(again.step.numpy()) == 7
  _truncate(f'{tmp_path}/ckpt-7.data-00000-of-00001', 10)
  with pytest.raises(errors.CheckpointError):
    Run(tmp_path).manager.restore_or_initialize()


def test_differences_are_named(folder):
  # Stock: a model with other layers is evaluated on fresh random weights, without a word.
  expected = r'ckpt-30: not a checkpoint of this model: .*kernel has shape \(2, 3\) in it, \(2, 5\) here'
  with pytest.raises(errors.UserError, match=expected):
    Run(folder, units=5).manager.restore_or_initialize()
  run = Run(folder)
  run.model.add(tf_keras.layers.Dense(2, name='more'))
  with pytest.raises(errors.UserError, match='layer_with_weights-1/kernel .* is not in it'):
    run.manager.restore_or_initialize()


def test_nan_weights_are_never_saved(tmp_path):
  # Stock: NaN weights from a loop's last step are saved, and every restart fails.
  run = Run(tmp_path).save(10)
  run.model.variables[0].assign(tf.fill(run.model.variables[0].shape, np.nan))
  with pytest.raises(errors.DivergedError, match='step 20 is not saved: the weight .*kernel'):
    run.manager.save(20)
  assert [manifests.step_of(path) for path in run.manager.checkpoints] == [10]


@pytest.mark.parametrize('asynchronous', [False, True])
def test_a_full_disk_loses_nothing(tmp_path, asynchronous):
  # Stock: an asynchronous save that failed counts as done.
  """A file system of 64 KiB, into which the second checkpoint does not fit."""
  disk = tmp_path / 'disk'
  disk.mkdir()
  if os.system(f'mount -t tmpfs -o size=128k tmpfs {disk} 2>/dev/null'):
    pytest.skip('no right to mount a tmpfs')
  try:
    run = Run(disk, units=4000, asynchronous=asynchronous)  # 12,000 weights, 12,000 slots: 96 KB.
    run.save(10)
    with pytest.raises(errors.CheckpointError, match='could not be saved'):
      run.save(20)
    again = Run(disk, units=4000)
    assert again.manager.restore_or_initialize() == f'{disk}/ckpt-10'
    assert again.state() == (10, {10.0})
  finally:
    os.system(f'umount {disk}')


def test_whether_an_evaluation_is_pending(tmp_path):
  run = Run(tmp_path).save(10)
  run.manager.save(20, evaluation_pending=True)
  run.manager.sync()
  assert not run.manager.evaluation_is_pending(f'{tmp_path}/ckpt-10')
  assert run.manager.evaluation_is_pending(f'{tmp_path}/ckpt-20')


def test_evaluating_needs_a_checkpoint(folder, tmp_path):
  # Stock: --mode=eval without any checkpoint reports the metrics of random weights.
  listing.check_available(str(folder), 'eval', None)
  listing.check_available(str(tmp_path / 'none'), 'train', None)
  with pytest.raises(errors.UserError, match='there is no checkpoint in'):
    listing.check_available(str(tmp_path / 'none'), 'eval', None)
  with pytest.raises(errors.UserError, match='no such checkpoint'):
    listing.check_available(str(folder), 'train', f'{folder}/ckpt-40')


@pytest.mark.parametrize(
  'saved, now, has_changed',
  [
    ({'rate': 0.1, 'parameter_groups': []}, {'rate': 0.1, 'parameter_groups': ()}, False),
    ({'rate': 0.1}, {'rate': 0.1, 'parameter_groups': ({'frozen': True},)}, False),
    ({'rate': 0.1}, {'rate': 0.2}, True),
    (None, {'rate': 0.2}, False),
  ],
)
def test_other_constants_of_the_optimizer_are_kept_and_groups_are_none(saved, now, has_changed, tmp_path):
  run = Run(tmp_path, notes=contents.RunNotes(saved)).save(10)
  prefix = run.manager.latest_checkpoint
  assert Run(tmp_path, notes=contents.RunNotes(now)).manager.continuation(prefix)['keep_hyperparameters'] == has_changed


def test_the_step_counter_is_used_whether_or_not_there_is_an_interval(tmp_path):
  # Before: AttributeError, for the base class keeps the counter only together with an interval.
  run = Run(tmp_path, checkpoint_interval=None)
  run.step.assign(7)
  assert run.manager.save() == f'{tmp_path}/ckpt-7'
  with pytest.raises(ValueError, match='neither a checkpoint_number nor a step_counter'):
    manager.CheckpointManager(run.checkpoint, str(tmp_path)).save()


@pytest.mark.parametrize('content', [b'', bytes(100)], ids=['empty', 'zeros'])
def test_a_power_loss_during_the_first_save_starts_at_step_0_and_reports_it(content, tmp_path, caplog):
  # Before: the mark was not on the disk, and the rest was taken for the damaged checkpoint of another program.
  with file_calls.recorded() as calls:
    manifests.begin(f'{tmp_path}/ckpt-10')
  assert calls == [('sync', f'{tmp_path}/ckpt-10.unfinished'), ('sync', str(tmp_path))]
  for suffix in ('index', 'data-00000-of-00001'):
    (tmp_path / f'ckpt-10.{suffix}').write_bytes(content)
  run = Run(tmp_path)
  assert run.manager.restore_or_initialize() is None and run.initialized
  assert 'ckpt-10: its save or deletion was interrupted, and its remains are deleted; there is no other' in caplog.text
  assert not list(tmp_path.glob('ckpt-*'))


@pytest.mark.parametrize('asynchronous', [False, True])
def test_what_is_saved_reaches_the_disk_in_this_order(asynchronous, tmp_path):
  run, folder = Run(tmp_path, asynchronous=asynchronous, max_to_keep=1).save(10), str(tmp_path)
  with file_calls.recorded() as calls:
    run.save(20)
    run.manager.sync()
  new, old = f'{folder}/ckpt-20', f'{folder}/ckpt-10'

  def place(*call, after=0):
    return calls.index(call, after)

  mark = place('sync', f'{new}.unfinished')
  data = [place('sync', f'{new}.{part}') for part in ('index', 'data-00000-of-00001')]
  (manifest,) = (n for n, call in enumerate(calls) if call[0] == 'rename' and call[2] == f'{new}.manifest.json')
  assert mark < place('sync', folder, after=mark) < min(data)
  assert max(data) < place('sync', folder, after=max(data)) < manifest
  assert place('sync', calls[manifest][1]) < manifest
  counts = place('sync', folder, after=manifest)
  deletes = [n for n, call in enumerate(calls) if call[0] == 'remove']
  assert counts < min(deletes)  # The mark of the new one too.
  doomed = place('sync', f'{old}.unfinished')
  gone = place('remove', f'{old}.manifest.json')
  files = [place('remove', f'{old}.{part}') for part in ('index', 'data-00000-of-00001')]
  assert doomed < place('sync', folder, after=doomed) < gone < place('sync', folder, after=gone) < min(files)
  assert max(files) < place('sync', folder, after=max(files)) < place('remove', f'{old}.unfinished')


@pytest.mark.parametrize('part', ['unfinished', 'index', 'manifest.json', 'checkpoint'])
def test_a_disk_that_may_not_have_stored_a_checkpoint_costs_no_other(part, tmp_path, caplog):
  # Before: the error of a folder's sync was ignored, and the checkpoint before it was deleted.
  run = Run(tmp_path, max_to_keep=1).save(10)
  with file_calls.failing_syncs(lambda path: f'.{part}' in path or path.endswith('checkpoint.tmp'), errno.EIO, times=1):
    if part == 'checkpoint':
      run.save(20)
    else:
      with pytest.raises(errors.CheckpointError, match='ckpt-20: could not be saved: Input/output error'):
        run.save(20)
  newest = 20 if part == 'checkpoint' else 10
  assert Run(tmp_path).manager.restore_or_initialize() == f'{tmp_path}/ckpt-{newest}'
  assert [path.name.split('.')[0] for path in tmp_path.glob('ckpt-*.index')] == [f'ckpt-{newest}']
  run.save(30)
  assert Run(tmp_path).manager.restore_or_initialize() == f'{tmp_path}/ckpt-30'


@pytest.mark.parametrize('number', range(8))  # Of the syncs of the folder in a save.
def test_a_folder_that_the_disk_may_not_have_stored_costs_no_checkpoint(number, tmp_path):
  run, count = Run(tmp_path, max_to_keep=1).save(10), 0

  def fails(path):
    nonlocal count
    count += path == str(tmp_path)
    return path == str(tmp_path) and count == number + 1

  with file_calls.failing_syncs(fails, errno.EIO, times=1), contextlib.suppress(errors.CheckpointError):
    run.save(20)
  newest = 10 if number < 3 else 20  # The mark, the files, the manifest.
  assert Run(tmp_path).manager.restore_or_initialize() == f'{tmp_path}/ckpt-{newest}'
