"""benchmarks/prepare.py: the table, with little input."""

import sys

import pytest

from benchmarks import prepare
from benchmarks import prepare_corpus


@pytest.mark.soak
def test_the_table_of_preparations(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', ['prepare', '--megabytes=0.3', '--images=20', '--workers=1', '--rounds=1'])
  prepare.main()
  rows = [line.strip('| ').split(' | ') for line in capsys.readouterr().out.splitlines() if line.startswith('| ')]
  head, *rows = rows
  assert head[-1] == 'tokens/s'
  measured = {row[0]: row[1:] for row in rows if not row[0].endswith('again')}
  assert list(measured) == list(prepare._CASES) and len(rows) == 2 * len(measured)
  for name, (workers, *numbers) in measured.items():
    assert workers == '1' and len(numbers) == 3 + ('tokens' in name)
    assert all(float(number.replace(',', '')) > 0 for number in numbers)


@pytest.mark.soak
def test_as_many_tokens_as_datasets(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', ['prepare', '--beside_datasets', '--megabytes=0.5', '--workers=1', '--rounds=1'])
  monkeypatch.setattr(prepare_corpus, '_WORDS', 2000)
  prepare.main()
  printed = capsys.readouterr().out
  rows = [line.strip('| ').split(' | ') for line in printed.splitlines() if line.startswith('| ')][1:]
  assert [row[0] for row in rows] == list(prepare._COMMANDS)
  assert len({row[5] for row in rows}) == 1 and int(rows[0][5]) > 100_000
  assert printed.count('times the processor time') == 2


def test_the_corpus_is_the_same_at_each_call(monkeypatch):
  monkeypatch.setattr(prepare_corpus, '_WORDS', 2000)
  texts = [*prepare_corpus.texts(0.05)]
  assert texts == [*prepare_corpus.texts(0.05)] != [*prepare_corpus.texts(0.05, seed=1)]
  assert 50_000 <= sum(len(text.encode()) for text in texts) < 200_000
