"""Finding the file and the record that a tf.data pipeline has failed at."""

import dataclasses
import types

import numpy as np
from official.core import config_definitions
from official.modeling.hyperparams import base_config
from official.vision.configs import image_classification
from official.vision.tasks import image_classification as image_classification_task
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import input_faults
from official_ext.training.loop import training_input
from tests import tiers
from tests.model_garden import tfrecords

NUM_RECORDS = 9
FEATURES = {'x': tf.io.FixedLenFeature([2], tf.int64), 'label': tf.io.FixedLenFeature([], tf.int64)}


def build_inputs(params, input_context=None):
  """A pipeline as Model Garden's are; raises what tf.data raises."""
  del input_context
  files = tf.io.gfile.glob([part.strip() for part in params.input_path.split(',')])
  compression = 'GZIP' if files[0].endswith('gz') else None
  dataset = tf.data.TFRecordDataset(sorted(files), compression_type=compression)
  if params.is_training:
    dataset = dataset.shuffle(100).repeat()
  dataset = dataset.map(lambda record: tf.io.parse_single_example(record, FEATURES))
  return dataset.batch(params.global_batch_size, drop_remainder=bool(params.drop_remainder))


def examples(num_records=NUM_RECORDS):
  return [{'x': [i, i], 'label': i % 3} for i in range(num_records)]


@pytest.fixture
def folder(tmp_path):
  for name in 'abc':
    tfrecords.write_examples(tmp_path / name, examples())
  return tmp_path


def params_of(folder, **fields):
  return config_definitions.DataConfig(
    **{'input_path': f'{folder}/*', 'global_batch_size': 4, 'is_training': True, 'drop_remainder': False, **fields}
  )


def error_of(params):
  """What an epoch or two of training raises."""
  try:
    for _ in build_inputs(params).take(20):
      pass
  except (tf.errors.OpError, UnicodeDecodeError) as error:
    return error
  return None


def explained(folder):
  params = params_of(folder)
  error = error_of(params)
  assert error is not None
  return str(input_faults.explain(error, 'task.train_data', params, build_inputs, ' (near step 3)'))


def raw_records(path):
  return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


def write_raw(path, records):
  with tf.io.TFRecordWriter(str(path)) as writer:
    for record in records:
      writer.write(record)


def test_a_pipeline_that_works_has_no_fault(folder):
  assert error_of(params_of(folder)) is None


def test_a_record_with_a_wrong_checksum(folder):
  content = bytearray((folder / 'b').read_bytes())
  size = len(content) // NUM_RECORDS  # All records have the same size.
  content[5 * size + 20] ^= 1
  (folder / 'b').write_bytes(content)
  assert explained(folder) == (
    f'task.train_data.input_path: {folder}/b: record 5: corrupted record at {5 * size + 12} (near step 3); repair or '
    'replace the file, or leave it out'
  )


def test_a_file_that_ends_inside_a_record(folder):
  content = (folder / 'c').read_bytes()
  size = len(content) // NUM_RECORDS
  (folder / 'c').write_bytes(content[: 7 * size + 20])
  assert explained(folder).startswith(
    f'task.train_data.input_path: {folder}/c: record 7: truncated record at {7 * size}'
  )


def test_a_compressed_file(tmp_path):
  for name in ('a.gz', 'b.gz'):
    with tf.io.TFRecordWriter(str(tmp_path / name), tf.io.TFRecordOptions(compression_type='GZIP')) as writer:
      for seed in range(9):
        writer.write(np.random.default_rng(seed).bytes(1000))
  content = (tmp_path / 'b.gz').read_bytes()
  (tmp_path / 'b.gz').write_bytes(content[: len(content) // 2])
  error = tf.errors.DataLossError(None, None, 'anything')
  fault = input_faults.find_fault(error, params_of(tmp_path), build_inputs)
  assert fault.file == f'{tmp_path}/b.gz' and 3 <= fault.record <= 5


@pytest.mark.parametrize('compression', ['GZIP', 'ZLIB', ''])
def test_a_file_that_is_compressed_otherwise_than_the_pipeline_expects(tmp_path, compression):
  with tf.io.TFRecordWriter(str(tmp_path / 'a'), compression) as writer:
    for _ in range(9):
      writer.write(b'a record' * 100)
  read_as = '' if compression else 'GZIP'
  with pytest.raises(tf.errors.DataLossError) as caught:
    list(tf.data.TFRecordDataset(str(tmp_path / 'a'), compression_type=read_as))
  fault = input_faults.find_fault(caught.value, params_of(tmp_path), build_inputs)
  expected = (
    f'is compressed ({compression}), and the pipeline reads it as it is'
    if compression
    else 'is not compressed, and the pipeline expects that'
  )
  assert str(fault) == f'{tmp_path}/a: {expected}'


@pytest.mark.parametrize(
  'record, reason',
  [
    (tf.train.Example().SerializeToString(), 'cannot be parsed: Feature: '),
    (b'\xb6\xff\xff\x01' * 20, 'is not a tf.Example'),  # As text it is not even UTF-8.
    (b'abc', 'cannot be parsed: Could not parse example input'),
  ],
)
def test_a_record_that_cannot_be_parsed(record, reason, folder):
  records = raw_records(folder / 'c')
  records[6] = record
  write_raw(folder / 'c', records)
  assert explained(folder).startswith(f'task.train_data.input_path: {folder}/c: record 6: {reason}')


def test_a_length_that_fits_no_record_is_the_configurations_mistake(tmp_path):

  @dataclasses.dataclass
  class LengthConfig(config_definitions.DataConfig):
    prefetch: int = 2
    seq_length: int = 4

  def build(params, input_context=None):
    del input_context
    features = {'x': tf.io.FixedLenFeature([params.seq_length], tf.int64)}
    return (
      tf.data.TFRecordDataset(params.input_path)
      .map(lambda record: tf.io.parse_single_example(record, features))
      .batch(2)
    )

  def explained(data):
    try:
      list(build(data))
    except tf.errors.OpError as error:
      return str(input_faults.explain(error, 'task.train_data', data, build, ' (near step 0)'))
    return ''

  tfrecords.write_examples(tmp_path / 'a', examples())
  data = LengthConfig(input_path=str(tmp_path / 'a'), global_batch_size=2)
  assert explained(data) == (
    f'task.train_data.seq_length: is 4, and in {tmp_path}/a x has 2 values; set it to 2 (near step 0)'
  )
  # One record with another length is the file's.
  tfrecords.write_examples(tmp_path / 'a', [{'x': [0] * 4}, {'x': [0] * 4}, {'x': [0] * 3}, {'x': [0] * 4}])
  assert explained(data).startswith(f'task.train_data.input_path: {tmp_path}/a: record 2: cannot be parsed: ')
  tfrecords.write_examples(tmp_path / 'a', [{'x': [0] * 3}, *[{'x': [0] * 4}] * 3])
  assert explained(data).startswith(f'task.train_data.input_path: {tmp_path}/a: record 0: cannot be parsed: ')


def test_a_feature_that_no_record_has_is_the_configurations_mistake(folder):

  @dataclasses.dataclass
  class LabelConfig(config_definitions.DataConfig):
    label_field: str = 'label_ids'

  def build(params, input_context=None):
    del input_context
    features = {params.label_field: tf.io.FixedLenFeature([], tf.int64)}
    return (
      tf.data.TFRecordDataset(tf.io.gfile.glob(params.input_path))
      .map(lambda record: tf.io.parse_single_example(record, features))
      .batch(2)
    )

  data = LabelConfig(input_path=f'{folder}/*', global_batch_size=2)
  with pytest.raises(tf.errors.InvalidArgumentError) as info:
    list(build(data))
  assert str(input_faults.explain(info.value, 'task.train_data', data, build)) == (
    f'task.train_data.label_field: no record of {folder}/a has the feature label_ids; they have label, x'
  )


def test_a_file_that_has_gone(folder):
  params = params_of(f'{folder}/gone', input_path=f'{folder}/a,{folder}/gone')
  error = tf.errors.NotFoundError(None, None, 'x [[{{node IteratorGetNext}}]]')
  message = str(input_faults.explain(error, 'task.train_data', params, build_inputs))
  assert message.startswith(f'task.train_data.input_path: {folder}/gone: No such file or directory')


def test_an_error_without_a_place_is_reported_all_the_same(folder):
  params = params_of(folder)
  ragged = tf.data.Dataset.range(4).map(lambda i: tf.ones([i])).batch(2)
  with pytest.raises(tf.errors.InvalidArgumentError) as caught:
    list(ragged)
  message = str(input_faults.explain(caught.value, 'task.train_data', params, build_inputs))
  assert message.startswith('task.train_data: the input failed: Cannot add tensor to the batch: number of ')
  assert '\n' not in message and '{{' not in message and '[[' not in message


def test_what_is_not_of_the_input_is_left_alone(folder):
  params = params_of(folder)
  with pytest.raises(tf.errors.InvalidArgumentError) as caught:
    tf.function(lambda: tf.ensure_shape(tf.random.uniform(tf.random.uniform([1], 2, 3, tf.int32)), [9]))()
  node = '[[{{node IteratorGetNext}}]]'
  for error in (
    caught.value,
    ValueError('IteratorGetNext'),
    tf.errors.UnavailableError(None, None, node),
    tf.errors.UnknownError(None, None, f'KeyError: 3\nTraceback (most recent call last):\n {node}'),
  ):
    assert input_faults.explain(error, 'task.train_data', params, build_inputs) is None


def test_the_search_is_given_up_in_time(folder, monkeypatch):
  (folder / 'b').write_bytes(b'nothing')
  monkeypatch.setattr(input_faults, 'MAX_SECONDS', -1.0)
  error = tf.errors.DataLossError(None, None, 'corrupted record at 7')
  message = str(input_faults.explain(error, 'task.train_data', params_of(folder), build_inputs))
  assert message == 'task.train_data: the input failed: corrupted record at 7'


def test_labels_out_of_range():
  with pytest.raises(tf.errors.InvalidArgumentError) as caught:
    tf.nn.sparse_softmax_cross_entropy_with_logits(tf.constant([1, 7]), tf.zeros([2, 3]))
  assert input_faults.out_of_range(caught.value) == input_faults.OutOfRange(7, '[0, 3)')
  with tf.device('CPU:0'), pytest.raises(tf.errors.InvalidArgumentError) as caught:
    tf.gather(tf.zeros([5, 2]), tf.constant([[1, -2]]))
  assert input_faults.out_of_range(caught.value) == input_faults.OutOfRange(-2, '[0, 5)')
  assert input_faults.out_of_range(tf.errors.InvalidArgumentError(None, None, 'other')) is None
  assert input_faults.out_of_range(ValueError(str(caught.value))) is None


def test_a_label_is_found_in_the_files(folder):
  tfrecords.write_examples(folder / 'c', [*examples(4), {'x': [7, 7], 'label': 0}, {'x': [0, 0], 'label': 7}])
  assert str(input_faults.find_label(params_of(folder), 7)) == f'{folder}/c: record 5: label is 7'
  assert input_faults.find_label(params_of(folder), 8) is None
  (folder / 'b').write_bytes(b'this is no record')
  assert input_faults.find_label(params_of(folder), 7) is None  # Not by what can be read alone.


def test_empty_files(tmp_path):
  for name in 'ab':
    (tmp_path / name).write_bytes(b'')
  with pytest.raises(errors.UserError, match=r'^task.x.input_path: there are no examples: 2 files, all empty$'):
    input_faults.check_not_empty('task.x', params_of(tmp_path))
  tfrecords.write_examples(tmp_path / 'b', examples(3))
  input_faults.check_not_empty('task.x', params_of(tmp_path))
  for no_files in (f'{tmp_path}/c', str(tmp_path), ''):  # Missing, a folder, unset: for others to tell.
    input_faults.check_not_empty('task.x', params_of(tmp_path, input_path=no_files))
  input_faults.check_not_empty('task.x', None)
  assert str(input_faults.no_examples('task.x', params_of(tmp_path), 8)) == (
    'task.x.input_path: there are no examples: 2 files with 3 records; a step takes 8'
  )
  assert str(input_faults.no_examples('task.x', None)) == 'task.x: there are no examples'


def test_patterns_are_read_as_model_garden_reads_them(folder):
  for value in (
    f'{folder}/a, {folder}/[bc]',
    [f'{folder}/a', f'{folder}/[bc]'],
    {'one': f'{folder}/a', 'two': f'{folder}/[bc]'},
  ):
    value = base_config.Config(value) if isinstance(value, dict) else value
    params = config_definitions.DataConfig()
    params.input_path = value
    assert input_faults.input_files(params) == [f'{folder}/{name}' for name in 'abc']


# Files that go away, or change, while they are read.


@pytest.mark.parametrize(
  ('what', 'spoil'),
  [
    ('No such file or directory', lambda path: path.unlink()),
    ('Is a directory', lambda path: (path.unlink(), path.mkdir())),
  ],
)
def test_a_file_that_is_gone_is_named_though_its_pattern_no_longer_matches_it(what, spoil, folder):
  params = params_of(folder, is_training=False)
  files = sorted(map(str, folder.iterdir()))
  dataset = tf.data.Dataset.from_tensor_slices(files).interleave(tf.data.TFRecordDataset, cycle_length=1).batch(4)
  iterator = iter(dataset)
  next(iterator)
  spoil(folder / 'c')
  with pytest.raises(tf.errors.OpError) as caught:
    list(iterator)
  message = str(input_faults.explain(caught.value, 'task.train_data', params, build_inputs, ' (near step 3)'))
  assert message == (
    f'task.train_data.input_path: {folder}/c: {what} (near step 3); repair or replace the file, or leave it out'
  )


def test_a_file_that_is_read_by_its_path_is_named(folder):
  dataset = tf.data.Dataset.from_tensors(str(folder / 'gone.jpeg')).map(tf.io.read_file, num_parallel_calls=2)

  @tf.function
  def step(iterator):
    return next(iterator)

  with pytest.raises(tf.errors.OpError) as caught:
    step(iter(dataset))
  message = str(input_faults.explain(caught.value, 'task.train_data', params_of(folder), build_inputs))
  assert message.startswith(f'task.train_data.input_path: {folder}/gone.jpeg: No such file or directory; ')


def test_the_reason_of_a_graph_is_not_its_traceback(folder):
  @tf.function
  def step():
    return tf.io.parse_tensor(b'nothing of the kind', tf.float32)

  with pytest.raises(tf.errors.InvalidArgumentError) as caught:
    step()
  assert input_faults.reason_of(caught.value).startswith('Could not parse')


def test_a_pattern_that_no_file_matches(folder):
  data = params_of(folder, input_path=f'{folder}/*, {folder}/*.none')
  assert input_faults.unmatched(data) == f'{folder}/*.none'
  assert input_faults.unmatched(params_of(folder)) is None
  config = types.SimpleNamespace(task=types.SimpleNamespace(train_data=data))
  for error in (ValueError('no files'), errors.UserError(f"input_path: no file matches '{folder}/*.none'")):
    mistake = training_input.mistake_in_data(config, data, error)
    assert str(mistake) == f"task.train_data.input_path: no file matches '{folder}/*.none'"


@tiers.parametrize('formats', [['png'] * 5, ['jpeg', 'jpeg', 'png', 'jpeg']], fast=1)
def test_a_png_names_the_field_that_decodes_it(formats, tmp_path):
  encode = {'png': tf.io.encode_png, 'jpeg': tf.io.encode_jpeg}
  image = np.zeros([16, 16, 3], np.uint8)
  records = [{'image/encoded': encode[name](image).numpy(), 'image/class/label': 0} for name in formats]
  tfrecords.write_examples(tmp_path / 'a', records)
  config = image_classification.ImageClassificationTask()
  config.model.num_classes, config.model.input_size = 2, [16, 16, 3]
  task = image_classification_task.ImageClassificationTask(config)
  data = image_classification.DataConfig(input_path=f'{tmp_path}/a', global_batch_size=2, is_training=False)
  with pytest.raises(tf.errors.InvalidArgumentError) as raised:
    list(task.build_inputs(data))
  error = input_faults.explain(raised.value, 'task.train_data', data, task.build_inputs)
  assert str(error) == (
    f'task.train_data.decode_jpeg_only: is true, and {tmp_path}/a holds images that are not JPEG; set it to false'
  )
  tfrecords.write_examples(tmp_path / 'a', [*records, {'image/encoded': b'neither', 'image/class/label': 0}])
  error = input_faults.explain(raised.value, 'task.train_data', data, task.build_inputs)
  assert 'decode_jpeg_only' not in str(error) and f'{tmp_path}/a' in str(error)
