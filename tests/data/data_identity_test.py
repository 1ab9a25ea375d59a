"""The identity of data: what it sees, and what it does not."""

import os
import types

from array_record.python import array_record_module
import numpy as np
import pytest
import tensorflow_datasets as tfds

from official_ext.data import data_identity
from official_ext.data import sources


def write(folder, **contents):
  """Files of these names and sizes; their paths."""
  os.makedirs(folder, exist_ok=True)
  for name, content in contents.items():
    (folder / name).write_bytes(content)
  return [str(folder / name) for name in contents]


def names_of_differences(before, now):
  return [line.split(': ')[1] for line in data_identity.differences('task.train_data', [before], [now])]


def test_files_are_identified_by_name_size_and_order_and_not_by_folder(tmp_path):
  files = write(tmp_path / 'a', one=b'12345', two=b'123', three=b'12')
  before = data_identity.of_files(files)
  moved = write(tmp_path / 'b', one=b'12345', two=b'123', three=b'12')
  assert names_of_differences(before, data_identity.of_files(moved)) == []
  assert names_of_differences(before, data_identity.of_files(files[::-1])) == ['order_of_files']
  assert 'num_files' in names_of_differences(before, data_identity.of_files(files[:2]))
  emptied = data_identity.of_files(write(tmp_path / 'c', one=b'12345', two=b'123', three=b''))
  assert data_identity.differences('task.train_data', [before], [emptied])[0] == (
    'task.train_data: num_empty_files: 0 -> 1'
  )
  same_sizes = write(tmp_path / 'd', one=b'54321', two=b'123', three=b'12')
  assert names_of_differences(before, data_identity.of_files(same_sizes)) == []  # As the docs say.


def test_arrays_are_identified_by_shape_type_and_some_rows():
  x = np.arange(2000.0).reshape(1000, 2)
  name = np.array([f'n{i}' for i in range(1000)], object)
  before = sources.ArraySource({'x': x, 'name': name}).identity()
  assert names_of_differences(before, sources.ArraySource({'x': x.copy(), 'name': name.copy()}).identity()) == []
  half = sources.ArraySource({'x': x[:500], 'name': name[:500]}).identity()
  assert data_identity.differences('d', [before], [half])[0] == 'd: num_examples: 1000 -> 500'
  shuffled = np.random.default_rng(0).permutation(1000)
  changed = sources.ArraySource({'x': x[shuffled], 'name': name[shuffled]}).identity()
  assert names_of_differences(before, changed) == ['content_of_16_rows']
  assert names_of_differences(before, sources.ArraySource({'x': x.astype(np.float32), 'name': name}).identity()) == [
    'shapes_and_dtypes',
    'content_of_16_rows',
  ]
  assert data_identity.of_arrays({'x': x[:1]})['content_of_16_rows']


def test_array_record_files_are_identified_by_their_records_too(tmp_path):
  def source(folder, *counts):
    os.makedirs(folder)
    for number, count in enumerate(counts):
      writer = array_record_module.ArrayRecordWriter(str(folder / f'{number}.array_record'), 'group_size:1')
      for i in range(count):
        writer.write(bytes([i] * 10))
      writer.close()
    return sources.ArrayRecordSource(str(folder / '*'), lambda record: {'x': record})

  before = source(tmp_path / 'a', 3, 2).identity()
  assert names_of_differences(before, source(tmp_path / 'b', 3, 2).identity()) == []
  found = names_of_differences(before, source(tmp_path / 'c', 3, 1).identity())
  assert {'num_examples', 'records_of_files'} <= set(found)


class Numbers(tfds.core.GeneratorBasedBuilder):
  """Ten numbers."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    return self.dataset_info_from_configs(features=tfds.features.FeaturesDict({'number': np.int64}))

  def _split_generators(self, dl_manager):
    return {'train': ((i, {'number': i}) for i in range(10)), 'test': ((i, {'number': i}) for i in range(10))}

  def _generate_examples(self):
    return ()


@pytest.mark.parametrize('in_a_source', [True, False], ids=['source', 'configuration'])
def test_tfds_data_are_identified_by_version_and_split(tmp_path, in_a_source, monkeypatch):
  def identity_of(split):
    if in_a_source:
      return sources.TfdsSource('numbers', split, str(tmp_path)).identity()
    return data_identity.of_config(
      types.SimpleNamespace(input_path='', tfds_name='numbers', tfds_split=split, tfds_data_dir=str(tmp_path))
    )

  sources.TfdsSource('numbers', 'train', str(tmp_path))
  before = identity_of('train')
  assert before['tfds'] == 'numbers/1.0.0' and before['num_examples'] == 10 and before['num_files'] == 1
  assert names_of_differences(before, identity_of('train')) == []
  assert {'split', 'num_examples'} <= set(names_of_differences(before, identity_of('train[:50%]')))
  assert 'split' in names_of_differences(before, identity_of('test'))
  monkeypatch.setattr(Numbers, 'VERSION', tfds.core.Version('1.0.1'))
  sources.TfdsSource('numbers', 'train', str(tmp_path))
  assert 'tfds' in names_of_differences(before, identity_of('train'))


def test_a_hugging_face_data_set_is_identified_by_its_own_description(tmp_path):
  (file,) = write(tmp_path, data=b'123')

  class Dataset:
    column_names = ['x']
    version = '1.0.0'
    split = 'train'
    builder_name = 'letters'
    cache_files = [{'filename': file}]

    def __init__(self, length):
      self._length = length

    def __len__(self):
      return self._length

  before = sources.HuggingFaceSource(Dataset(5)).identity()
  assert before['dataset'] == 'letters, split train' and before['num_bytes'] == 3
  assert names_of_differences(before, sources.HuggingFaceSource(Dataset(4)).identity()) == ['num_examples']


def test_what_names_no_data_has_no_identity_and_what_is_gone_does_no_harm(tmp_path):
  assert data_identity.of_config(None) == {}
  gone = data_identity.of_config(types.SimpleNamespace(input_path=str(tmp_path / 'gone*')))
  assert gone['num_files'] == 1 and gone['num_bytes'] == 0
  assert data_identity.differences('d', [gone], [{'source': 'A'}])[0].startswith('d: num_files, ')
  assert data_identity.differences('d', [gone], []) == ['d: 1 sources -> 0']
