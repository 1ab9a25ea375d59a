"""Imported runs: complete, once, with the notes of people, and never resumed."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from official_ext.base import errors
from official_ext.operations.imports import run_import
from official_ext.operations.imports import tensorboard_files
from official_ext.operations.runs import commands
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.runs import statuses
from tests.operations.imports import sources

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture
def logs(tmp_path):
  """A folder with runs of TensorBoard, of which one is in the folder of another, and two in one that is no run."""
  folder = tmp_path / 'logs'
  sources.write_tensorboard(folder / 'a', [(step, {'train/loss': 1.0 / step}) for step in (1, 2)])
  sources.write_tensorboard(folder / 'a/best', [(2, {'eval/accuracy': 0.5})])
  for name in ('mlp', 'cnn'):
    sources.write_tensorboard(folder / 'digits' / name, [(1, {'train/loss': 0.5})])
  return folder


def names(root):
  return [run.name for run in run_folders.find_runs(str(root))]


def test_runs_are_folders_that_are_listed(logs, tmp_path):
  results, damage = sources.imported(logs, tmp_path / 'runs')
  assert {name: (each.outcome, each.num_values) for name, each in results.items()} == {
    'a': ('imported', 2),
    'a-best': ('imported', 1),  # In the folder `best` of a run none is looked for.
    'digits/mlp': ('imported', 1),
    'digits/cnn': ('imported', 1),
  }
  assert not damage and set(names(tmp_path / 'runs')) == set(results)
  first, *values = sources.events(tmp_path / 'runs', 'a')
  assert first == {'event': 'imported', 'step': 0, 'tracker': 'tensorboard', 'source': str(logs / 'a')}
  assert values == [{'event': 'train', 'step': step, 'loss': 1.0 / step} for step in (1, 2)]  # No end is known.
  found = {each.name: each for each in run_index.RunIndex(str(tmp_path / 'runs')).summaries()}
  assert (found['a'].status, found['a'].reason) == ('finished', 'imported; TensorBoard records no end')
  assert (found['a'].step, found['a'].tags, found['a'].train) == (2, ('imported',), {'loss': 0.5})
  assert (found['a'].started, found['a'].updated) == (sources.TIME + 1, sources.TIME + 2)


def test_a_second_import_repeats_nothing_and_a_changed_source_replaces_its_run(logs, tmp_path):
  root = tmp_path / 'runs'
  sources.imported(logs, root)
  os.rename(root / 'a', root / 'renamed')
  (run,) = [each for each in run_folders.find_runs(str(root)) if each.name == 'renamed']
  run_folders.change_notes(run, ['mine'], ['imported'], note='seen')
  before = (root / 'renamed/events.jsonl').stat().st_mtime_ns
  results, _ = sources.imported(logs, root)
  assert {each.outcome for each in results.values()} == {'unchanged'} and len(results) == 4
  assert (root / 'renamed/events.jsonl').stat().st_mtime_ns == before
  sources.write_tensorboard(logs / 'a', [(3, {'train/loss': 0.1})], '.2')
  results, _ = sources.imported(logs, root)
  assert {name: each.outcome for name, each in results.items() if each.outcome != 'unchanged'} == {'renamed': 'updated'}
  assert [each['step'] for each in sources.events(root, 'renamed')] == [0, 1, 2, 3]
  assert sources.record(root, 'renamed')['step'] == 3 and run_folders.read_notes(run) == run_folders.Notes(
    ('mine',), 'seen'
  )
  assert len(names(root)) == 4 and not [name for name in os.listdir(root) if name.startswith('.import-')]


def test_a_name_that_is_taken_gets_a_number(logs, tmp_path):
  root = tmp_path / 'runs'
  (root / 'a').mkdir(parents=True)
  (root / 'a/mine.txt').write_text('mine')
  results, _ = sources.imported(logs / 'a', root)
  assert set(results) == {'a-2', 'best'} and (root / 'a/mine.txt').read_text() == 'mine'


def test_a_broken_source_is_named_and_the_others_are_imported(logs, tmp_path):
  (logs / 'b').mkdir()
  (logs / 'b/events.out.tfevents.1').write_bytes(b'no events in it')
  results, damage = sources.imported(logs, tmp_path / 'runs')
  assert len(results) == 4 and set(names(tmp_path / 'runs')) == set(results)
  assert damage == [f'{logs}/b/events.out.tfevents.1: damaged at byte 0']


@pytest.mark.slow
def test_an_import_that_is_killed_leaves_whole_runs_and_can_be_repeated(tmp_path):
  logs, root = tmp_path / 'logs', tmp_path / 'runs'
  for name in 'abc':
    sources.write_tensorboard(logs / name, [(step, {'loss': 1.0}) for step in range(20_000)])
  code = 'import sys; from official_ext.cli import main; main.main(sys.argv[1:])'
  process = subprocess.Popen([sys.executable, '-c', code, 'runs', 'import', str(logs), f'--to={root}'], cwd=ROOT)
  deadline = time.monotonic() + 60
  while not list(root.glob('.import-*/events.jsonl')) and process.poll() is None and time.monotonic() < deadline:
    time.sleep(0.001)
  process.send_signal(signal.SIGKILL)
  assert process.wait() == -signal.SIGKILL
  assert all((root / name / 'run.json').exists() for name in names(root)) and len(names(root)) < 3
  results, damage = sources.imported(logs, root)
  assert set(results) == {'a', 'b', 'c'} and not damage and names(root) == ['a', 'b', 'c']
  assert not list(root.glob('.import-*'))
  for name in 'abc':
    assert sum(1 for _ in open(root / name / 'events.jsonl', 'rb')) == 20_001


@pytest.mark.parametrize('tracker', ['tensorboard', 'wandb'])  # Earlier versions imported from W&B too.
def test_an_imported_run_is_neither_resumed_nor_cloned_nor_evaluated(logs, tmp_path, tracker):
  sources.imported(logs, tmp_path / 'runs')
  for name in ('run.json', 'import.json'):
    path = tmp_path / 'runs/digits/mlp' / name
    path.write_text(path.read_text().replace('"tensorboard"', f'"{tracker}"'))
  run = run_folders.get_run(str(tmp_path / 'runs'), 'digits/mlp')
  for verb, make in (
    ('resumed', lambda: commands.to_resume(run)),
    ('resumed', lambda: commands.to_resume(run, 1000)),
    ('cloned', lambda: commands.make_clone(run, str(tmp_path / 'runs'), 'new')),
    ('evaluated', lambda: commands.to_evaluate(run, 'ckpt-1')),
  ):
    with pytest.raises(errors.UserError, match=f'^digits/mlp: was imported from {tracker}, and cannot be {verb}; '):
      make()
  assert not statuses.is_alive(run) and not (tmp_path / 'runs/new').exists()
  results, _ = sources.imported(logs, tmp_path / 'runs')
  again = {'tensorboard': ('digits/mlp', 'unchanged'), 'wandb': ('digits/mlp-2', 'imported')}[tracker]
  assert again in [(name, each.outcome) for name, each in results.items()]


def test_a_source_without_runs_is_one_line(tmp_path):
  for path, message in ((tmp_path, 'no runs of TensorBoard; expected '), (tmp_path / 'a', 'no such')):
    with pytest.raises(errors.UserError, match=message):
      run_import.find(str(path))


@pytest.mark.parametrize(
  'name, folder',
  [
    ('../../up', '__/__/up'),
    ('.hidden/ ', '_hidden'),
    ('', 'run'),
    ('a\nb\x1b[0m', 'a_b_[0m'),
    ('x' * 300, 'x' * 100),
  ],
)
def test_names_become_folders_below_the_folder(tmp_path, name, folder):
  content = tensorboard_files.Content(
    name, tensorboard_files.LoggedValues(), status='failed', error='x', is_end_known=True
  )
  run = tensorboard_files.SourceRun('/source', [], lambda: content)
  (result,) = run_import.import_runs([run], str(tmp_path / 'runs'), [])
  assert result.name == folder and names(tmp_path / 'runs') == [folder]
  assert json.loads((tmp_path / 'runs' / folder / 'run.json').read_text())['status'] == 'failed'


def test_secrets_are_masked(tmp_path):
  config = {'api_key': 'very-secret-value', 'net': {'width': 3, 'rate': float('nan')}}
  content = tensorboard_files.Content('a', tensorboard_files.LoggedValues(), config=config)
  list(run_import.import_runs([tensorboard_files.SourceRun('s', [], lambda: content)], str(tmp_path), []))
  text = ''.join((tmp_path / 'a' / name).read_text() for name in ('params.yaml', 'notes.json', 'run.json'))
  assert 'very-secret-value' not in text and "api_key: '***'" in text


def test_runs_of_this_library_are_left_out_with_their_logs(logs, tmp_path):
  sources.imported(logs, tmp_path / 'runs')
  sources.write_tensorboard(tmp_path / 'runs/a/train', [(1, {'loss': 1.0})])
  with pytest.raises(errors.UserError, match='no runs of TensorBoard'):
    run_import.find(str(tmp_path / 'runs'))


def test_odd_values_are_one_line_or_harmless(tmp_path):
  nested: dict = {}
  for _ in range(5000):
    nested = {'a': nested}
  deep = tensorboard_files.Content('a', tensorboard_files.LoggedValues(), config=nested)
  odd = tensorboard_files.Content('b', tensorboard_files.LoggedValues(), config={'x': '\ud800', 'y': 10**400})
  runs = [tensorboard_files.SourceRun(name, [], lambda found=found: found) for name, found in zip('ab', (deep, odd))]
  damage: list[str] = []
  assert [each.name for each in run_import.import_runs(runs, str(tmp_path), damage)] == ['b']
  assert damage == ['a: has values that are nested too deeply'] and names(tmp_path) == ['b']
  assert sources.record(tmp_path, 'b')['started'] == '1970-01-01T00:00:00.000Z'
