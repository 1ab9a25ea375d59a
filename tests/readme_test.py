"""Tests that README.md is correct: its example trains, its commands and files exist."""

import json
import pathlib
import re

from official_ext.cli import flags as ext_flags
from tests import documents

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = documents.read('README.md')
FLAGS = documents.read('docs/reference/flags.md')
RUN_FILES = documents.read('docs/reference/run_files.md')


def test_the_example_trains(run_train, tmp_path):
  (code,) = documents.code(README)
  (command,) = re.findall(r'`python train.py (--registry=.*?)`', README, re.DOTALL)
  (tmp_path / 'my_tasks.py').write_text(code)
  process = run_train(command.split(), cwd=tmp_path, fresh=True)
  assert process.returncode == 0, process.stderr
  events = [json.loads(line) for line in (tmp_path / 'runs/rings/events.jsonl').read_text().splitlines()]
  last = [event for event in events if event['event'] == 'eval'][-1]
  assert last['step'] == 500 and last['accuracy'] > 0.95  # As its docstring says.
  left_behind = RUN_FILES.partition('## Files of some runs')[0]
  for name in re.findall(r'^\| `([^`]*)`', left_behind, re.MULTILINE):
    if name != 'best/':
      pattern = name.rstrip('/').replace('ckpt-N.*', 'ckpt-500.*').replace('MODE', 'train_and_eval')
      assert list((tmp_path / 'runs/rings').glob(pattern)), name


def test_flags_and_modes_are_those_of_the_driver():
  table = FLAGS[FLAGS.index('| flag |') : FLAGS.index('## Values')]
  listed = set(re.findall(r'^\|[^|]*\|', table, re.MULTILINE))
  listed = set(re.findall(r'`--(\w+)`', ' '.join(listed)))
  assert listed == set(ext_flags._NAMES) - set(ext_flags._UNREAD)
  for mode in ext_flags.MODES:
    assert f'`{mode}`' in table


def test_every_first_page_has_the_same_start():
  start = re.search(r'(?:^    .*\n)+', README, re.MULTILINE)[0]
  assert [line.partition('#')[0].strip() for line in start.splitlines()] == ['make demo', 'make test']
  assert re.search(r'make test +#.*\d+ minutes', start)
  for page in ('docs/index.md', 'docs/getting_started/index.md'):
    assert re.search(r'(?:^    .*\n)+', documents.read(page), re.MULTILINE)[0] == start, page
  first = re.search(r'(?:^    .*\n)+', documents.read('docs/getting_started/first_run.md'), re.MULTILINE)[0]
  assert first.split() == ['make', 'demo', '.', '.venv/bin/activate']


def test_make_targets_exist():
  makefile = (ROOT / 'Makefile').read_text()
  for target in re.findall(r'make ([a-z.]+)', re.sub(r'make and', '', README)):
    assert re.search(rf'^{re.escape(target)}:', makefile, re.MULTILINE), target


def test_it_is_short_and_its_links_lead_to_files():
  assert len(README.split()) <= 900
  links = [link.partition('#')[0] for link in re.findall(r'\]\(([^)\s]+)\)', README) if '://' not in link]
  assert len(links) > 25
  assert [link for link in links if not (ROOT / link).exists()] == []


def test_its_figures_are_those_of_the_results():
  results = documents.read('benchmarks/results/avx512_bf16_zen4.md')
  rows = re.findall(r'^\| (.*) \| `make bench BENCH=(\w)` \|$', README, re.MULTILINE)
  assert len(rows) > 4
  for fact, letter in rows:
    sections = re.findall(rf'^## (\({letter}\) .*?)(?=^## |\Z)', results, re.DOTALL | re.MULTILINE)
    cells = {
      cell.strip() for row in re.findall(r'^\|(.*)\|$', ''.join(sections), re.MULTILINE) for cell in row.split('|')
    }
    for number, unit in re.findall(r'([\d.,]*\d)(?: (ms|s)\b| times)', fact):
      same = [cell for cell in cells if states(cell, number, unit)]
      assert same, (fact, number)
  summary = documents.read('benchmarks/RESULTS.md')
  assert re.search(r'results/avx512_bf16_zen4.md\): (\d+ of \d+ goals are)', summary)[1] in README


def states(cell, number, unit):
  """Whether a cell of the results is a figure of README.md, which has seconds for starts."""
  if not unit:
    return cell == number
  match = re.fullmatch(r'([\d.,]+) ms a \w+', cell)
  value = float(match[1].replace(',', '')) if match else None
  return value is not None and (f'{value:,.0f}' == number if unit == 'ms' else f'{value / 1000:.1f}' == number)
