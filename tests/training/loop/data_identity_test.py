"""A run that continues with other data reports that, a line for each difference."""

import re

import numpy as np
from official.core import input_reader
import pytest
import tensorflow as tf

from official_ext.data import keyed_random
from official_ext.training.checkpoints import manifests
from tests.training.loop import harness
from tests.training.loop import small_run


class SmallerTask(small_run.SmallTask):
  """The same with half of the examples."""

  def __init__(self, params, data):
    super().__init__(params, tuple(part[:32] for part in data), tuple(part[:6] for part in data))


def reported(capsys):
  return [
    line.strip()
    for line in capsys.readouterr().out.splitlines()
    if re.match(r'  task\.(train|validation)_data(\[\d\])?: ', line) or 'other data' in line
  ]


def test_a_run_that_resumes_with_other_examples_reports_it(tmp_path, capsys):
  small_run.run(tmp_path, trainer={'train_steps': 4})
  saved = manifests.read(f'{tmp_path}/ckpt-4')['data']
  assert saved['train_data'][0]['num_examples'] == 64 and saved['validation_data'][0]['num_examples'] == 8
  small_run.run(tmp_path, trainer={'train_steps': 8})
  assert reported(capsys) == []
  small_run.run(tmp_path, task_cls=SmallerTask)
  first, *lines = reported(capsys)
  assert first == f'{tmp_path}/ckpt-8: other data than before:'
  assert 'task.train_data: num_examples: 64 -> 32' in lines
  assert 'task.validation_data: num_examples: 8 -> 6' in lines
  small_run.run(tmp_path, 'eval')  # Other data than its training is a valid purpose of an evaluation.
  assert reported(capsys) == []


@pytest.mark.slow
def test_another_seed_another_order_and_another_mode(tmp_path, capsys, monkeypatch):
  small_run.run(tmp_path, 'train', trainer={'train_steps': 4})
  assert 'validation_data' not in manifests.read(f'{tmp_path}/ckpt-4')['data']
  monkeypatch.setattr(keyed_random, 'ORDER_VERSION', 2)
  params = small_run.make_params(train_steps=8)
  params.task.train_data.seed = 5
  small_run.run(tmp_path, params=params)  # Evaluates too.
  assert reported(capsys)[1:] == ['task.train_data: order_of_examples: 1 -> 2', 'task.train_data: seed: 0 -> 5']


@pytest.mark.slow
def test_a_checkpoint_that_notes_no_data_is_taken_as_it_is(tmp_path, capsys):
  small_run.run(tmp_path, trainer={'train_steps': 4})
  path = f'{tmp_path}/ckpt-4'
  content = manifests.read(path)
  manifests.write(path, **{name: value for name, value in content.items() if name not in ('files', 'data')})
  small_run.run(tmp_path, task_cls=SmallerTask)
  assert reported(capsys) == []


class RecordTask(small_run.SmallTask):
  """Reads TFRecords by `input_path`, as Model Garden's tasks do."""

  def build_inputs(self, params, input_context=None):
    features = {'x': tf.io.FixedLenFeature([4], tf.float32), 'y': tf.io.FixedLenFeature([], tf.int64)}

    def parse(record):
      example = tf.io.parse_single_example(record, features)
      return example['x'], tf.cast(example['y'], tf.int32)

    dataset = tf.data.TFRecordDataset(input_reader.match_files(params.input_path)).map(parse)
    dataset = dataset.repeat() if params.is_training else dataset
    return dataset.batch(params.global_batch_size, drop_remainder=params.is_training)

  def num_examples(self, params):
    return None


def write_records(path, num_examples):
  x, y = harness.make_data(max(1, num_examples))
  with tf.io.TFRecordWriter(str(path)) as writer:
    for row, label in list(zip(x, y))[:num_examples]:
      writer.write(
        tf.train.Example(
          features=tf.train.Features(
            feature={
              'x': tf.train.Feature(float_list=tf.train.FloatList(value=np.asarray(row))),
              'y': tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
            }
          )
        ).SerializeToString()
      )


@pytest.mark.slow
def test_an_ordinary_pipeline_is_identified_by_its_files(tmp_path, capsys):
  data = tmp_path / 'data'
  data.mkdir()
  for name in ('a', 'b'):
    write_records(data / f'{name}.tfrecord', 16)

  def reported_names(input_path, train_steps):
    params = small_run.make_params(train_steps=train_steps, checkpoint_interval=1)
    params.task.train_data.input_path = params.task.validation_data.input_path = input_path
    small_run.run(tmp_path / 'model', 'train', task_cls=RecordTask, params=params)
    return [line.split(': ')[1] for line in reported(capsys)[1:]]

  assert reported_names(f'{data}/a.tfrecord,{data}/b.tfrecord', 1) == []
  assert reported_names(f'{data}/*.tfrecord', 2) == []  # The same files.
  assert reported_names(f'{data}/b.tfrecord,{data}/a.tfrecord', 3) == ['order_of_files']
  write_records(data / 'b.tfrecord', 0)
  changed = ['num_bytes', 'names_and_sizes_of_files']
  assert reported_names(f'{data}/b.tfrecord,{data}/a.tfrecord', 4) == ['num_empty_files', *changed]
  assert reported_names(f'{data}/a.tfrecord', 5) == ['num_files', 'num_empty_files', 'names_and_sizes_of_files']
