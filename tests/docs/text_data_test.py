"""docs/how_to/text_data.md: its code runs from top to bottom, and its tables are those of the library."""

import numpy as np
import pytest

import official_ext as ext
from official_ext.language.text import text_formats
from official_ext.language.text import text_sources
from official_ext.language.text import text_task
from tests import documents

PAGE = documents.read('docs/how_to/text_data.md')


@pytest.fixture
def place(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.chdir(tmp_path)
  return tmp_path


def test_the_code_of_the_page_runs(place, capsys):
  names = {'__name__': 'page'}
  for code in documents.code(PAGE):
    exec(compile(code, 'docs/how_to/text_data.md', 'exec'), names)  # pylint: disable=exec-used
  batch, source, tokenizer = names['batch'], names['source'], names['tokenizer']
  assert set(batch) == {'input_ids', 'labels', 'segment_ids', 'position_ids'}
  assert {tuple(feature.shape) for feature in batch.values()} == {(4, 64)}
  assert len(source) < 60 and '100 conversations in' in capsys.readouterr().out
  labels = batch['labels'].numpy()
  learned = tokenizer.decode(labels[labels >= 0]).split('<|end|>')
  assert all(text.strip().isdigit() for text in learned if text.strip())
  assert ext.Tokenizer.load('my_tokenizer').digest == tokenizer.digest
  assert np.isin(labels[labels >= 0], batch['input_ids'].numpy()).all()


def test_the_tables_are_those_of_the_library():
  tables = documents.tables(PAGE)
  code = lambda rows: [row.strip('`') for row in rows]
  assert code(tables['`example_format`']) == [name for name in text_formats.FORMATS if name != 'auto']
  assert code(tables['`packing`']) == list(text_sources.PACKINGS)
  config = text_task.TextDataConfig()
  for name in ('input_path', 'split', 'loss_on', 'max_input_length', 'max_content_length', 'max_samples', 'cache_dir'):
    assert hasattr(config, name) and f'`{name}`' in PAGE
