"""A run whose disk is full, read-only or gone: real small file systems under whole runs."""

import errno
import os
import pathlib
import shutil
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator
import tensorflow as tf

from official_ext.base import errors
from official_ext.cli import exit_status
from official_ext.cli import train
from official_ext.training.checkpoints import manifests
from tests import disks
from tests import tiers
from tests.training.loop import small_run

TRAINER = {
  'train_steps': 24,
  'checkpoint_interval': 4,
  'validation_interval': 12,
  'writers': ('tensorboard', 'csv'),
  'best_checkpoint_export_subdir': 'best',
  'best_checkpoint_eval_metric': 'validation_loss',  # Which falls at this rate.
  'optimizer_config': {
    'optimizer': {'type': 'sgd', 'sgd': {'momentum': 0.9}},
    'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.02}},
  },
  'async_checkpointing': False,
}
STEPS = [4, 5, 8, 10, 12, 15, 16, 20, 24]  # The ends of loops.


@pytest.fixture
def disk(tmp_path):
  with disks.small(tmp_path / 'disk') as found:
    yield found


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  """The folder of a run that nothing disturbed."""
  folder = tmp_path_factory.mktemp('straight')
  small_run.run(folder, trainer=TRAINER)
  return folder


def at(**do):
  """An action that calls a function at its step: at(step8=fill)."""

  def act(output):
    do.get(f'step{int(output["model_global_step"])}', lambda: None)()

  return [act]


def drive(folder, mode='train_and_eval', asynchronous=False, **kwargs):
  """The exit status of a run."""
  trainer = {**TRAINER, 'async_checkpointing': asynchronous}
  return train.run_main(lambda _: small_run.run(folder, mode, trainer=trainer, **kwargs), [])


def error_line(stderr):
  assert 'Traceback' not in stderr
  (line,) = [line for line in stderr.splitlines() if line.startswith('error: ')]
  return line[len('error: ') :]


def checkpoints(folder):
  return [manifests.step_of(path) for path in manifests.complete_paths(str(folder))]


def assert_no_remains(folder):
  """Every file of a checkpoint belongs to one that counts, and nothing was left half-written."""
  counted = {f'ckpt-{step}' for step in checkpoints(folder)}
  names = [path.name for path in folder.iterdir()]
  assert {name.split('.')[0] for name in names if name.startswith('ckpt-')} == counted
  assert not [name for name in names if '.tmp' in name or '_temp' in name]


def assert_same_weights(folder, straight):
  found, expected = (tf.train.load_checkpoint(str(each / 'ckpt-24')) for each in (folder, straight))
  for name in expected.get_variable_to_shape_map():
    if name.startswith('_CHECKPOINTABLE'):  # An asynchronous save counts itself.
      continue
    np.testing.assert_array_equal(found.get_tensor(name), expected.get_tensor(name), err_msg=name)


def steps_in_csv(path):
  lines = path.read_text().splitlines()
  assert lines[0].startswith('step,') and all(line.count(',') == lines[0].count(',') for line in lines)
  return [int(line.split(',')[0]) for line in lines[1:]]


def steps_in_tensorboard(folder, tag='loss'):
  """The steps of a curve, as TensorBoard reads it, of files all of which end with a whole record."""
  for path in folder.glob('*tfevents*'):
    assert sum(1 for _ in tf.data.TFRecordDataset(str(path))) > 1  # Raises where a record is damaged.
  accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.TENSORS: 0})
  accumulator.Reload()
  return [event.step for event in accumulator.Tensors(tag)]


def test_a_disk_that_is_full_at_the_start_ends_training_in_one_line(disk, capfd):
  folder = disk.folder / 'run'
  disk.fill()
  assert drive(folder) == 1
  assert error_line(capfd.readouterr().err) == f'{folder}/training.lock: cannot be written: No space left on device'
  assert not folder.exists() or not os.listdir(folder)


def test_a_disk_that_stays_full_ends_training_after_three_failed_saves(disk, straight, capfd, caplog):
  folder = disk.folder / 'run'
  assert drive(folder, train_actions=at(step5=disk.fill)) == 1
  assert error_line(capfd.readouterr().err) == (
    f'{folder}/ckpt-16: could not be saved: No space left on device; the newest checkpoint is ckpt-4; 3 saves in a '
    'row have failed'
  )
  logged = [
    message for message in caplog.messages if 'could not be saved' in message and 'Training continues' in message
  ]
  assert [message.split(':')[0] for message in logged] == [f'{folder}/ckpt-8', f'{folder}/ckpt-12']
  assert checkpoints(folder) == [4]
  assert_no_remains(folder)
  record = small_run.record(folder)
  assert record['status'] == 'failed' and 'ckpt-16: could not be saved' in record['error']
  assert {event['event'] for event in small_run.events(folder)} >= {'start', 'train', 'checkpoint'}  # Whole lines.
  steps_in_tensorboard(folder / 'train')
  # The same command continues when there is room.
  disk.free()
  assert drive(folder) == 0
  assert_same_weights(folder, straight)
  assert_no_remains(folder)


def drive_through(trouble, disk, straight, asynchronous):
  """Trains to the end on a disk that fails between steps 5 and 16, and returns the folder, in which all is whole.

  Args:
    trouble: makes writing fail, such as `disk.fill`.
    disk: of the run.
    straight: the folder of a run that nothing disturbed.
    asynchronous: whether saves are.
  """
  folder = disk.folder / 'run'

  def begin():
    while not (folder / 'checkpoint').exists():  # Until the save of step 4 is done.
      time.sleep(0.01)
    trouble()

  assert drive(folder, asynchronous=asynchronous, train_actions=at(step5=begin, step16=disk.free)) == 0
  assert_same_weights(folder, straight)
  assert checkpoints(folder)[-1] == 24 and 8 not in checkpoints(folder)
  assert_no_remains(folder)
  assert small_run.record(folder)['status'] == 'finished'
  failed = [os.path.basename(event['checkpoint']) for event in small_run.events(folder, 'checkpoint_failed')]
  assert failed == ['ckpt-8', 'ckpt-12']
  return folder


@tiers.parametrize('asynchronous', [False, True], fast=[True])
def test_nothing_is_lost_or_damaged_by_a_disk_that_has_room_again(disk, straight, asynchronous, caplog):
  folder = drive_through(disk.fill, disk, straight, asynchronous)
  found, expected = (
    [(event['event'], event['step']) for event in small_run.events(each) if not event['event'].startswith('checkpoint')]
    for each in (folder, straight)
  )
  assert found == expected
  for name in ('train.csv', 'validation.csv'):
    assert steps_in_csv(folder / name) == steps_in_csv(straight / name)
  assert steps_in_tensorboard(folder / 'train') == STEPS
  assert steps_in_tensorboard(folder / 'validation') == [12, 24]
  for writer in ('EventsWriter', 'TensorBoardWriter', 'CsvWriter'):
    assert sum(f'{writer} failed to' in message for message in caplog.messages) == 1
    assert f'{writer} writes again' in caplog.text
  assert 'Traceback' not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize('asynchronous', [False, True])
def test_nothing_is_lost_or_damaged_while_a_disk_has_room_but_no_inodes(disk, straight, asynchronous, caplog):
  folder = drive_through(disk.use_up_inodes, disk, straight, asynchronous)
  assert steps_in_csv(folder / 'train.csv') == STEPS  # Existing files grow.
  assert steps_in_tensorboard(folder / 'train') == STEPS
  assert 'Traceback' not in caplog.text


@pytest.mark.slow
def test_a_disk_that_gets_no_inodes_ends_training_and_the_same_command_resumes(disk, straight, capfd):
  folder = disk.folder / 'run'
  assert drive(folder, train_actions=at(step5=disk.use_up_inodes)) == 1
  assert error_line(capfd.readouterr().err) == (
    f'{folder}/ckpt-16: could not be saved: No space left on device; the newest checkpoint is ckpt-4; 3 saves in a '
    'row have failed'
  )
  assert small_run.record(folder)['status'] == 'failed'
  assert_no_remains(folder)
  assert drive(folder) == 1  # Before: 2, after which `launch` and the queue give up.
  assert error_line(capfd.readouterr().err) == f'{folder}: cannot be written: No space left on device'
  disk.free()
  assert drive(folder) == 0
  assert_same_weights(folder, straight)
  assert_no_remains(folder)


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_end_keeps_the_checkpoints_before(disk, capfd):
  folder = disk.folder / 'run'
  assert drive(folder, train_actions=at(step24=disk.fill)) == 1
  assert error_line(capfd.readouterr().err).startswith(f'{folder}/ckpt-24: could not be saved: No space left on device')
  assert checkpoints(folder)[-1] >= 16
  assert_no_remains(folder)
  assert small_run.record(folder)['status'] == 'failed'


@pytest.mark.slow
@tiers.parametrize('asynchronous', [False, True], fast=[True])
def test_a_last_save_that_fails_is_reported_as_an_event(asynchronous, tmp_path):
  # Before: of an asynchronous one, which fails after all is trained, there was no event.
  def obstruct():
    (tmp_path / 'ckpt-24.manifest.json.tmp').mkdir()  # The path of the manifest.

  assert drive(tmp_path, asynchronous=asynchronous, train_actions=at(step24=obstruct)) == 1
  (failed,) = small_run.events(tmp_path, 'checkpoint_failed')
  assert failed['checkpoint'] == f'{tmp_path}/ckpt-24' and 'could not be saved' in failed['error']
  assert checkpoints(tmp_path)[-1] == 20
  assert_no_remains(tmp_path)


def test_the_best_checkpoint_stays_where_a_better_one_finds_no_room(disk, caplog):
  folder = disk.folder / 'run'
  assert drive(folder, train_actions=at(step20=disk.fill), eval_actions=[lambda output: disk.free()]) == 0
  assert [manifests.step_of(path) for path in manifests.complete_paths(str(folder / 'best'), 'best_ckpt')] == [12]
  assert manifests.find_damage(str(folder / 'best/best_ckpt-12')) is None
  assert 'best/best_ckpt-24: could not be saved as one of the best: No space left on device' in caplog.text
  assert not [name for name in os.listdir(folder / 'best') if 'ckpt-24' in name or 'tmp' in name]
  assert checkpoints(folder)[-1] == 24


def test_an_evaluation_needs_no_room(disk, caplog, capfd):
  folder = disk.folder / 'run'
  assert drive(folder, 'train') == 0
  disk.fill()
  logs = []
  assert train.run_main(lambda _: logs.append(small_run.run(folder, 'eval', trainer=TRAINER)[1]), []) == 0
  assert 'validation_loss' in logs[0] and 'Traceback' not in caplog.text + capfd.readouterr().err
  assert f'{folder}/run.eval.json: cannot be written: No space left on device' in caplog.text
  assert not [name for name in os.listdir(folder) if 'tmp' in name]


def test_a_disk_that_turns_read_only_ends_training_in_one_line(disk, capfd):
  folder = disk.folder / 'run'
  assert drive(folder, train_actions=at(step10=disk.turn_read_only)) == 1
  line = error_line(capfd.readouterr().err)
  assert 'could not be saved: Read-only file system; the newest checkpoint is ckpt-' in line
  assert checkpoints(folder)[-1] in (4, 8)


@pytest.mark.slow
def test_a_folder_that_is_deleted_under_a_run_is_made_again(tmp_path, straight, caplog):
  folder = tmp_path / 'run'
  assert drive(folder, train_actions=at(step15=lambda: shutil.rmtree(folder))) == 0
  assert_same_weights(folder, straight)
  assert small_run.record(folder)['status'] == 'finished'
  assert ('finished', 24) in [(event['event'], event['step']) for event in small_run.events(folder)]
  assert steps_in_csv(folder / 'train.csv') == STEPS
  assert steps_in_tensorboard(folder / 'train')[-2:] == [20, 24]


@pytest.mark.slow
def test_a_file_in_whose_place_there_is_a_folder_costs_that_file(tmp_path, straight, caplog, capfd):
  folder = tmp_path / 'run'
  names = ['run.json', 'events.jsonl', 'train.csv', 'checkpoint', 'ckpt-16.index']

  def replace():
    for name in names:
      (folder / name).unlink(missing_ok=True)
      (folder / name / 'something').mkdir(parents=True)
    shutil.rmtree(folder / 'train')  # And a folder in whose place there is a file.
    (folder / 'train').write_text('')

  assert drive(folder, train_actions=at(step15=replace)) == 0
  assert_same_weights(folder, straight)
  for name in [*names[:-1], 'ckpt-16', 'train/']:
    logged = [message for message in caplog.messages if f'{folder}/{name}' in message and 'not be ' in message]
    assert len(logged) == 1, name
  assert 'Traceback' not in caplog.text + capfd.readouterr().err


def test_what_is_left_to_write_after_a_finished_run_does_not_make_it_fail(disk, caplog):
  folder = disk.folder / 'run'
  folder.mkdir()

  def main(_):
    with exit_status.saving_gin_config('train', str(folder), tf.distribute.get_strategy()):
      disk.fill()

  assert train.run_main(main, []) == 0
  assert f'{folder}/operative_config.train.gin: cannot be written: No space left on device' in caplog.text


@pytest.mark.parametrize(
  'error',
  [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), '/data/x'),
    OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), b'/data/x'),
    OSError(errno.EIO, os.strerror(errno.EIO), '/data/x'),
    tf.errors.ResourceExhaustedError(None, None, '{{function_node f}} /data/x; No space left on device [Op:SaveV2]'),
    tf.errors.UnknownError(None, None, '/data/x; Input/output error'),
  ],
)
def test_storage_that_fails_anywhere_is_one_line(error, capfd):
  def main(_):
    try:
      raise error
    except Exception as cause:
      raise RuntimeError('what a library makes of it') from cause

  assert train.run_main(main, []) == 1
  assert error_line(capfd.readouterr().err).startswith('/data/x: ')


def test_what_is_not_of_storage_keeps_its_traceback(capfd):
  def main(_):
    raise FileNotFoundError(errno.ENOENT, 'No such file or directory', '/data/x')

  assert train.run_main(main, []) == 1
  path = pathlib.Path(error_line(capfd.readouterr().err).rpartition('the traceback is in ')[2])
  assert 'Traceback' in path.read_text()
  path.unlink()


def test_a_rollback_that_cannot_be_noted_does_not_happen(disk):
  from official_ext.training.checkpoints import listing

  disk.fill()
  found = listing.Rollbacks(str(disk.folder))
  with pytest.raises(errors.StorageError, match='rollbacks.json: cannot be written: No space left on device'):
    found.add(listing.Rollback(8, 4, 4))
  assert not len(found)
  assert os.listdir(disk.folder) == ['filler']
