"""Every type of Arrow that Hugging Face's `datasets` writes: the same records as from `datasets` itself."""

import glob
import json

import pytest

pytest.importorskip('datasets', reason="needs the test extra: pip install 'official-ext[test]'")
import datasets
from datasets import Features
from datasets import Json
from datasets import LargeList
from datasets import List
from datasets import Value
import pyarrow
from pyarrow import parquet

from official_ext.data import record_files
from official_ext.data import table_records

CASES = {
  'json': (Json(), {'a': [1, {'b': None}], 'c': 'ü'}),
  'a text in JSON': (Json(), 'text'),
  'a list of JSON': (List(Json()), [{'x': 1}, 'text', 3, None]),
  'a large list of JSON': (LargeList(Json()), [{'x': 1}]),
  'JSON in structs in lists': (List({'j': Json(), 'x': Value('int32')}), [{'j': {'y': [1]}, 'x': 2}]),
  'large string': (Value('large_string'), 'text'),
  'string view': (Value('string_view'), 'text'),
  'large list': (LargeList(Value('string')), ['a', None]),
  'list of fixed size': (List(Value('float32'), length=2), [1.0, 2.0]),
  'class label': (datasets.ClassLabel(names=['a', 'b']), 1),
  'array': (datasets.Array2D((2, 2), 'int32'), [[1, 2], [3, 4]]),
  'bytes': (Value('large_binary'), b'\x00'),
  'translation': (datasets.Translation(languages=['de', 'en']), {'de': 'a', 'en': 'b'}),
}


@pytest.mark.parametrize('case', CASES)
def test_records_are_those_of_datasets(case, tmp_path):
  feature, value = CASES[case]
  data = datasets.Dataset.from_list([{'x': value}, {'x': None}], features=Features({'x': feature}))
  data.to_parquet(tmp_path / 'x.parquet')
  data.save_to_disk(tmp_path / 'disk')
  (arrow,) = glob.glob(f'{tmp_path}/disk/*.arrow')
  for rows in (table_records.ParquetRows(str(tmp_path / 'x.parquet')), table_records.ArrowRows(arrow)):
    assert [rows.read(number) for number in range(2)] == [data[0], data[1]]


def test_a_feature_json_in_the_metadata_alone_is_read(tmp_path):
  table = pyarrow.table({'x': ['{"a": 1}', None], 'plain': ['{"a": 1}', '']})
  features = {'x': {'_type': 'Json'}, 'plain': {'dtype': 'string', '_type': 'Value'}}
  metadata = {b'huggingface': json.dumps({'info': {'features': features}}).encode()}
  parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / 'x.parquet')
  rows = table_records.ParquetRows(str(tmp_path / 'x.parquet'))
  assert [rows.read(n) for n in range(2)] == [{'x': {'a': 1}, 'plain': '{"a": 1}'}, {'x': None, 'plain': ''}]
  assert rows.digest.endswith('-json')
  parquet.write_table(table.replace_schema_metadata({b'huggingface': b'{'}), tmp_path / 'y.parquet')
  assert table_records.ParquetRows(str(tmp_path / 'y.parquet')).read(0)['x'] == '{"a": 1}'


@pytest.mark.parametrize(
  'array, expected',
  [
    (pyarrow.array(['a', 'b']).dictionary_encode(), ['a', 'b']),
    (pyarrow.array([['a'], []], pyarrow.list_view(pyarrow.string())), [['a'], []]),
    (pyarrow.array([['a'], []], pyarrow.large_list_view(pyarrow.string())), [['a'], []]),
    (pyarrow.RunEndEncodedArray.from_arrays([1, 2], ['a', 'b']), ['a', 'b']),
    (pyarrow.ExtensionArray.from_storage(pyarrow.bool8(), pyarrow.array([1, 0], pyarrow.int8())), [True, False]),
  ],
  ids=['dictionary', 'list view', 'large list view', 'runs', 'bool8'],
)
def test_other_layouts_of_arrow_are_read(array, expected, tmp_path):
  table = pyarrow.table({'x': array})
  with pyarrow.OSFile(str(tmp_path / 'x.arrow'), 'wb') as f, pyarrow.ipc.new_stream(f, table.schema) as writer:
    writer.write_table(table)
  records = record_files.open_records(str(tmp_path / 'x.arrow'))
  assert [records.read(number)['x'] for number in range(2)] == expected
