"""Tests that README.md is correct: its example trains, its commands and files exist."""

import json
import pathlib
import re

from official_ext.cli import flags as ext_flags
from tests import documents

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = documents.read('README.md')


def test_the_example_trains(run_train, tmp_path):
  (code,) = documents.code(README)
  (command,) = re.findall(r'`python train.py (--registry=.*?)`', README, re.DOTALL)
  (tmp_path / 'my_tasks.py').write_text(code)
  process = run_train(command.split(), cwd=tmp_path, fresh=True)
  assert process.returncode == 0, process.stderr
  events = [json.loads(line) for line in (tmp_path / 'runs/rings/events.jsonl').read_text().splitlines()]
  last = [event for event in events if event['event'] == 'eval'][-1]
  assert last['step'] == 500 and last['accuracy'] > 0.95  # As its docstring says.
  left_behind = README[README.index('## Files of a run') : README.index('Files that only some runs have')]
  for name in re.findall(r'^\| `([^`]*)`', left_behind, re.MULTILINE):
    if name != 'best/':
      pattern = name.rstrip('/').replace('ckpt-N.*', 'ckpt-500.*').replace('MODE', 'train_and_eval')
      assert list((tmp_path / 'runs/rings').glob(pattern)), name


def test_flags_and_modes_are_those_of_the_driver():
  table = README[README.index('| flag |') : README.index('Values are read')]
  told = set(re.findall(r'^\|[^|]*\|', table, re.MULTILINE))
  told = set(re.findall(r'`--(\w+)`', ' '.join(told)))
  assert told == set(ext_flags._NAMES) - set(ext_flags._UNREAD)
  for mode in ext_flags.MODES:
    assert f'`{mode}`' in table


def test_make_targets_exist():
  makefile = (ROOT / 'Makefile').read_text()
  for target in re.findall(r'make ([a-z.]+)', re.sub(r'make and', '', README)):
    assert re.search(rf'^{re.escape(target)}:', makefile, re.MULTILINE), target
