"""Readers of a run's folder neither hang nor fail, with anything in place of its files."""

import os
import subprocess
import sys

import pytest

from official_ext.base import errors
from official_ext.base.run_folder import run_lock
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves
from official_ext.operations.curves import timing
from official_ext.operations.imports import tensorboard_files
from official_ext.operations.runs import artifacts
from official_ext.operations.runs import event_log
from official_ext.operations.runs import run_comparison
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses
from official_ext.operations.sweeps import sweep_points
from official_ext.training.checkpoints import best
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import training_lines
from official_ext.training.writers import writers
from tests import irregular_files
from tests.operations.runs import folders

_FILES = (
  'run.json',
  'run.eval.json',
  'params.yaml',
  'events.jsonl',
  'events.eval.jsonl',
  'notes.json',
  'stop.json',
  'archived.json',
  'started.json',
  'profile.json',
  'lines.json',
  'rollbacks.json',
  'run.log',
  run_lock.NAME,
  'checkpoint',
  'ckpt-10.index',
  'ckpt-10.manifest.json',
  'best/history.json',
  'best/info.json',
  'best/checkpoint',
  'best/best_ckpt-10.manifest.json',
  'train/events.out.tfevents.1.host.1.0.v2',
)
_EVENTS = [folders.event('train', 10, loss=1.0), folders.event('eval', 10, accuracy=0.5)]


def _read_all(run: run_folders.Run, store: column_store.ColumnStore) -> None:
  """Reads a run as the lists, pages, tables and sweeps do."""
  events = run.file('events.jsonl')
  run_index.summary_of(run)
  statuses.of_run(run)
  event_log.read_last(events)
  run_comparison.compare_runs([run, run])
  run_folders.read_params(run)
  run_folders.read_notes(run)
  run_processes.log_tail(run)
  run_processes.lines_since(run.log_path('train'), None)
  artifacts.find_checkpoints(run)
  curves.names(store, run)
  curves.evaluations(store, run)
  timing.read_timeline(store, run)
  tensorboard_files.ImageIndex().find(run)
  timing.read_profile(run)
  sweep_points.read_history(events, 'accuracy')
  training_lines.read_origin(run.path)
  best.read_history(run.file('best'), ['accuracy'], [events])
  manifests.find_damage(run.file('ckpt-10'))
  manifests.find_unreadable(run.file('ckpt-10'))
  manifests.newest_in_state_file(run.path)
  manifests.newest_in_state_file(run.file('best'))
  for read in (
    lambda: event_log.export_csv(run),
    lambda: listing.Rollbacks(run.path),
    lambda: run_lock.check_free(run.path),
    lambda: writers.read_events(events),
  ):
    try:
      read()
    except (errors.UserError, errors.CheckpointError, OSError):
      pass


@pytest.mark.parametrize('kind', irregular_files.KINDS)
def test_no_reader_waits_or_fails(tmp_path, kind):
  """First each file alone, then all of them at once."""
  store = column_store.ColumnStore(str(tmp_path / 'cache'))
  for name in _FILES:
    run = folders.make(tmp_path, f'run-{name.replace("/", "_")}', _EVENTS)
    irregular_files.put(kind, run.file(name))
    with irregular_files.seconds(20):
      _read_all(run, store)
  run = folders.make(tmp_path, 'all', _EVENTS)
  for name in _FILES:
    irregular_files.put(kind, run.file(name))
  with irregular_files.seconds(20):
    _read_all(run, store)


@pytest.mark.slow
def test_the_command_line_neither(tmp_path):
  for kind in irregular_files.KINDS:
    run = folders.make(tmp_path, kind, _EVENTS)
    for name in _FILES:
      irregular_files.put(kind, run.file(name))
  folders.make(tmp_path, 'sound', _EVENTS)
  main = [sys.executable, '-m', 'official_ext.cli.main', 'runs']
  listed = subprocess.run([*main, 'list', str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
  assert listed.returncode == 0 and 'sound' in listed.stdout, listed.stderr
  for kind in irregular_files.KINDS:
    for command in (['show', f'{tmp_path}/{kind}'], ['log', f'{tmp_path}/{kind}']):
      done = subprocess.run([*main, *command], capture_output=True, text=True, timeout=60, check=False)
      assert done.returncode in (0, 2) and 'Traceback' not in done.stderr, done.stderr
  assert done.returncode == 2 and done.stderr == (
    f'error: {tmp_path}/loop/run.log: is a loop of links; a run keeps its output there, move it away\n'
  )


@pytest.mark.slow
def test_files_of_any_size_are_read_in_bounded_memory_and_time(tmp_path):
  """A record of 2 GB; and a line of 300 MB between two events, behind which the later one counts everywhere."""
  run = folders.make(tmp_path, 'run', [folders.event('train', 1, loss=1.0)])
  with open(run.file('run.json'), 'r+b') as file:
    file.truncate(2 << 30)
  with open(run.file('events.jsonl'), 'r+b') as file:
    file.seek(300 << 20, os.SEEK_END)
    file.write(b'\n')
  with open(run.file('events.jsonl'), 'a') as file:
    file.write('{"time": 1700000002.0, "event": "train", "step": 2, "loss": 0.5}\n')
  store = column_store.ColumnStore(str(tmp_path / 'cache'))
  with irregular_files.seconds(60):
    _read_all(run, store)
    assert run_index.summary_of(run).step == 2
    assert sweep_points.read_history(run.file('events.jsonl'), 'loss').values == (1.0, 0.5)
    assert [event['step'] for event in writers.read_events(run.file('events.jsonl'))] == [1, 2]
    columns = store.columns(run.file('events.jsonl'))
    columns.update()
    lines, values = columns.metric('loss')
    assert values.tolist() == [1.0, 0.5] and columns.steps[lines].tolist() == [1, 2]
