"""Records of real files: by number, under any name, without reading all; what is damaged is named with its line."""

import errno
import gzip
import json
import os

import numpy as np
import pyarrow
from pyarrow import parquet
import pytest

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import json_records
from official_ext.data import record_files
from tests.language.text import text_fixtures

RECORDS = [{'n': n, 'text': f'text {n} ü🎉' * (n % 5), 'nested': [{'a': n}, {'a': None}]} for n in range(250)]
LINES = ''.join(json.dumps(record, ensure_ascii=n % 2 == 0) + '\n' for n, record in enumerate(RECORDS))


def all_of(records):
  return [records.read(index) for index in range(len(records))]


def write_arrow(path, stream=True):
  table = pyarrow.Table.from_pylist(RECORDS)
  new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
  with new(str(path), table.schema) as writer:
    writer.write_table(table, max_chunksize=64)


def write(folder, kind):
  """RECORDS in a file of a kind."""
  path = folder / f'a, [b]*? {{c}}\\ü.{kind}'
  if kind == 'jsonl':
    path.write_text(LINES)
  elif kind == 'jsonl.gz':
    path.write_bytes(gzip.compress(LINES.encode()))
  elif kind == 'json':
    path.write_text('\ufeff ' + json.dumps(RECORDS))
  elif kind == 'parquet':
    parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path, row_group_size=60)
  else:
    write_arrow(path, stream=kind == 'arrow')
    if kind == 'file.arrow':
      write_arrow(path, stream=False)
  return str(path)


@pytest.mark.parametrize('kind', ['jsonl', 'jsonl.gz', 'json', 'parquet', 'arrow', 'file.arrow'])
def test_every_kind_gives_the_same_records_in_any_order(tmp_path, kind):
  path = write(tmp_path, kind)
  records = record_files.open_records(path)
  assert all_of(records) == RECORDS
  order = np.random.default_rng(0).permutation(250).tolist()
  assert [records.read(index) for index in order] == [RECORDS[index] for index in order]
  assert records.files == [path]
  expected = {'jsonl': 'line 8', 'jsonl.gz': 'line 8', 'json': 'element 7'}.get(kind, 'row 7')
  assert records.place(7) in (f'{path}, {expected}', f'{path}, element 7')
  first = record_files.open_records(path, at_most=5)
  assert all_of(first) == RECORDS[:5] and first.digest != records.digest


def test_records_are_those_of_the_package_datasets(tmp_path):
  datasets = pytest.importorskip('datasets')
  whole = datasets.Dataset.from_list(RECORDS)
  whole.save_to_disk(tmp_path / 'one', num_shards=3)
  parts = {'train': whole.select(range(200)), 'test': whole.filter(lambda record: record['n'] >= 200)}
  datasets.DatasetDict(parts).save_to_disk(tmp_path / 'several')
  assert all_of(record_files.open_records(str(tmp_path / 'one'))) == RECORDS
  assert len(record_files.open_records(str(tmp_path / 'one')).files) == 3
  assert all_of(record_files.open_records(str(tmp_path / 'several'), 'train')) == RECORDS[:200]
  assert all_of(record_files.open_records(str(tmp_path / 'several'), 'test')) == RECORDS[200:]
  assert len(record_files.open_records(str(tmp_path / 'several' / 'test'))) == 50
  for split, hint in (('tran', 'did you mean train'), ('', 'there are train, test')):
    with pytest.raises(errors.UserError) as error:
      record_files.open_records(str(tmp_path / 'several'), split, field='task.train_data.input_path')
    assert str(error.value).startswith(f'task.train_data.split: {tmp_path}/several has no split {split!r}; {hint}')
  datasets.Dataset.from_list(RECORDS, split='train').save_to_disk(tmp_path / 'named')
  assert all_of(record_files.open_records(str(tmp_path / 'named'), 'train')) == RECORDS
  with pytest.raises(errors.UserError, match="data.split: 'test': .*/named holds the split 'train' alone"):
    record_files.open_records(str(tmp_path / 'named'), 'test', field='data.input_path')


@pytest.mark.tensorflow
def test_a_folder_of_files_is_read_in_the_order_of_names(tmp_path):
  data = tmp_path / 'a [folder], of files' / 'data'
  data.mkdir(parents=True)
  table = pyarrow.Table.from_pylist(RECORDS)
  for number in range(3):
    part = table.slice(100 * number, 100)
    parquet.write_table(part, data / f'{"train" if number < 2 else "test"}-0000{number}-of-00003.parquet')
  (data / 'README.md').write_text('# not data')
  folder = str(data.parent)
  assert all_of(record_files.open_records(folder, 'train')) == RECORDS[:200]
  with pytest.raises(errors.UserError, match=r'data.split: .*of files has several splits: test, train; name one$'):
    record_files.open_records(folder, field='data.input_path')
  with pytest.raises(errors.UserError, match="holds no files that begin with 'dev'$"):
    record_files.open_records(folder, 'dev')
  data.rename(tmp_path / 'plain')
  files = record_files.open_records(f'{tmp_path}/plain/t*0[12]-*.parquet').files
  assert [os.path.basename(file) for file in files] == ['test-00002-of-00003.parquet', 'train-00001-of-00003.parquet']


def test_several_files_stand_one_behind_the_other(tmp_path):
  for name in 'ba':
    (tmp_path / f'{name}.jsonl').write_text(f'{{"name": "{name}0"}}\n{{"name": "{name}1"}}')
  for given in (f'{tmp_path}/b.jsonl, {tmp_path}/a.jsonl', [f'{tmp_path}/b.jsonl', f'{tmp_path}/a.jsonl']):
    records = record_files.open_records(given)
    assert [record['name'] for record in all_of(records)] == ['b0', 'b1', 'a0', 'a1']
    assert records.place(2) == f'{tmp_path}/a.jsonl, line 1'
  assert len(record_files.open_records(given, at_most=3)) == 3


@pytest.mark.parametrize('block', [1, 7, 64, 2**23])
def test_lines_are_found_wherever_blocks_end(tmp_path, monkeypatch, block):
  monkeypatch.setattr(json_records, '_BLOCK', block)
  path = tmp_path / f'{block}.jsonl'
  path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n \t\n{"a": "\xe2\x80\xa8"}\n\n\n  {"a": 3}  \n{"a": 4}')
  records = json_records.JsonLines(str(path))
  assert [record['a'] for record in all_of(records)] == [1, '\u2028', 3, 4]
  assert [records.place(index).rpartition(' ')[2] for index in range(4)] == ['1', '4', '7', '8']
  assert [record['a'] for record in all_of(json_records.JsonLines(str(path), 2))] == [1, '\u2028']
  path.write_bytes(b'')
  assert len(json_records.JsonLines(str(path))) == 0


@pytest.mark.parametrize(
  'line, message',
  [
    (b'{"a": 1', 'is invalid JSON: '),
    (b'{"a": "\xff"}', 'is not UTF-8 at byte 7'),
    (b'[1, 2]', 'is a list; expected a JSON object'),
    (b'null', 'is null; expected a JSON object'),
    (b'[' * 100000, 'is invalid JSON: its lists are nested too deeply'),
    (b'{"a": ' + b'1' * 5000 + b'}', 'holds the number 11111111111111111111, which is too large for a float64'),
  ],
)
def test_a_damaged_line_is_named_and_others_are_read(tmp_path, line, message):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(b'{"a": 0}\n\n' + line + b'\n{"a": 2}\n')
  records = record_files.open_records(str(path))
  with pytest.raises(bad_examples.BadExampleError) as error:
    records.read(1)
  assert str(error.value).startswith(f'{path}, line 3: {message}') and '\n' not in str(error.value)
  assert (records.read(0), records.read(2)) == ({'a': 0}, {'a': 2})


@pytest.mark.parametrize(
  'name, content, message',
  [
    ('a.parquet', b'PAR1 no', 'cannot be read: Parquet file size is 7 bytes'),
    ('a.arrow', b'no arrow', 'cannot be read: '),
    ('a.jsonl.gz', gzip.compress(LINES.encode())[:-20], 'cannot be read: Compressed file ended'),
    ('b.jsonl.gz', b'not packed', 'cannot be read: '),
    ('c.jsonl.gz', text_fixtures.damaged_inside(LINES.encode()), 'cannot be read: Error -3'),
    ('c.json.gz', text_fixtures.damaged_inside(json.dumps(RECORDS).encode()), 'cannot be read: Error -3'),
    ('a.json', b'[{"a": 1},', 'is invalid JSON: '),
    ('c.json', b'[' * 100_000, 'cannot be read: its lists are nested too deeply'),
    ('d.json.gz', gzip.compress(b'[' * 100_000), 'cannot be read: its lists are nested too deeply'),
    ('b.json', b'[{"a": 1}, 2]', 'is a number; expected a JSON object'),
    ('a.xml', b'a,b', 'is of an unknown kind; its name should end with one of .jsonl'),
  ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, message):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(errors.UserError) as error:
    record_files.open_records(str(tmp_path / name), field='data.input_path')
  assert str(error.value).startswith(f'data.input_path: {tmp_path}/{name}') and message in str(error.value)
  assert '\n' not in str(error.value)


@pytest.mark.tensorflow
def test_files_that_are_not_there_are_named(tmp_path):
  with pytest.raises(errors.UserError, match=r'data.input_path: .*/none.jsonl: No such file or directory$'):
    record_files.open_records(str(tmp_path / 'none.jsonl'), field='data.input_path')
  with pytest.raises(errors.UserError, match='data.input_path: file://.*/a.parquet: Parquet and Arrow are read from'):
    (tmp_path / 'a.parquet').write_bytes(b'')
    record_files.open_records(f'file://{tmp_path}/a.parquet', field='data.input_path')
  (tmp_path / 'a.jsonl').write_text(LINES)
  assert all_of(record_files.open_records(f'file://{tmp_path}/a.jsonl')) == RECORDS
  with pytest.raises(errors.UserError, match='data.input_path: is empty; expected files of JSON lines'):
    record_files.open_records('', field='data.input_path')


def test_folders_that_may_not_be_read_are_named(tmp_path, monkeypatch):
  (tmp_path / 'data').mkdir()
  (tmp_path / 'a.jsonl').write_text(LINES)
  names = os.listdir

  def listdir(folder):
    if str(folder) == hidden:
      raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
    return names(folder)

  monkeypatch.setattr(os, 'listdir', listdir)
  for hidden in (str(tmp_path), f'{tmp_path}/data'):
    with pytest.raises(errors.UserError, match=f'^data.input_path: {hidden}: cannot be read: Permission denied$'):
      record_files.open_records(str(tmp_path), field='data.input_path')


def test_a_file_that_has_changed_is_read_anew(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"a": 1}\n')
  before = record_files.open_records(str(path))
  assert record_files.open_records(str(path)).digest == before.digest
  path.write_text('{"a": 2}\n')
  os.utime(path, ns=(0, 0))
  after = record_files.open_records(str(path))
  assert (after.read(0), after.digest == before.digest) == ({'a': 2}, False)


def test_a_file_whose_times_were_set_back_is_read_anew(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"a": 1}\n')
  before, state = record_files.open_records(str(path)), os.stat(path)
  path.write_text('{"a": 2}\n')
  os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
  after = record_files.open_records(str(path))
  assert (after.read(0), after.digest == before.digest) == ({'a': 2}, False)


def test_a_file_that_is_named_twice_is_reported(tmp_path, caplog):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"a": 1}\n')
  (tmp_path / 'link.jsonl').symlink_to(path)
  given = [str(path), str(path), str(tmp_path / 'link.jsonl')]
  assert len(record_files.open_records(given, field='task.train_data.input_path')) == 3
  start = 'task.train_data.input_path: '
  assert caplog.messages == [
    f'{start}{path} is named more than once: its records are read as often.',
    f'{start}{tmp_path}/link.jsonl is named more than once, as {path} too: its records are read as often.',
  ]
  caplog.clear()
  record_files.open_records(str(path))
  assert not caplog.messages


@pytest.mark.parametrize('block', [3, 7, 64])
def test_blank_and_long_lines_are_distinguished_wherever_blocks_end(tmp_path, monkeypatch, block):
  monkeypatch.setattr(json_records, '_BLOCK', block)
  monkeypatch.setattr(json_records, 'MAX_LINE_BYTES', 40)
  path = tmp_path / 'a.jsonl'
  lines = ['', ' ' * 30, '{"a": 1}', '{"a": "' + 'x' * 60 + '"}', '\t' * 20, ' ' * 12 + '{"a": 2}' + ' ' * 12, ' ' * 9]
  path.write_text('\n'.join(lines))
  records = record_files.open_records(str(path))
  assert [records.place(index) for index in range(len(records))] == [f'{path}, line {n}' for n in (3, 4, 6)]
  assert (records.read(0), records.read(2)) == ({'a': 1}, {'a': 2})
  with pytest.raises(bad_examples.BadExampleError, match=f'^{path}, line 4: is longer than 40 bytes; '):
    records.read(1)
  for size in (1, 5, 23, 200):
    parts = [json_records.JsonLinesPart(str(path), at, at + size) for at in range(0, path.stat().st_size, size)]
    found = [(part, index) for part in parts for index in range(len(part))]
    assert [part.place(index) for part, index in found] == [f'{path}, line {n}' for n in (3, 4, 6)]
    part, index = found[1]
    with pytest.raises(bad_examples.BadExampleError, match='line 4: is longer than 40 bytes'):
      part.read(index)


def test_reading_from_many_threads_gives_each_its_own(tmp_path):
  from concurrent import futures  # pylint: disable=g-import-not-at-top

  for kind in ('jsonl', 'parquet'):
    records = record_files.open_records(write(tmp_path, kind))
    with futures.ThreadPoolExecutor(8) as pool:
      indices = [(index * 37) % 250 for index in range(1000)]
      assert [record['n'] for record in pool.map(records.read, indices)] == indices
