"""Tests for the report of runs."""

from html import parser
import re

import pytest

from official_ext.base import errors
from official_ext.operations.curves import column_store
from official_ext.operations.curves import report
from tests.operations.runs import folders
from tests.operations.runs.folders import event


class _Page(parser.HTMLParser):
  """The texts, the tags, and the cells of a page."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.texts, self.attributes = [], [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs

  def handle_data(self, data):
    self.texts.append(data)


def _page(tmp_path, runs, **options):
  return _Page(report.page(column_store.ColumnStore(str(tmp_path / 'cache')), runs, 'results', **options))


def _run(tmp_path, name, rate, accuracy, **values):
  events = [event('start', 0), *(event('train', step, training_loss=1 / step) for step in (10, 20))]
  return folders.make(tmp_path, name, [*events, event('eval', 20, accuracy=accuracy)], rate=rate, **values)


def test_it_has_metrics_curves_fields_and_commands_of_each_run(tmp_path):
  runs = [_run(tmp_path, 'a', 0.1, 0.75), _run(tmp_path, 'b', 0.2, 0.5)]
  page = _page(tmp_path, runs)
  assert page.tags.count('svg') == 2  # training_loss, accuracy.
  assert page.tags.count('polyline') == 2 and page.tags.count('circle') == 2
  assert {'0.75', '0.5', '0.75 (step 20)', '0.1', '0.2', 'eval/accuracy', 'train/training_loss'} <= set(page.texts)
  assert sum('--experiment=digits' in text for text in page.texts) == 2
  assert _page(tmp_path, runs, metrics=['eval/accuracy']).tags.count('svg') == 1


def test_its_curves_may_be_over_a_metric(tmp_path):
  events = [event('train', step, loss=1 / step, tokens=100 * step) for step in (10, 20, 40)]
  run = folders.make(tmp_path, 'a', [*events, event('eval', 20, accuracy=0.5), event('eval', 40, accuracy=0.7)])
  page = _page(tmp_path, [run], metrics=['train/loss'], x='train/tokens')
  assert {'train/tokens', '1,000', '4,000'} <= set(page.texts) and page.tags.count('polyline') == 1
  falling = _page(tmp_path, [run], metrics=['eval/accuracy'], x='train/loss')
  assert falling.tags.count('polyline') == 0 and falling.tags.count('circle') == 2
  with pytest.raises(errors.UserError, match='--x=train/token: no run has it; did you mean train/tokens'):
    _page(tmp_path, [run], x='train/token')


def test_it_loads_and_runs_nothing(tmp_path):
  odd = '<script>alert(1)</script>'
  command = f'train.py --x={odd} --set=key=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH'
  run = _run(tmp_path, 'a&b', 0.1, 0.5, command=command, status='failed', error=odd)
  other = _run(tmp_path, 'c', 0.1, 0.5)
  for each, secret in (
    (run, 'hf_abcdefghijklmnopqrstuvwxyzABCDEFGH'),
    (other, 'hf_abcdefghZZZZZZZZZZZZZZZZZZZZZZZZZZ'),
  ):
    with open(each.file('params.yaml'), 'a') as file:
      file.write(f'task:\n  access_token: {secret}\n')
  page = _page(tmp_path, [run, other])
  assert 'task.access_token' in page.texts
  assert not {'script', 'img', 'link', 'iframe', 'object'} & set(page.tags)
  assert not any(name.startswith('on') or name in ('src', 'href') for name, _ in page.attributes)
  texts = ' '.join(page.texts)
  assert odd in texts and 'a&b' in texts and not re.search('hf_abcdefgh', texts)
