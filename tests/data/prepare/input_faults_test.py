"""Input that changes, repeats or contradicts itself is refused or reported by its name, never prepared silently."""

import gzip
import json
import os
import shutil

from PIL import Image
import pyarrow
from pyarrow import parquet
import pytest

import official_ext as ext
from official_ext.base import errors
from official_ext.data import json_records
from official_ext.data.prepare import shards
from tests import tiers
from tests.data.prepare import prepared_inputs as inputs

TOO_LONG = b'{"a": "' + b'x' * json_records.MAX_LINE_BYTES + b'"}\n'


def rows(folder):
  source = ext.PreparedRows(str(folder))
  return source.fetch(range(len(source)))


@pytest.mark.tensorflow
@pytest.mark.parametrize('is_done', [True, False])
def test_an_edit_that_keeps_size_and_times_is_another_input(tmp_path, is_done):
  path = inputs.write_lines(tmp_path / 'a.jsonl', [{'n': n} for n in range(10, 90)])
  before = os.stat(path)
  if is_done:
    inputs.prepare(path, tmp_path / 'out', shard_bytes=200)
  else:
    count = iter(range(100))
    with pytest.raises(errors.PreemptedError):
      inputs.prepare(path, tmp_path / 'out', shard_bytes=200, stopped_by=lambda: 'SIGTERM' * (next(count) > 6) or None)
  path.write_text(path.read_text().replace('{"n": 11}', '{"n": 99}'))
  os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
  after = os.stat(path)
  assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
  with pytest.raises(
    errors.UserError, match='out: was begun otherwise; .*: content of the input was [0-9a-f]+, and is '
  ):
    inputs.prepare(path, tmp_path / 'out', shard_bytes=200)
  inputs.prepare(path, tmp_path / 'new', shard_bytes=200)
  assert {'n': 99} in rows(tmp_path / 'new') and {'n': 11} not in rows(tmp_path / 'new')


def test_an_image_that_was_replaced_is_another_input(tmp_path):
  folder = tmp_path / 'images'
  (folder / 'cat').mkdir(parents=True)
  paths = [folder / 'cat' / f'{n}.bmp' for n in range(2)]
  for n, path in enumerate(paths):
    Image.new('RGB', (4, 4), (n, 0, 0)).save(path)
  inputs.prepare(folder, tmp_path / 'out')
  assert paths[0].stat().st_size == paths[1].stat().st_size
  shutil.copyfile(*paths)
  with pytest.raises(errors.UserError, match='content of the input was'):
    inputs.prepare(folder, tmp_path / 'out')


@pytest.mark.tensorflow
def test_input_that_changes_while_it_is_prepared_makes_no_folder(tmp_path, monkeypatch):
  path = inputs.write_lines(tmp_path / 'a.jsonl', [{'n': n} for n in range(10, 90)])
  other = inputs.write_lines(tmp_path / 'b.jsonl', [{'m': n} for n in range(10, 90)])
  text, write = path.read_text(), shards.write_or_report

  def write_and_change(job):
    path.write_text(text.replace('{"n": 88}', '{"n": 99}'))
    return write(job)

  monkeypatch.setattr(shards, 'write_or_report', write_and_change)
  with pytest.raises(errors.UserError, match=f'^{path}: has changed during the preparation; prepare another folder$'):
    inputs.prepare([path, other], tmp_path / 'out', shard_bytes=200)
  monkeypatch.undo()
  with pytest.raises(errors.UserError, match='is not prepared to its end'):
    rows(tmp_path / 'out')
  path.write_text(text)  # What was made of the other content is not there any more.
  done = inputs.prepare([path, other], tmp_path / 'out', shard_bytes=200)
  assert 0 < done.num_there <= len(done.plan.shards) / 2
  assert rows(tmp_path / 'out') == [{name: n} for name in 'nm' for n in range(10, 90)]


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
  """See `prepared_inputs.command`."""
  return inputs.command(capsys, tmp_path, monkeypatch)


def test_an_output_that_is_its_input_is_refused(run, tmp_path):
  path = inputs.write_lines(tmp_path / 'in' / 'a.jsonl', [{'n': 1}])
  (tmp_path / 'link').symlink_to(tmp_path / 'in')
  for source, output in (('in', 'in'), ('in', 'link/'), ('in', './in/../in'), ('in/a.jsonl', 'in/a.jsonl')):
    status, _, err = run(source, output)
    assert status == 2 and err.endswith(': is INPUT and OUTPUT at once; name another folder as OUTPUT\n'), err
  (tmp_path / 'file').write_text('')
  status, _, err = run('in', 'file')
  assert (status, err) == (2, f'error: {tmp_path}/file: OUTPUT is a file; name a folder\n')
  assert sorted(os.listdir(tmp_path / 'in')) == ['a.jsonl'] and json.loads(path.read_text()) == {'n': 1}


def test_the_notes_of_a_preparation_are_no_records(run, tmp_path):
  inputs.write_lines(tmp_path / 'a.jsonl', [{'n': 1}])
  assert run('a.jsonl', 'out')[0] == 0
  status, _, err = run('out', 'again')
  assert (status, err) == (2, 'error: out: was prepared already; name the input that it was made of\n')


@pytest.mark.tensorflow
def test_input_that_is_given_twice_is_reported(run, tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', [{'n': 1}])
  shutil.copyfile(path, tmp_path / 'b.jsonl')
  status, out, _ = run('a.jsonl', 'a.jsonl', 'b.jsonl', 'out')
  assert status == 0 and len(rows(tmp_path / 'out')) == 3
  assert f'warning: INPUT: {path} was given before: its records are prepared more than once\n' in out
  assert f'warning: INPUT: {tmp_path}/b.jsonl has the content of {path}: its records are prepared more' in out
  assert 'warning' not in run('a.jsonl', 'once')[1]


BAD = [
  (b'{"a": 1, "b": 2, "a": 3}', "has the key 'a' more than once"),
  (b'{"a": {"b": [{"c": 1, "c": 1}]}}', "has the key 'c' more than once"),
  (b'{"a": NaN}', 'holds NaN, which is not valid JSON'),
  (b'{"a": [-Infinity]}', 'holds -Infinity, which is not valid JSON'),
  (b'{"a": 1e400}', 'holds the number 1e400, which is too large for a float64'),
  (b'{"a": -1.5E+999}', 'holds the number -1.5E+999, which is too large'),
  (b'{"a": ' + b'9' * 400 + b'.0}', 'holds the number 99999999999999999999, which is too large'),
  (b'{"a": ' + b'9' * 400 + b'}', 'holds the number 99999999999999999999, which is too large'),
  (b'{"a": -2' + b'0' * 308 + b'}', 'holds the number -2000000000000000000, which is too large'),
  (b'{"a": ' + b'9' * 250 + b'e99}', 'holds the number 99999999999999999999, which is too large'),
]


@pytest.mark.tensorflow
@pytest.mark.parametrize(('line', 'message'), BAD)
def test_json_that_is_read_in_several_ways_is_a_bad_record(tmp_path, line, message):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(b'{"a": 1e-400, "b": 1e300}\n' + line + b'\n{"a": 3}\n')
  with pytest.raises(errors.UserError) as error:
    inputs.prepare(path, tmp_path / 'out')
  assert str(error.value).startswith(f'{path}, line 2: {message}')
  done = inputs.prepare(path, tmp_path / 'other', on_bad_example='skip')
  assert (done.rows, done.report.bad_records) == (2, 1) and rows(tmp_path / 'other')[0] == {'a': 0.0, 'b': 1e300}
  (tmp_path / 'a.json').write_bytes(b'[{"a": 1},\n ' + line + b']')
  with pytest.raises(errors.UserError) as error:
    inputs.prepare(tmp_path / 'a.json', tmp_path / 'list')
  assert str(error.value).startswith(f'{tmp_path}/a.json, element 1: {message}')


@pytest.mark.parametrize('name', ['a.parquet', 'a.arrow'])
def test_columns_of_one_name_are_refused(tmp_path, name):
  one = pyarrow.array([1])
  fields = [pyarrow.field('c', pyarrow.int64())] * 2
  structs = pyarrow.ListArray.from_arrays([0, 1], pyarrow.StructArray.from_arrays([one, one], fields=fields))
  tables = {
    "'a'": pyarrow.Table.from_arrays([one, one, one], names=['a', 'b', 'a']),
    "'s.c'": pyarrow.table({'s': structs}),
  }
  for column, table in tables.items():
    if name == 'a.parquet':
      parquet.write_table(table, tmp_path / name)
    else:
      with pyarrow.ipc.new_file(str(tmp_path / name), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(errors.UserError, match=f'^{tmp_path}/{name}: has the column {column} more than once; rename'):
      inputs.prepare(tmp_path / name, tmp_path / f'out{len(column)}')


@pytest.mark.tensorflow
@tiers.parametrize('name', ['a.jsonl', 'a.jsonl.gz'], fast=['a.jsonl.gz'])
def test_a_line_that_is_too_long_is_a_bad_record(tmp_path, name):
  path = tmp_path / name
  content = b'{"a": 1}\n' + TOO_LONG + b'{"a": 3}\n'
  path.write_bytes(gzip.compress(content, 1) if name.endswith('.gz') else content)
  message = f'{path}, line 2: is longer than {json_records.MAX_LINE_BYTES} bytes; a record must fit into that'
  with pytest.raises(errors.UserError) as error:
    inputs.prepare(path, tmp_path / 'out', shard_bytes=10**8)
  assert str(error.value).startswith(message)
  done = inputs.prepare(path, tmp_path / 'other', on_bad_example='skip', shard_bytes=10**6)
  assert rows(tmp_path / 'other') == [{'a': 1}, {'a': 3}] and done.report.named[0].startswith(message)
