"""Broken data ends train.py with one line that names file and record, exit status 2, and no traceback."""

import json
import sys

from array_record.python import array_record_module
import gin
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.cli import flags as ext_flags
from official_ext.cli import train
from tests import tiers
from tests.model_garden import tfrecords
from tests.model_garden import train_test

BATCH_SIZE, NUM_EXAMPLES = 8, 32

# A task of a separate package, over ArrayRecord files of float32 numbers.
RECORDS_TASK = """
import dataclasses
import numpy as np
import tensorflow as tf, tf_keras
from official.core import exp_factory, task_factory
from official_ext.training.tasks import base_task
from official_ext.training.config import definitions as cfg
from official_ext.data import sources, step_indexed


@dataclasses.dataclass
class RecordsConfig(cfg.TaskConfig):
  train_data: cfg.DataConfig = dataclasses.field(default_factory=lambda: cfg.DataConfig(
      input_path='train.array_record', global_batch_size=8, is_training=True))
  validation_data: cfg.DataConfig = dataclasses.field(default_factory=lambda: cfg.DataConfig(
      input_path='train.array_record', global_batch_size=8, is_training=False))


@exp_factory.register_config_factory('records')
def records():
  return cfg.ExperimentConfig(
      task=RecordsConfig(), runtime=cfg.RuntimeConfig(enable_xla=False),
      trainer=cfg.TrainerConfig(
          train_steps=8, steps_per_loop=4, summary_interval=4, checkpoint_interval=8, validation_interval=8,
          optimizer_config=cfg.OptimizationConfig({
              'optimizer': {'type': 'sgd'},
              'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 1e-4}}})))


@task_factory.register_task_cls(RecordsConfig)
class RecordsTask(base_task.Task):

  def build_model(self):
    x = tf_keras.Input((1024,))
    return tf_keras.Model(x, tf_keras.layers.Dense(1)(x))

  def build_inputs(self, params, input_context=None):
    source = sources.ArrayRecordSource(params.input_path, lambda record: {'x': np.frombuffer(record, np.float32)})
    return step_indexed.build_dataset(source, params, input_context)

  def forward(self, inputs, model, training):
    return tf.reduce_mean(model(inputs['x'], training=training) ** 2), {}
"""


@pytest.fixture
def clean_process():
  yield
  gin.clear_config()
  tf_keras.mixed_precision.set_global_policy('float32')


def drive(arguments):
  """Runs `python train.py ARGUMENTS` after its imports; returns the exit status."""
  ext_flags.define_flags()
  return train.run_main(train.main, ext_flags.parse_flags(['train.py', *arguments]))


def error_line(stderr):
  assert 'Traceback' not in stderr
  (line,) = [line for line in stderr.splitlines() if line.startswith('error: ')]
  return line[len('error: ') :]


# Model Garden's BERT over TFRecords.


def bert(folder, *arguments):
  """A small BERT over `folder`/train.tfrecord and validation.tfrecord, of 32 and 16 examples."""
  overrides = train_test.bert_overrides(folder)
  tfrecords.write_sentences(folder / 'train.tfrecord', NUM_EXAMPLES)
  overrides['trainer'].update(
    train_steps=8,
    steps_per_loop=4,
    summary_interval=4,
    checkpoint_interval=4,
    validation_interval=1,
    validation_steps=2,
  )
  overrides['runtime'] = {'enable_xla': False}
  return [
    '--experiment=bert/sentence_prediction',
    '--mode=train_and_eval',
    f'--model_dir={folder / "model"}',
    f'--params_override={json.dumps(overrides)}',
    *arguments,
  ]


def flip(path, record, num_records):
  """Turns a bit of a record, of which all have the same size, near its end."""
  content = bytearray(path.read_bytes())
  content[(record + 1) * len(content) // num_records - 20] ^= 1
  path.write_bytes(content)


def change(path, record, change_example):
  """Rewrites a record of a file of tf.Examples."""
  records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
  example = tf.train.Example.FromString(records[record])
  change_example(example.features.feature)
  records[record] = example.SerializeToString()
  with tf.io.TFRecordWriter(str(path)) as writer:
    for record in records:
      writer.write(record)


def set_label(features):
  features['label_ids'].int64_list.value[0] = 7


BROKEN = {
  'a corrupt record in an evaluation': (
    'validation',
    lambda path: flip(path, 11, 16),
    [],
    'task.validation_data.input_path: {path}: record 11: corrupted record at ',
  ),
  'a record that lacks a feature': (
    'train',
    lambda path: change(path, 9, lambda features: features.pop('input_ids')),
    [],
    'task.train_data.input_path: {path}: record 9: cannot be parsed: Feature: input_ids (data type: int64) is req',
  ),
  'a label out of range': (
    'train',
    lambda path: change(path, 5, set_label),
    [],
    'task.train_data: {path}: record 5: label_ids is 7, which is outside of [0, 2) (near step ',
  ),
  'an empty file': (
    'train',
    lambda path: path.write_bytes(b''),
    [],
    'task.train_data.input_path: there are no examples: 1 file, all empty',
  ),
}
MORE_BROKEN = {
  'a label out of range in a dry run': (
    'validation',
    lambda path: change(path, 5, set_label),
    ['--dry_run'],
    'task.validation_data: {path}: record 5: label_ids is 7, which is outside of [0, 2) (in the evaluation at step ',
  ),
  'a file that is not there': (
    'train',
    lambda path: path.unlink(),
    [],
    'task.train_data.input_path: {path}: No such file or directory',
  ),
}


@pytest.mark.slow
@tiers.parametrize(
  'name',
  [*BROKEN, *(pytest.param(name, marks=pytest.mark.soak) for name in MORE_BROKEN)],
  fast=['a record that lacks a feature'],
)
def test_a_model_garden_task(name, tmp_path, capfd, clean_process):
  file, spoil, arguments, expected = {**BROKEN, **MORE_BROKEN}[name]
  command = bert(tmp_path, *arguments)
  path = tmp_path / f'{file}.tfrecord'
  spoil(path)
  assert drive(command) == 2
  assert error_line(capfd.readouterr().err).startswith(expected.replace('{path}', str(path)))


@pytest.mark.soak
def test_two_replicas_as_a_process(tmp_path, run_train):
  command = bert(tmp_path, '--set=runtime.num_virtual_cpus=2', '--set=runtime.distribution_strategy=mirrored')
  flip(tmp_path / 'train.tfrecord', 20, NUM_EXAMPLES)
  process = run_train(command)
  assert process.returncode == 2
  expected = f'task.train_data.input_path: {tmp_path}/train.tfrecord: record 20: corrupted record at '
  assert error_line(process.stderr).startswith(expected)
  record = json.loads((tmp_path / 'model' / 'run.json').read_text())
  assert record['status'] == 'failed' and expected in record['error']


# The library's own sources.


def write_array_records(folder, bad_record):
  """32 records of 1024 numbers; one is damaged."""
  writer = array_record_module.ArrayRecordWriter(str(folder / 'train.array_record'), 'group_size:1,uncompressed')
  contents = [np.random.default_rng(i).normal(size=1024).astype(np.float32).tobytes() for i in range(NUM_EXAMPLES)]
  for content in contents:
    writer.write(content)
  writer.close()
  path = folder / 'train.array_record'
  whole = bytearray(path.read_bytes())
  start = whole.index(contents[bad_record])
  whole[start + 2000 : start + 2010] = bytes(10)
  path.write_bytes(whole)
  (folder / 'records_task.py').write_text(RECORDS_TASK)
  return ['--experiment=records', '--registry=records_task', '--mode=train_and_eval', f'--model_dir={folder}/run']


def test_a_damaged_array_record_as_a_process(tmp_path, run_train):
  command = write_array_records(tmp_path, 19)
  process = run_train(command, cwd=tmp_path, env={'PYTHONPATH': str(tmp_path)})
  assert process.returncode == 2, process.stderr
  line = error_line(process.stderr)
  assert line.startswith('task.train_data: example 19 (train.array_record, record 19), at position ')
  assert ' of the run, cannot be read: RuntimeError: Corrupted ' in line
  assert '; repair or replace it, or set task.train_data.on_bad_example=skip (near step ' in line


def test_a_damaged_array_record_is_skipped_and_counted(tmp_path, monkeypatch, clean_process):
  command = write_array_records(tmp_path, 19)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  skip = [f'--set=task.{name}.on_bad_example=skip' for name in ('train_data', 'validation_data')]
  assert drive([*command, *skip]) == 0
  sys.modules.pop('records_task')
  events = [json.loads(line) for line in (tmp_path / 'run' / 'events.jsonl').read_text().splitlines()]
  # 8 steps of 8 examples are two epochs of 32.
  trains = [event['examples_skipped'] for event in events if event['event'] == 'train']
  assert trains == [1, 1]
  assert [event['examples_skipped'] for event in events if event['event'] == 'eval'] == [1]
