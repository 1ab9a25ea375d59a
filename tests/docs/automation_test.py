"""docs/how_to/automation.md: its script starts runs, stops one, extends one, and writes the table."""

import csv
import os
import pathlib
import subprocess
import sys

import pytest

from tests import documents

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_script_does_what_the_page_says(tmp_path):
  (code,) = [code for code in documents.code(documents.read('docs/how_to/automation.md')) if 'ext.runs.start' in code]
  assert len([line for line in code.splitlines() if line.strip()]) <= 30
  (tmp_path / 'script.py').write_text(f'{code}\nimport sys\nassert "tensorflow" not in sys.modules\n')
  environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(tmp_path / 'cache')}
  subprocess.run([sys.executable, 'script.py'], cwd=tmp_path, env=environment, check=True, timeout=1500)
  with open(tmp_path / 'runs/table.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['run'] for row in rows] == ['rate-0.003', 'rate-0.01', 'rate-0.03', 'rate-0.1']
  assert sorted(row['step'] for row in rows)[-1] == '60'
  assert {row['status'] for row in rows} <= {'finished', 'preempted'}
