"""benchmarks/prepare.py: the table, with little input."""

import sys

import pytest

from benchmarks import prepare


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
