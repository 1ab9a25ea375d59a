"""Results that are kept for later runs, and depend on more than the files they are of: the report says so."""

import datetime
import json

import pytest
import tensorflow as tf

from official_ext.data import pipelines
from official_ext.language.text import chat_templates
from official_ext.language.text import text_sources
from official_ext.language.text import text_task
from tests.language.text import text_fixtures

cache, tokenizer = text_fixtures.cache, text_fixtures.tokenizer


@pytest.mark.parametrize('writes', ['the present date', 'another text'])
def test_tokens_of_a_template_that_writes_the_date(tokenizer, tmp_path, monkeypatch, caplog, writes):
  path = tmp_path / 'a.jsonl'
  turns = [{'role': 'user', 'content': 'one'}, {'role': 'assistant', 'content': 'two'}]
  path.write_text(json.dumps({'messages': turns}) + '\n')
  source = tokenizer.chat_template().source
  dated = tokenizer.with_chat_template(("{{ strftime_now('%Y') }}" if writes == 'the present date' else '1') + source)

  class Day(datetime.datetime):
    year_now = 2031

    @classmethod
    def now(cls, tz=None):
      return cls(cls.year_now, 1, 2, tzinfo=tz)

  monkeypatch.setattr(chat_templates.datetime, 'datetime', Day)

  def opened():
    monkeypatch.setattr(text_sources, '_open', {})
    params = text_task.TextDataConfig(is_training=True, global_batch_size=1, seq_length=64, input_path=str(path))
    return text_sources.open_source(params, dated)

  first = opened()
  assert not caplog.text
  Day.year_now = 2032
  again = opened()
  assert again.identity() == first.identity()
  is_dated = writes == 'the present date'
  assert first.identity().get('date', '') == ('2031-01-02' if is_dated else '')
  assert ('and the kept tokens are of 2031-01-02; another cache_dir' in caplog.text) == is_dated


def test_examples_of_a_cache_file(tmp_path, capsys):
  dataset = tf.data.Dataset.range(3).cache(str(tmp_path / 'cache'))
  for is_old in (False, True):
    pipelines.own_caches(dataset)
    assert list(dataset.as_numpy_iterator()) == [0, 1, 2]
    pipelines.release_caches()
    assert ('its examples are those of an earlier run; delete it' in capsys.readouterr().out) == is_old
