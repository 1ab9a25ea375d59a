"""benchmarks/reinforcement.py: the table of speeds."""

import importlib.util
import pathlib
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / 'benchmarks/reinforcement.py'


@pytest.mark.soak
def test_the_game_in_xla_is_faster_than_gymnasium(monkeypatch, capsys):
  spec = importlib.util.spec_from_file_location('benchmark_of_reinforcement', SCRIPT)
  script = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(script)
  monkeypatch.setattr(sys, 'argv', ['reinforcement.py', '--games=16', '--pairs=1'])
  script.main()
  head, *rows = capsys.readouterr().out.splitlines()
  assert head.split() == ['games', 'environment', 'steps/s', 'times', 'gymnasium']
  cells = {row[8:26].strip(): row[26:].split() for row in rows}
  assert set(cells) == {'tensorflow, XLA', 'tensorflow, graph', 'gymnasium'}
  assert cells['gymnasium'][1] == '1.0' and float(cells['tensorflow, XLA'][1]) > 2
