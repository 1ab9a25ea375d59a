"""Files and folders of a run: missing or impossible ones are reported in one line, before anything is built."""

import official_ext  # noqa: F401

# isort: split
import os
import time

import pytest

from official_ext.base import errors
from official_ext.training.config import checks
from official_ext.training.config import definitions


def refusals(function, *arguments):
  try:
    function(*arguments)
  except errors.UserError as error:
    return list(errors.lines_of(error))
  return []


SUBDIRS = [
  '../../x',
  '..',
  '.',
  'a/../b',
  '/tmp/x',
  '~',
  '~/x',
  '~root/x',
  'a//b',
  '/',
  'a\0b',
  'a\nb',
  'a\\b',
  'x' * 256,
  'train',
  'train/x',
  'train/',
  'ckpt-5',
  'checkpoint',
  'params.yaml',
  'run.json',
  'events.jsonl',
  'mlruns',
  'mlflow.db',
  'mlartifacts',
  'wandb/x',
  'ema_checkpoints',
  'operative_config.train.gin',
]


@pytest.mark.parametrize('subdir', SUBDIRS, ids=[repr(subdir)[:30] for subdir in SUBDIRS])
def test_a_folder_that_is_named_in_a_configuration_lies_in_the_runs_folder(subdir):
  for name in ('validation_summary_subdir', 'best_checkpoint_export_subdir'):
    trainer = definitions.TrainerConfig(**{name: subdir})
    (line,) = refusals(checks.check_subdirs, trainer)
    assert line.startswith(f'trainer.{name}: ') and '\n' not in line and len(line) < 300


def test_two_folders_of_a_configuration_share_no_place():
  for best in ('validation', 'validation/', 'validation/best', 'a'):
    trainer = definitions.TrainerConfig(
      validation_summary_subdir='a/b' if best == 'a' else 'validation', best_checkpoint_export_subdir=best
    )
    (line,) = refusals(checks.check_subdirs, trainer)
    assert line.startswith('trainer.best_checkpoint_export_subdir: ') and 'share a folder' in line
  (line,) = refusals(checks.check_subdirs, definitions.TrainerConfig(validation_summary_subdir=''))
  assert line.startswith('trainer.validation_summary_subdir: is empty')


def test_plain_names_are_taken():
  for validation, best in (
    ('validation', ''),
    ('validation', 'best'),
    ('eval/a', 'eval/b'),
    ('ausgewählt', 'training'),
    ('x' * 255, 'best ones'),
    ('validation', 'best/'),
  ):
    trainer = definitions.TrainerConfig(validation_summary_subdir=validation, best_checkpoint_export_subdir=best)
    assert not refusals(checks.check_subdirs, trainer)


def params_with(**data):
  params = definitions.ExperimentConfig()
  params.task.train_data.override({'global_batch_size': 1, **data}, is_strict=False)
  return params


def test_every_input_that_is_not_there_is_named(tmp_path):
  (tmp_path / 'a.tfrecord').touch()
  (tmp_path / 'b[1].tfrecord').touch()
  there = [
    f'{tmp_path}/a.tfrecord',
    f'{tmp_path}/*.tfrecord',
    f'{tmp_path}/a.tfrecord, {tmp_path}/b[1].tfrecord',
    f'{tmp_path}',
    'dummy',
    '',
    f'file://{tmp_path}/a.tfrecord',
  ]
  for path in there:
    assert not refusals(checks.check_files, params_with(input_path=path), 'train')
  assert not refusals(checks.check_files, params_with(input_path=there[:2]), 'train')
  missing = f'{tmp_path}/no.tfrecord,{tmp_path}/no*.tfrecord'
  assert refusals(checks.check_files, params_with(input_path=missing), 'train_and_eval') == [
    f'task.train_data.input_path: {tmp_path}/no.tfrecord: No such file or directory'
  ]
  assert refusals(checks.check_files, params_with(input_path=f'{tmp_path}/no*'), None) == [
    f'task.train_data.input_path: {tmp_path}/no*: no file matches this pattern'
  ]
  # A mode that does not read it does not require it.
  assert not refusals(checks.check_files, params_with(input_path=missing), 'eval')
  params = params_with(input_path={'x': f'{tmp_path}/a.tfrecord', 'y': f'{tmp_path}/no'}, vocab_file='no.txt')
  params.task.validation_data.input_path = '5'
  assert refusals(checks.check_files, params, 'train_and_eval') == [
    f'task.train_data.input_path: {tmp_path}/no: No such file or directory',
    'task.validation_data.input_path: 5: No such file or directory',
    'task.train_data.vocab_file: no.txt: No such file or directory',
  ]


def test_a_file_whose_name_is_not_utf8_is_named(tmp_path):
  # Before: a UnicodeDecodeError of TensorFlow.
  (tmp_path / 'a.tfrecord').touch()
  open(os.fsencode(tmp_path) + b'/b\xff.tfrecord', 'w').close()
  assert refusals(checks.check_files, params_with(input_path=f'{tmp_path}/*.tfrecord'), 'train') == [
    f'task.train_data.input_path: {tmp_path}/*.tfrecord: {tmp_path}/b\\xff.tfrecord: its name is not UTF-8, and '
    'TensorFlow opens no such file; rename it'
  ]
  assert not refusals(checks.check_files, params_with(input_path=f'{tmp_path}/a*.tfrecord'), 'train')


@pytest.mark.parametrize('path', ['s3://bucket/run', 'hdfs://host/run', 'abfs://x/y'])
def test_a_file_system_that_tensorflow_does_not_have_is_named(path):
  for lines in (
    refusals(checks.check_files, params_with(), 'train', path),
    refusals(checks.check_files, params_with(), 'eval', None, path),
    refusals(checks.check_files, params_with(input_path=path), 'train'),
  ):
    (line,) = lines
    assert f'{path}: TensorFlow has no file system for {path.split(":")[0]}:// here' in line


def test_a_bucket_that_cannot_be_reached_is_reported_within_seconds(monkeypatch):
  for name in checks._PROXIES:
    monkeypatch.delenv(name, raising=False)
  # Stock: TensorFlow tries for 19 seconds, and ends with a traceback.
  monkeypatch.setattr(checks, '_GCS', ('127.0.0.1', 1))  # Nobody listens there.
  began = time.monotonic()
  (line,) = refusals(checks.check_files, params_with(), 'train', 'gs://bucket/run')
  assert line == '--model_dir: gs://bucket/run: 127.0.0.1 cannot be reached from here'
  monkeypatch.setattr(checks, '_GCS', ('192.0.2.1', 443))  # Nobody answers there.
  monkeypatch.setattr(checks, '_CONNECT_SECONDS', 0.5)
  assert refusals(checks.check_files, params_with(), 'train', 'gs://bucket/run')
  assert time.monotonic() - began < 5


def test_names_that_no_file_system_takes_are_reported():
  for path in ('x' * 256, 'a/' + 'ä' * 128 + '/b', 'a/' * 2500, 'a\0b'):
    (line,) = refusals(checks.check_files, params_with(), 'train', path)
    assert line.startswith('--model_dir: ') and len(line) < 300
  assert not refusals(checks.check_files, params_with(), 'train', 'x' * 255)
