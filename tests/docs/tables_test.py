"""docs/how_to/tables.md: its script trains on a CSV file, and its code in Python agrees with it."""

import os
import pathlib
import random
import re
import subprocess
import sys

import pytest

from tests import documents

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = documents.code(documents.read('docs/how_to/tables.md'))
NOISE = 15.0
PRICES = {'Rome': 50, 'Oslo': 90, 'Lima': 10, 'flat': 0, 'house': 40}


def write_table(path):
  """2,000 rows of a linear price with normal noise, whose mean absolute value is sqrt(2 / pi) of its deviation."""
  draw = random.Random(0)
  lines = ['area,rooms,age,city,kind,price']
  for _ in range(2000):
    area, rooms, age = draw.uniform(30, 250), draw.randint(1, 7), draw.uniform(0, 100)
    city, kind = draw.choice(['Rome', 'Oslo', 'Lima']), draw.choice(['flat', 'house'])
    price = 2 * area + 15 * rooms - 0.5 * age + PRICES[city] + PRICES[kind] + draw.gauss(0, NOISE)
    lines.append(f'{area:.1f},{rooms},{age:.1f},{city},{kind},{price:.1f}')
  path.write_text('\n'.join(lines) + '\n')


def test_the_script_is_short():
  """At most 30 lines and 5 names of the library, as formatted by default but for 100 columns."""
  command = ['-m', 'ruff', 'format', '--isolated', '--line-length=100', '-']
  done = subprocess.run([sys.executable, *command], input=PAGE[0], capture_output=True, text=True, check=True)
  assert len(done.stdout.splitlines()) <= 30, done.stdout
  assert len(set(re.findall(r'\bext\.(\w+)', PAGE[0]))) <= 5
  assert max(map(len, PAGE[0].splitlines())) <= 100


@pytest.mark.tensorflow
def test_the_script_and_its_use_in_python(tmp_path):
  script, use, fields, layers = PAGE
  write_table(tmp_path / 'houses.csv')
  (tmp_path / 'houses.py').write_text(script)
  checks = '\nassert abs(logs["best_mae"] - abs(model.predict(features)[:, 0] - prices).mean()) < 1e-3, logs\n'
  (tmp_path / 'use.py').write_text(use + checks + f'assert 10 < logs["best_mae"] < {NOISE}, logs\n\n' + fields + layers)
  environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(tmp_path / 'cache')}
  done = subprocess.run(
    [sys.executable, 'use.py'], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
  )
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
  assert 'early_stopped' in done.stdout and (tmp_path / 'runs/small_steps/best/info.json').exists()
