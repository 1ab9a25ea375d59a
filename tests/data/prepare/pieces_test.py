"""Pieces of files: together they have every record once, in order, whatever their sizes."""

import gzip
import json

import pyarrow
from pyarrow import parquet
import pytest

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import json_records
from official_ext.data.prepare import pieces

RECORDS = [{'n': n, 'text': f'ü{n} ' * (n % 7)} for n in range(40)]


def write(folder, kind):
  path = folder / f'a [1]*.{kind}'
  lines = ''.join(
    ('\n' if n % 9 == 4 else '') + json.dumps(r, ensure_ascii=False) + '\n' for n, r in enumerate(RECORDS)
  )
  if kind == 'jsonl':
    path.write_text('\ufeff' + lines.removesuffix('\n'))
  elif kind == 'jsonl.gz':
    path.write_bytes(gzip.compress(lines.encode()))
  elif kind == 'json':
    path.write_text(json.dumps(RECORDS))
  elif kind == 'parquet':
    parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path, row_group_size=6)
  else:
    table = pyarrow.Table.from_pylist(RECORDS)
    with pyarrow.ipc.new_stream(str(path), table.schema) as writer:
      writer.write_table(table, max_chunksize=6)
  return path


def read(found):
  for piece in found:
    records = pieces.open_piece(piece, [], [])
    yield from (records.read(number) for number in range(len(records)))


@pytest.mark.parametrize('kind', ['jsonl', 'jsonl.gz', 'json', 'parquet', 'arrow'])
def test_the_pieces_of_a_file_are_the_file(kind, tmp_path):
  path = write(tmp_path, kind)
  counts = set()
  for size in (1, 7, 64, 300, 10**9) if kind == 'jsonl' else (1, 200, 10**9):
    found = list(pieces.pieces_of_file(str(path), path.stat().st_size, size))
    assert list(read(found)) == RECORDS, size
    counts.add(len(found))
  assert (max(counts), min(counts)) == ({'parquet': 7, 'arrow': 7}.get(kind, path.stat().st_size), 1) or (
    kind in ('jsonl.gz', 'json') and counts == {1}
  )


def test_every_cut_of_lines_gives_each_line_once(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(b'{"a":1}\n\n{"a":2}\r\n  \n{"a":3}')
  size = path.stat().st_size
  for cut in range(size + 1):
    parts = [json_records.JsonLinesPart(str(path), *span) for span in ((0, cut), (cut, size))]
    assert [part.read(n)['a'] for part in parts for n in range(len(part))] == [1, 2, 3], cut
    places = [part.place(n) for part in parts for n in range(len(part))]
    assert places == [f'{path}, line {n}' for n in (1, 3, 5)]


def test_a_broken_line_is_named_by_its_number_in_the_file(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"a": 1}\n' * 50 + '[1]\n' + '{"a": 1}\n' * 5)
  part = json_records.JsonLinesPart(str(path), 300, 10**6)
  with pytest.raises(bad_examples.BadExampleError, match=rf'^{path}, line 51: is a list; expected a JSON object$'):
    [part.read(n) for n in range(len(part))]


def test_what_cannot_be_read_is_named(tmp_path):
  path = tmp_path / 'a.parquet'
  path.write_bytes(b'PAR1 but no more')
  with pytest.raises(errors.UserError, match=rf'^{path}: cannot be read: '):
    list(pieces.pieces_of_file(str(path), 16, 100))
  path = write(tmp_path, 'parquet')
  piece = list(pieces.pieces_of_file(str(path), path.stat().st_size, 10**9))[-1]
  parquet.write_table(pyarrow.Table.from_pylist(RECORDS[:3]), path)
  with pytest.raises(errors.UserError, match='has changed since the preparation began'):
    pieces.open_piece(piece, [], [])
