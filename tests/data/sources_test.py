"""Sources: examples by number, in memory, in TFDS's ArrayRecord files, in plain ArrayRecord files."""

import sys

from array_record.python import array_record_module
import numpy as np
import pytest
import tensorflow_datasets as tfds

from official_ext.base import errors
from official_ext.data import sources

PREPARE = """
import os
import sys
import time
import official_ext
import numpy as np
import tensorflow_datasets as tfds
from official_ext.data import sources

class Squares(tfds.core.GeneratorBasedBuilder):
  '''Numbers and their squares.'''
  VERSION = tfds.core.Version('1.0.0')
  def _info(self):
    features = tfds.features.FeaturesDict({'root': np.int64, 'square': np.int64})
    return tfds.core.DatasetInfo(builder=self, features=features)
  def _split_generators(self, dl_manager):
    with open(sys.argv[2], 'a') as log:
      log.write('generated\\n')
    time.sleep(1)  # long enough for the other process to come in between
    return {'train': ((i, {'root': i, 'square': i * i}) for i in range(50))}
  def _generate_examples(self):
    return ()

# Both processes start to prepare at the same time.
ready, other_is_ready = sys.argv[3:]
open(ready, 'w').close()
while not os.path.exists(other_is_ready):
  time.sleep(0.01)
source = sources.TfdsSource('squares', 'train', sys.argv[1])
assert all(e['square'] == e['root'] ** 2 for e in source.fetch(range(50)))
print(sorted(int(e['root']) for e in source.fetch(range(50))) == list(range(50)))
"""


class Letters(tfds.core.GeneratorBasedBuilder):
  """Ten examples of text and a vector, no two alike."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    features = {'text': tfds.features.Text(), 'vector': tfds.features.Tensor(shape=(2,), dtype=np.float32)}
    return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples()}

  def _generate_examples(self):
    for i in range(10):
      yield i, {'text': 'abcdefghij'[i], 'vector': np.array([i, -i], np.float32)}


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  return str(tmp_path_factory.mktemp('tfds'))


def test_array_source_fetches_rows_in_order():
  source = sources.ArraySource({'a': np.arange(5), 'b': {'c': np.arange(10).reshape(5, 2)}})
  assert len(source) == 5
  (first, second) = source.fetch([4, 1])
  assert (first['a'], second['a']) == (4, 1)
  assert first['b']['c'].tolist() == [8, 9]


def test_array_source_needs_one_leading_dimension():
  for arrays in ({'a': np.arange(5), 'b': np.arange(4)}, {'a': np.float32(1)}):
    with pytest.raises(ValueError, match='one leading dimension'):
      sources.ArraySource(arrays)


def test_tfds_source_prepares_and_reads(data_dir):
  source = sources.TfdsSource('letters', 'train', data_dir)
  assert len(source) == 10
  (example,) = source.fetch([3])
  (same, other) = source.fetch(np.array([3, 4]))
  assert example['text'] == same['text'] != other['text']
  number = 'abcdefghij'.index(example['text'].decode())
  np.testing.assert_array_equal(example['vector'], [number, -number])
  assert len(sources.TfdsSource('letters', 'train[:30%]', data_dir)) == 3


def test_cached_source_has_the_same_examples(data_dir):
  source = sources.TfdsSource('letters', 'train', data_dir)
  cached = sources.cached(source, block_size=4)
  assert len(cached) == len(source)
  for i, example in enumerate(source.fetch(range(10))):
    (copy,) = cached.fetch([i])
    assert copy['text'] == example['text']
    np.testing.assert_array_equal(copy['vector'], example['vector'])


@pytest.mark.parametrize(
  'name, split, message',
  [
    ('lettres', 'train', 'tfds_name: .*lettres'),
    ('letters:9.9.9', 'train', 'tfds_name: .*9.9.9'),
    ('letters', 'test', 'tfds_split: .*test'),
    ('letters', 'train[', 'tfds_split: '),
    ('letters', '', 'tfds_split: letters has the splits train'),
  ],
)
def test_mistakes_in_names_are_one_line(data_dir, name, split, message):
  with pytest.raises(errors.UserError, match=message) as caught:
    sources.TfdsSource(name, split, data_dir)
  assert '\n' not in str(caught.value)


def test_a_format_without_random_access_is_named(tmp_path):
  tfds.builder('letters', data_dir=str(tmp_path), file_format='tfrecord').download_and_prepare()
  with pytest.raises(errors.UserError, match='without random access'):
    sources.TfdsSource('letters', 'train', str(tmp_path))


def test_a_data_dir_that_cannot_be_written_is_named(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='tfds_data_dir: cannot write'):
    sources.TfdsSource('letters', 'train', str(tmp_path / 'file'))


def test_two_processes_prepare_at_once(start_script, tmp_path):
  log = tmp_path / 'log'
  flags = [str(tmp_path / 'ready_0'), str(tmp_path / 'ready_1')]
  scripts = [start_script(PREPARE, [tmp_path / 'data', log, *order]) for order in (flags, flags[::-1])]
  for script in scripts:
    process = script.finish()
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == 'True'
  assert log.read_text() == 'generated\n'  # by one of them


def write_records(path, records):
  writer = array_record_module.ArrayRecordWriter(str(path), 'group_size:1')
  for record in records:
    writer.write(record)
  writer.close()


def test_array_record_files(tmp_path):
  write_records(tmp_path / 'b.array_record', [b'3', b'4'])
  write_records(tmp_path / 'a.array_record', [b'0', b'1', b'2'])
  for paths in (f'{tmp_path}/*.array_record', f'{tmp_path}/a.*, {tmp_path}/b.*', [f'{tmp_path}/[ab].array_record']):
    source = sources.ArrayRecordSource(paths, lambda record: {'number': int(record)})
    assert len(source) == 5
    assert [example['number'] for example in source.fetch([4, 0, 0, 3])] == [4, 0, 0, 3]
  with pytest.raises(errors.UserError, match='input_path: no file matches'):
    sources.ArrayRecordSource(f'{tmp_path}/*.nothing', lambda record: {})


def test_a_file_is_found_by_its_name_before_that_is_taken_for_a_pattern(tmp_path):
  (tmp_path / 'data[1]').mkdir()
  names = ['data[1]/a.array_record', 'b[0:1].array_record', 'c\\d.array_record', 'a?.array_record']
  for name in names:
    write_records(tmp_path / name, [b'7'])
  write_records(tmp_path / 'ab.array_record', [b'8'])
  for name in names:
    source = sources.ArrayRecordSource(f'{tmp_path}/{name}', lambda record: {'number': int(record)})
    assert source.fetch([0]) == [{'number': 7}] and len(source) == 1, name


class FakeHuggingFaceDataset:
  """`datasets.Dataset` as far as random access goes: a list of numbers gives columns."""

  def __len__(self):
    return 3

  def __getitem__(self, indices):
    return {'text': [f't{i}' for i in indices], 'label': [i % 2 for i in indices]}


def test_hugging_face_columns_become_examples():
  source = sources.HuggingFaceSource(FakeHuggingFaceDataset())
  assert len(source) == 3
  assert source.fetch([2, 1]) == [{'text': 't2', 'label': 0}, {'text': 't1', 'label': 1}]


def _array_source(tmp_path, data_dir):
  return sources.ArraySource({'number': np.arange(5)})


def _tfds_source(tmp_path, data_dir):
  return sources.TfdsSource('letters', 'train', str(data_dir))


def _array_record_source(tmp_path, data_dir):
  write_records(tmp_path / 'a.array_record', [b'0', b'1', b'2'])
  return sources.ArrayRecordSource(f'{tmp_path}/a.array_record', lambda record: {'number': int(record)})


def _hugging_face_source(tmp_path, data_dir):
  datasets = pytest.importorskip('datasets')
  return sources.HuggingFaceSource(datasets.Dataset.from_dict({'number': [3, 1, 2], 'word': ['a', 'b', 'c']}))


@pytest.fixture(params=[_array_source, _tfds_source, _array_record_source, _hugging_face_source])
def source(request, tmp_path, data_dir):
  """Each kind of source, with a few examples."""
  return request.param(tmp_path, data_dir)


def test_an_example_is_read_by_its_number(source):
  expected = source.fetch(range(len(source)))
  for index in (0, len(source) - 1, -1, -len(source), np.int64(1)):
    np.testing.assert_equal(source[index], expected[index])
  for index in (len(source), -len(source) - 1):
    with pytest.raises(IndexError, match=f'requested example {index}, found {len(source)} examples'):
      source[index]
  with pytest.raises(TypeError):
    source[1.0]
  np.testing.assert_equal(list(source), expected)


def test_data_loader_of_pytorch_reads_a_source(source):
  data = pytest.importorskip('torch.utils.data')
  loader = data.DataLoader(source, batch_size=2, shuffle=True, collate_fn=list)
  batches = list(loader)
  assert [len(batch) for batch in batches[:-1]] == [2] * (len(batches) - 1)
  found = sorted(str(example) for batch in batches for example in batch)
  assert found == sorted(str(source[index]) for index in range(len(source)))


def test_hugging_face_makes_a_data_set_of_a_source(tmp_path):
  datasets = pytest.importorskip('datasets')
  source = _array_record_source(tmp_path, None)
  made = datasets.Dataset.from_generator(lambda: (source[index] for index in range(len(source))), cache_dir=tmp_path)
  assert made['number'] == [0, 1, 2]


def test_missing_hugging_face_package_names_the_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, 'datasets', None)
  with pytest.raises(errors.UserError, match=r'pip install official-ext\[huggingface\]'):
    sources.HuggingFaceSource('glue', 'train')


def damage(path, record):
  """Spoils a record of a file of 20 records of 5,000 random bytes, which are stored one after the other."""
  content = bytearray(path.read_bytes())
  rng = np.random.default_rng(record)
  start = content.index(rng.bytes(5000))
  content[start + 100 : start + 120] = bytes(20)
  path.write_bytes(content)


def test_array_record_examples_are_named_by_file_and_record(tmp_path):
  for name, numbers in (('a', range(20)), ('b', range(20, 40))):
    write_records(tmp_path / f'{name}.array_record', [np.random.default_rng(number).bytes(5000) for number in numbers])
  damage(tmp_path / 'b.array_record', 27)
  source = sources.ArrayRecordSource(f'{tmp_path}/*', lambda record: {'size': len(record)})
  bad = []
  for index in range(40):
    try:
      source.fetch([index])
    except Exception:  # pylint: disable=broad-except
      bad.append(source.describe(index))
  assert bad == [f'example 27 ({tmp_path}/b.array_record, record 7)']
  with pytest.raises(errors.UserError, match=rf'^example 27 \({tmp_path}/b.array_record, record 7\) cannot be read: '):
    sources.cached(source)


@pytest.mark.parametrize('content', [b'', b'no such file format' * 10_000])
def test_a_file_that_is_no_array_record_file_is_named(content, tmp_path):
  write_records(tmp_path / 'a.array_record', [b'0', b'1'])
  (tmp_path / 'b.array_record').write_bytes(content)
  with pytest.raises(errors.UserError, match=rf'^input_path: {tmp_path}/b.array_record is damaged, or no ArrayRecord'):
    sources.ArrayRecordSource(f'{tmp_path}/*.array_record', int)


def test_tfds_examples_are_named_by_file_and_record(data_dir):
  whole, part = (sources.TfdsSource('letters', split, data_dir) for split in ('train', 'train[30%:70%]'))
  file = f'{data_dir}/letters/1.0.0/letters-train.array_record-00000-of-00001'
  assert whole.describe(4) == f'example 4 of letters, split train ({file}, record 4)'
  assert part.describe(1) == f'example 1 of letters, split train[30%:70%] ({file}, record 4)'
  np.testing.assert_array_equal(part.fetch([1])[0]['vector'], whole.fetch([4])[0]['vector'])


def test_examples_of_other_sources_are_named_by_number():
  assert sources.ArraySource({'a': np.arange(3)}).describe(2) == 'example 2 of ArraySource'
  dataset = FakeHuggingFaceDataset()
  assert sources.HuggingFaceSource(dataset).describe(2) == 'example 2 of FakeHuggingFaceDataset'
  dataset.cache_files, dataset.split = [{'filename': '/data/x.arrow'}], 'train'
  assert sources.HuggingFaceSource(dataset).describe(2) == (
    'example 2 of FakeHuggingFaceDataset, split train (/data/x.arrow)'
  )
