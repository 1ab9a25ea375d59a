"""Preparations: what they hold is the input; the same bytes however they were made; what is refused."""

import contextlib
import gzip
import io
import json
import time

import numpy as np
from PIL import Image
import pyarrow
from pyarrow import parquet
import pytest
import tensorflow as tf

import official_ext as ext
from official_ext.base import errors
from official_ext.data import input_files
from official_ext.data import row_encoding
from official_ext.data import step_indexed
from official_ext.data.prepare import engines
from official_ext.data.prepare import pieces as pieces_lib
from official_ext.data.prepare import planning
from official_ext.data.prepare import preparing
from official_ext.data.prepare import shards
from official_ext.language.text import text_formats
from official_ext.language.text import token_rows
from tests import disks
from tests.data.prepare import prepared_inputs as inputs
from tests.language.text import text_fixtures

tokenizer = text_fixtures.tokenizer
SIZES = {'a': 300, 'b': 100, 'c': 600}
RECORDS = [{'n': n, 'text': f'ü{n}', 'list': [n, {'a': None}]} for n in range(300)]


def examples(folder):
  source = ext.PreparedRows(str(folder))
  return source.fetch(range(len(source)))


def test_records_of_several_files_with_odd_names_are_there_in_order(tmp_path):
  folder = tmp_path / 'in, [1]*'
  inputs.write_lines(folder / 'a [b]?.jsonl', RECORDS[:120])
  inputs.write_lines(folder / 'b, c.jsonl', RECORDS[120:])
  done = inputs.prepare(folder, tmp_path / 'out, [2]*', shard_bytes=1000)
  assert done.rows == 300 and len(done.plan.shards) > 8
  assert examples(tmp_path / 'out, [2]*') == RECORDS
  source = ext.PreparedRows(str(tmp_path / 'out, [2]*'), lambda example: {'n': np.int64(example['n'])})
  data = ext.DataConfig(is_training=False, global_batch_size=100)
  batches = list(step_indexed.build_dataset(source, data).as_numpy_iterator())
  assert np.concatenate([batch['n'] for batch in batches]).tolist() == list(range(300))
  assert source.describe(0) == f'example 0 ({tmp_path}/out, [2]*/{done.plan.shards[0].name}, record 0)'


def test_bytes_of_tables_come_back(tmp_path):
  rows = [
    {'image': {'bytes': bytes([n, 0, 0]), 'path': None}, 'label': n, 'parts': [b'', b'\0', b'a']} for n in range(9)
  ]
  parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / 'train-00000-of-00001.parquet', row_group_size=2)
  inputs.prepare(tmp_path / 'train-00000-of-00001.parquet', tmp_path / 'out', shard_bytes=1)
  assert examples(tmp_path / 'out') == rows


def test_a_folder_of_datasets(tmp_path):
  datasets = pytest.importorskip('datasets')
  records = [{'n': n, 'text': f'ü{n}', 'list': [{'a': n}]} for n in range(300)]
  parts = {'train': datasets.Dataset.from_list(records[:200]), 'test': datasets.Dataset.from_list(records[200:])}
  datasets.DatasetDict(parts).save_to_disk(tmp_path / 'in', num_shards={'train': 3, 'test': 1})
  with pytest.raises(errors.UserError, match='has no split'):
    inputs.prepare(tmp_path / 'in', tmp_path / 'out')
  inputs.prepare(tmp_path / 'in', tmp_path / 'out', split='train')
  assert examples(tmp_path / 'out') == records[:200]


def test_images_and_their_classes(tokenizer, tmp_path):
  folder = inputs.write_images(tmp_path / 'images')
  done = inputs.prepare(folder, tmp_path / 'out', shard_bytes=200)
  assert len(done.plan.shards) > 2
  source = ext.PreparedRows(str(tmp_path / 'out'))
  assert source.labels == ['cat [1]', 'dog *'] and len(source) == 10
  found = [(Image.open(io.BytesIO(e['image'])).getpixel((0, 0))[:2], e['label']) for e in source.fetch(range(10))]
  assert found == [((n, label), label) for label in range(2) for n in range(5)]
  (batch,) = step_indexed.build_dataset(source, ext.DataConfig(is_training=False, global_batch_size=10)).take(1)
  assert tf.io.decode_image(batch['image'][9]).shape == (4, 8, 3)
  with pytest.raises(errors.UserError, match='--tokenizer: has no meaning for'):
    planning.make_plan([str(folder)], planning.Settings(), token_rows.TokenRows(text_formats.TextFields(), tokenizer))


def test_an_image_that_cannot_be_decoded_is_named_or_left_out(tmp_path):
  folder = inputs.write_images(tmp_path / 'images')
  broken = folder / 'cat [1]' / '3.png'
  broken.write_bytes(broken.read_bytes()[:-14])  # Its pixels are there.
  with pytest.raises(errors.UserError) as error:
    inputs.prepare(folder, tmp_path / 'out')
  assert str(error.value).startswith(f'{broken}: ') and '--on_bad_example=skip' in str(error.value)
  done = inputs.prepare(folder, tmp_path / 'other', on_bad_example='skip')
  assert (done.rows, done.report.bad_records) == (9, 1)
  assert done.report.warnings('out')[0].startswith(f'out: 1 of 10 records are bad, and are left out: {broken}')


def test_bad_records_are_named_by_file_and_line_or_left_out(tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', RECORDS)
  lines = path.read_text().splitlines()
  lines[200], lines[250] = '{"a": oops}', '{"a": "\\ud800"}'
  path.write_text('\n'.join(lines))
  with pytest.raises(
    errors.UserError, match=rf'^{path}, line 201: is invalid JSON: .*; repair or replace it, or give --on_bad'
  ):
    inputs.prepare(path, tmp_path / 'out', shard_bytes=1000)
  done = inputs.prepare(path, tmp_path / 'other', shard_bytes=1000, on_bad_example='skip')
  assert (done.rows, done.report.bad_records, done.num_there) == (298, 2, 0)
  # As the error says; what was done before it stays.
  done = inputs.prepare(path, tmp_path / 'out', shard_bytes=1000, on_bad_example='skip')
  assert (done.rows, done.report.bad_records) == (298, 2) and done.num_there > 5
  assert inputs.shard_bytes(tmp_path / 'out') == inputs.shard_bytes(tmp_path / 'other')
  with pytest.raises(errors.UserError, match='on_bad_example was "skip", and is "error" now'):
    inputs.prepare(path, tmp_path / 'out', shard_bytes=1000)
  assert [text.split(': ')[0] for text in done.report.named] == [f'{path}, line {n}' for n in (201, 251)]
  assert examples(tmp_path / 'other') == RECORDS[:200] + RECORDS[201:250] + RECORDS[251:]
  (tmp_path / 'none.jsonl').write_text('x\n')
  with pytest.raises(errors.UserError, match='none of the 1 records can be used\n.* left out: .*, line 1: is'):
    inputs.prepare(tmp_path / 'none.jsonl', tmp_path / 'none', on_bad_example='skip')
  # Nothing is in that folder: it may be that of other input.
  assert [path.name for path in (tmp_path / 'none').iterdir()] == ['.prepare.lock']
  (tmp_path / 'none.jsonl').write_text('{"a": 1}\n{"a": oops}\n')
  with pytest.raises(errors.UserError, match='none.jsonl, line 2: is invalid JSON'):
    inputs.prepare(tmp_path / 'none.jsonl', tmp_path / 'none')
  (tmp_path / 'none.jsonl').write_text('{"a": 1}\n{"a": 22}\n')
  assert inputs.prepare(tmp_path / 'none.jsonl', tmp_path / 'none').rows == 2


def test_the_same_bytes_in_any_order_and_only_what_is_missing_is_made_again(tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', RECORDS)
  first, second = (tmp_path / name for name in ('first', 'second'))
  inputs.prepare(path, first, shard_bytes=1000)
  count = iter(range(10**6))
  with pytest.raises(errors.PreemptedError, match='SIGTERM: 3 of 17 shards are done'):
    inputs.prepare(
      path, second, shard_bytes=1000, reverse=True, stopped_by=lambda: 'SIGTERM' * (next(count) > 6) or None
    )
  with pytest.raises(errors.UserError, match='is not prepared to its end'):
    ext.PreparedRows(str(second))
  done = inputs.prepare(path, second, shard_bytes=1000)
  assert done.num_there == 4  # That which came with the signal too.
  assert inputs.shard_bytes(first) == inputs.shard_bytes(second)
  assert (first / 'prepared.json').read_bytes() == (second / 'prepared.json').read_bytes()
  # What was damaged, lost or never renamed is made anew, and nothing else.
  names = sorted(inputs.shard_bytes(second))
  content = bytearray((second / names[3]).read_bytes())
  content[100] ^= 1
  (second / names[3]).write_bytes(content)
  (second / names[4]).unlink()
  (second / f'{names[5]}.json').write_text('{')
  (second / f'{names[6]}.other-1.partial').write_text('half')
  assert inputs.prepare(path, second, shard_bytes=1000).num_there == 17 - 3
  assert inputs.shard_bytes(first) == inputs.shard_bytes(second)
  assert not list(second.glob('*.partial'))


def test_other_settings_or_other_input_are_refused_with_what_differs(tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', RECORDS)
  inputs.prepare(path, tmp_path / 'out', shard_bytes=1000)
  with pytest.raises(
    errors.UserError, match='otherwise; name another folder, or: shard_bytes was 1000, and is 2000 now'
  ):
    inputs.prepare(path, tmp_path / 'out', shard_bytes=2000)
  inputs.write_lines(path, RECORDS[:-1])
  with pytest.raises(errors.UserError, match=r'bytes of the input was \d+, and is \d+ now'):
    inputs.prepare(path, tmp_path / 'out', shard_bytes=1000)
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine/thesis.txt').write_text('')
  with pytest.raises(errors.UserError, match='mine: holds thesis.txt already'):
    inputs.prepare(path, tmp_path / 'mine')


def test_a_folder_of_a_version_that_noted_no_content_is_refused_as_such(tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', RECORDS)
  inputs.prepare(path, tmp_path / 'out', shard_bytes=1000)
  plan = json.loads((tmp_path / 'out/plan.json').read_text())
  del plan['inputs']['content']
  (tmp_path / 'out/plan.json').write_text(json.dumps(plan))
  with pytest.raises(errors.UserError) as error:
    inputs.prepare(path, tmp_path / 'out', shard_bytes=1000)
  assert str(error.value) == (
    f'{tmp_path}/out: was begun by an older version, which did not note the content of its input; name another folder'
  )


@pytest.mark.parametrize(
  ('files', 'expected'),
  [
    ({}, 'in: holds no files that end with one of .jsonl'),
    ({'a.xml': 'a'}, 'in: holds no files'),
    ({'a.jsonl': ''}, 'none of the 0 records can be used'),
    ({'train.jsonl': '{}\n', 'test.jsonl': '{}\n'}, '^--split: .*/in has several splits: test, train; name one'),
    ({'a.parquet': 'PAR1'}, 'a.parquet: cannot be read'),
    ({'a.json': '[1]'}, 'a.json, element 0: is a number; expected a JSON object'),
  ],
)
def test_input_that_is_none(files, expected, tmp_path):
  (tmp_path / 'in').mkdir()
  for name, text in files.items():
    (tmp_path / 'in' / name).write_text(text)
  with pytest.raises(errors.UserError, match=expected):
    inputs.prepare(tmp_path / 'in', tmp_path / 'out')


def test_a_full_disk_ends_it_in_a_line_and_leaves_no_half_shard(tmp_path):
  records = [{'text': np.random.default_rng(n).bytes(3000).hex()} for n in range(600)]
  path = inputs.write_lines(tmp_path / 'a.jsonl', records)
  with disks.small(tmp_path / 'disk', 2048) as disk:
    folder = disk.folder / 'out'
    with pytest.raises(
      errors.StorageError, match=rf'^{folder}/rows-\d+-of-\d+.array_record.*: .*No space left on device'
    ):
      inputs.prepare(path, folder, shard_bytes=500_000)
    there = sorted(entry.name for entry in folder.iterdir())
    assert not [name for name in there if name.endswith('.partial')] and 0 < len(inputs.shard_bytes(folder)) < 8
    for name, content in inputs.shard_bytes(folder).items():
      assert len(content) == json.loads((folder / f'{name}.json').read_text())['bytes']


def test_a_shard_that_was_written_elsewhere_is_reported(tmp_path, monkeypatch):
  path = inputs.write_lines(tmp_path / 'a.jsonl', RECORDS)
  write = shards.write_or_report

  def write_elsewhere(job):
    (tmp_path / 'other').mkdir(exist_ok=True)
    return write({**job, 'folder': str(tmp_path / 'other')})

  monkeypatch.setattr(shards, 'write_or_report', write_elsewhere)
  shard = tmp_path / 'out' / 'rows-00000-of-00001.array_record'
  with pytest.raises(errors.StorageError, match=rf'^{shard}: has been written, and No such file or directory; '):
    inputs.prepare(path, tmp_path / 'out')


def test_what_a_prepared_folder_lacks_is_reported(tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', RECORDS)
  inputs.prepare(path, tmp_path / 'out', shard_bytes=1000)
  shard = next((tmp_path / 'out').glob('*.array_record'))
  content = shard.read_bytes()
  shard.write_bytes(content[:-1])
  with pytest.raises(errors.UserError, match=rf'^input_path: {shard}: has {len(content) - 1} bytes in place of'):
    input_files.read_prepared(str(tmp_path / 'out'))
  shard.unlink()
  with pytest.raises(errors.UserError, match=rf'^input_path: {shard}: cannot be read: No such file'):
    input_files.read_prepared(str(tmp_path / 'out'))
  with pytest.raises(errors.UserError, match='has no prepared.json; `official-ext prepare` makes such a folder'):
    ext.PreparedRows(str(tmp_path / 'nothing'))


@pytest.mark.parametrize('value', [{'a': object()}, {'\0': 1}, {1: 2}, {'a': [{'b': {1, 2}}]}, {'a': '\ud800'}])
def test_what_is_no_json_value_and_no_bytes_is_refused(value):
  with pytest.raises(ValueError, match='expected|surrogate'):
    row_encoding.encode_example(value)


DEEP = b'[' * 100_000


@pytest.mark.parametrize('texts', [False, True])
@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    ('a.jsonl.gz', text_fixtures.damaged_inside(b'{"text": "a"}\n' * 100), 'cannot be read: Error -3 while'),
    ('a.json.gz', text_fixtures.damaged_inside(b'[]'), 'cannot be read: Error -3 while'),
    ('b.jsonl.gz', gzip.compress(b'{"text": "a"}\n' * 100)[:-20], 'cannot be read: Compressed file ended'),
    ('a.json', DEEP, 'cannot be read: its lists are nested too deeply'),
    ('b.json.gz', gzip.compress(DEEP), 'cannot be read: its lists are nested too deeply'),
    ('a.jsonl', DEEP, 'is invalid JSON: its lists are nested too deeply'),
    ('c.jsonl.gz', gzip.compress(DEEP), 'is invalid JSON: its lists are nested too deeply'),
  ],
  # Not from the contents: gzip notes the time, and every process that collects the tests must find the same names.
  ids=['damaged lines', 'damaged', 'cut off', 'deep', 'deep gzip', 'deep lines', 'deep lines gzip'],
)
def test_damaged_and_deep_input_is_named(name, content, message, texts, tmp_path, tokenizer):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(errors.UserError) as error:
    inputs.prepare(tmp_path / name, tmp_path / 'out', tokenizer if texts else None)
  line = str(error.value)
  assert (
    line.startswith((f'{tmp_path}/{name}: {message}', f'{tmp_path}/{name}, line 1: {message}')) and '\n' not in line
  )


def test_reports_within_shards_become_shares_and_the_time_left(monkeypatch):
  """Shards of 300, 100 and 600 bytes; the second one existed."""
  now = [50.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  pieces = [planning.Shard(name, (pieces_lib.Piece('a', 'bytes', 0, 1, size),)) for name, size in SIZES.items()]
  plan = planning.Plan('records', {}, {}, (), (), tuple(pieces))
  shown = []
  progress = preparing._Progress(plan, lambda text, is_last: shown.append((text, is_last)))
  progress.add({'name': 'b', 'was_there': True, 'note': {}})
  now[0] += 10.0
  progress.note({'name': 'a', 'share': 0.5, 'records': 20})
  progress.note({'name': 'c', 'share': 0.25, 'records': 30})
  now[0] += 10.0
  progress.add({'name': 'a', 'was_there': False, 'note': {'report': {'records': 40}}})
  progress.add({'name': 'c', 'was_there': False, 'note': {'report': {'records': 160}}})
  assert shown == [
    ('1 of 3 shards (1 existed), 10 %', False),
    # 150 of 900 bytes in 10 s: 750 bytes are left.
    ('1 of 3 shards (1 existed), 25 %, 20 records, 2 a second, 0:00:50 left', False),
    ('1 of 3 shards (1 existed), 40 %, 50 records, 5 a second, 0:00:20 left', False),
    # 450 of 900 bytes in 20 s.
    ('2 of 3 shards (1 existed), 55 %, 70 records, 4 a second, 0:00:20 left', False),
    ('3 of 3 shards (1 existed), 200 records, 10 a second', True),
  ]


def test_a_shard_reports_how_far_it_is_and_has_the_same_bytes(tmp_path, monkeypatch):
  monkeypatch.setattr(shards, '_REPORT_SECONDS', 0.0)
  path = inputs.write_lines(tmp_path / 'a.jsonl', RECORDS)
  inputs.prepare(path, tmp_path / 'first')
  plan = planning.make_plan([str(path)], planning.Settings())
  (tmp_path / 'second').mkdir()
  reports = []
  answer = shards.write_or_report(plan.job(0, str(tmp_path / 'second')), reports.append)
  assert answer['end'] == shards.DONE
  assert [report['records'] for report in reports] == list(range(len(RECORDS)))
  assert reports[len(RECORDS) // 2] == {
    'name': answer['name'],
    'end': shards.UNDER_WAY,
    'records': len(RECORDS) // 2,
    'share': 0.5,
  }
  assert inputs.shard_bytes(tmp_path / 'first') == inputs.shard_bytes(tmp_path / 'second')


def answers_of_parts(plan, folder, number=3):
  (job,) = (plan.job(0, str(folder)),)
  return job, [shards.write_or_report(json.loads(json.dumps(part))) for part in shards.divided(job, number)]


@pytest.mark.parametrize('kind', ['records', 'images', 'texts'])
def test_a_shard_of_parts_has_the_bytes_and_the_note_of_one_that_is_written_whole(
  kind, tmp_path, monkeypatch, tokenizer
):
  monkeypatch.setattr(shards, '_LEAST_PART_BYTES', 1)
  row_format, settings = None, planning.Settings(on_bad_example='skip')
  if kind == 'images':
    path = inputs.write_images(tmp_path / 'in', number=7)
    (path / 'cat [1]' / '2.png').write_bytes(b'not an image')
  else:
    path = inputs.write_lines(tmp_path / 'a.jsonl', inputs.documents(50))
    path.write_text(path.read_text().replace('{"text": "Text 20 ', '{oops "Text 20 '))
  if kind == 'texts':
    row_format = token_rows.TokenRows(text_formats.TextFields(seq_length=16), tokenizer)
  whole = preparing.prepare(
    [str(path)], str(tmp_path / 'whole'), settings, lambda _: contextlib.nullcontext(inputs.Here()), row_format
  )
  assert whole.report.bad_records == 1 and len(whole.plan.shards) == 1
  folder = tmp_path / 'parts'
  folder.mkdir()
  for name, content in (row_format.files if row_format else {}).items():
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
  job, parts = answers_of_parts(planning.make_plan([str(path)], settings, row_format), folder)
  assert [(part['end'], part['part']) for part in parts] == [(shards.PART, number) for number in range(3)]
  answer = shards.assemble(job, parts)
  assert answer['end'] == shards.DONE and answer['note'] == whole.notes[0]
  assert inputs.shard_bytes(folder) == inputs.shard_bytes(tmp_path / 'whole')
  assert not list(folder.glob('*.partial'))


def test_rows_that_depend_on_all_records_are_not_divided(tmp_path, tokenizer):
  job = {'kind': 'texts', 'settings': {'packing': 'wrapped'}, 'pieces': [['a', 'bytes', 0, 9, 10**9]]}
  assert not shards.divided(job, 4)
  assert not shards.divided({**job, 'kind': 'detection', 'settings': {}}, 4)
  of_texts = {**job, 'settings': {'packing': 'none'}}
  assert [part['part'] for part in shards.divided(of_texts, 4)] == [[0, 4], [1, 4], [2, 4], [3, 4]]
  small = {**of_texts, 'pieces': [['a', 'bytes', 0, 9, 3 * shards._LEAST_PART_BYTES]]}
  assert len(shards.divided(small, 4)) == 3 and not shards.divided({**small, 'pieces': []}, 4)


def test_the_last_shards_are_divided_among_processes(tmp_path):
  """Three shards of 5 MB for two processes: the third one is made by both."""
  path = inputs.write_lines(tmp_path / 'a.jsonl', [{'n': n, 'text': f'{n:09d}' * 1000} for n in range(1600)])
  plan = planning.make_plan([str(path)], planning.Settings(shard_bytes=5_000_000))
  folder = tmp_path / 'out'
  folder.mkdir()
  jobs = [plan.job(number, str(folder)) for number in range(3)]
  with engines.LocalEngine(2) as engine:
    found = [answer for answer in engine.answers(jobs) if answer is not None]
  done = [answer['name'] for answer in found if answer['end'] == shards.DONE]
  assert sorted(done) == [job['name'] for job in jobs] and done[-1] == jobs[2]['name']
  halves = [answer['share'] for answer in found if answer['end'] == shards.UNDER_WAY and answer['name'] == done[-1]]
  assert 0.5 in halves or max(halves) > 0.5  # Of the first part that was done.
  inputs.prepare(path, tmp_path / 'whole', shard_bytes=5_000_000)
  assert inputs.shard_bytes(folder) == inputs.shard_bytes(tmp_path / 'whole')
  with engines.LocalEngine(2) as engine:  # A second start finds them.
    assert [answer['was_there'] for answer in engine.answers(jobs) if answer is not None] == [True] * 3
  (folder / jobs[2]['name']).unlink()
  content = path.read_text().replace('"n": 1590,', '"n": oops,')
  path.write_text(content)
  with engines.LocalEngine(2) as engine:
    (failed,) = (answer for answer in engine.answers(jobs[2:]) if answer and answer['end'] == shards.BAD_INPUT)
  assert f'{path}, line 1591: is invalid JSON' in failed['message']
