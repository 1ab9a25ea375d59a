"""A quotation mark in a table costs no row: the mark is read, or the file is refused with the line."""

import pytest

from official_ext.base import errors
from official_ext.data import table_records


@pytest.mark.parametrize(
  ('name', 'lines', 'line'),
  [
    ('a.tsv', ['good\tp', '"Wow\tn', 'plain\tp', '"second\tn', 'end\tp'], 3),
    ('a.tsv', ['good\tp', '"Wow\tn', 'plain\tp', 'said "\tn'], 3),
    ('a.tsv', ['good\tp', '"Wow\tn', 'plain\tp'], 3),
    ('a.csv', ['good,p', '"Wow,n', 'plain,p', '"second,n', 'end,p'], 3),
    ('a.csv', ['good,p', '"Wow,n', 'plain,p'], 3),
  ],
)
def test_a_mark_that_joins_lines_is_refused(name, lines, line, tmp_path):
  header = 'text\tlabel' if name == 'a.tsv' else 'text,label'
  (tmp_path / name).write_text('\n'.join([header, *lines]) + '\n')
  with pytest.raises(errors.UserError, match=f'{name}, line {line}: is invalid CSV'):
    table_records.csv_records(str(tmp_path / name))


def test_a_mark_in_the_header_is_refused(tmp_path):
  (tmp_path / 'a.csv').write_text('text,"label\ngood,p\n')
  with pytest.raises(errors.UserError, match='a.csv, line 1: is invalid CSV'):
    table_records.csv_records(str(tmp_path / 'a.csv'))


def test_other_marks_are_read(tmp_path):
  (tmp_path / 'a.tsv').write_text('text\tlabel\nsaid "hi"\tp\nlast "\tn\n"""x"" y"\tp\n')
  (tmp_path / 'a.csv').write_text('text,label\n"a, b",p\n"said ""hi""",n\n"two\nlines",p\n')
  for name, texts in (('a.tsv', ['said "hi"', 'last "', '"x" y']), ('a.csv', ['a, b', 'said "hi"', 'two\nlines'])):
    records = table_records.csv_records(str(tmp_path / name))
    assert [records.read(number)['text'] for number in range(3)] == texts
