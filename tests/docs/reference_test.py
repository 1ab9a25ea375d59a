"""The generated pages of docs/reference are those of the code; tables written by hand are complete."""

import pathlib
import re
import sys

import pytest

import official_ext
from official_ext.base.run_folder import run_files
from official_ext.base.run_folder import run_status
from tests import documents
from tools import reference

FOLDER = pathlib.Path(__file__).resolve().parents[2] / 'docs/reference'


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason='the help and signatures of Python 3.11 are on the pages')
@pytest.mark.tensorflow
def test_the_generated_pages_are_up_to_date():
  pages = reference.pages()
  assert {str(path.relative_to(FOLDER)) for path in FOLDER.glob('api/*.md')} <= set(pages)
  out_of_date = [path for path, text in pages.items() if (FOLDER / path).read_text() != text]
  assert out_of_date == [], 'python -m tools.reference writes them'


def test_every_public_name_has_details():
  details = ''.join(path.read_text() for path in sorted(FOLDER.glob('api/*.md')))
  assert set(re.findall(r'^## ext\.(\w+)$', details, re.MULTILINE)) == set(official_ext.FACE)


def test_the_tables_of_events_are_complete():
  tables = documents.tables(documents.read('docs/reference/events.md'))
  assert set(re.findall(r'\w+', ' '.join(tables['event']))) == set(run_files.EVENTS)
  assert set(re.findall(r'\w+', ' '.join(tables['name']))) == run_files.PROGRESS


def test_the_table_of_statuses_is_complete():
  page = documents.read('docs/reference/statuses.md')
  assert set(run_status.STATUSES) <= set(re.findall(r'`(\w+)`', ' '.join(documents.tables(page)['status'])))
  recorded = re.search(r'`run.json` records (.*?)\.', page)[1]
  assert set(re.findall(r'`(\w+)`', recorded)) == set(run_status.STATUSES)
