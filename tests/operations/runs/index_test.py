"""Tests for index and summaries."""

import dataclasses
import json
import os
import time

import pytest

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.operations.runs import event_log
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture
def runs(tmp_path):
  root = tmp_path / 'runs'
  events = [
    event('train', 40, training_loss=0.5, percent=40.0, eta_seconds=60.0, steps_per_second=2.0),
    event('eval', 40, accuracy=0.75, validation_loss=0.625, seconds=1.0),
  ]
  events[0]['time'] = time.time()
  folders.make(root, 'a', events)
  folders.make(root, 'b', [event('train', 100, training_loss=0.25)], status='finished', step=100, rate=1e-2)
  return root


def _index(tmp_path):
  return run_index.RunIndex(str(tmp_path / 'runs'), str(tmp_path / 'cache'))


def _summaries(tmp_path):
  return {each.name: each for each in _index(tmp_path).summaries()}


def _lasting(tmp_path):
  """The summaries without fields that change with time."""
  return {name: dataclasses.replace(each, eta_seconds=None) for name, each in _summaries(tmp_path).items()}


def _old(root):
  """Makes all files as old as a cache believes."""
  for folder, _, names in os.walk(root):
    for name in names:
      os.utime(os.path.join(folder, name), (1.7e9, 1.7e9))


def test_a_summary_shows_how_far_a_run_is(tmp_path, runs):
  a, b = _index(tmp_path).summaries()
  assert (a.name, a.status, a.step, a.train_steps, a.percent) == ('a', 'running', 40, 100, 40.0)
  assert 50 < a.eta_seconds <= 60
  assert a.train == {'training_loss': 0.5}
  assert a.evaluation == {'accuracy': 0.75, 'validation_loss': 0.625}
  assert (a.metric('accuracy'), a.metric('validation_accuracy'), a.metric('none')) == (0.75, 0.75, None)
  assert (b.status, b.percent, b.eta_seconds, b.experiment) == ('finished', 100.0, None, 'digits')
  assert run_index.summary_of(run_folders.get_run(str(runs), 'a')).evaluation == a.evaluation
  json.dumps(a.as_dict(), allow_nan=False)


def test_only_what_has_changed_is_read_again(tmp_path, runs, monkeypatch):
  _old(runs)
  before = _lasting(tmp_path)
  read = []
  original = event_log.read_last
  monkeypatch.setattr(event_log, 'read_last', lambda path: read.append(path) or original(path))
  assert _lasting(tmp_path) == before  # By another index, from the file.
  assert read == []
  with open(runs / 'b' / 'events.jsonl', 'a') as file:
    file.write(json.dumps(event('eval', 100, accuracy=0.875)) + '\n')
  assert _summaries(tmp_path)['b'].evaluation == {'accuracy': 0.875}
  assert read == [str(runs / 'b' / 'events.jsonl')]


def test_a_file_that_has_just_changed_is_not_believed(tmp_path, runs):
  """Its next version may have the same size and time."""
  listed = _index(tmp_path)
  path = runs / 'b' / 'notes.json'
  path.write_text('{"tags": ["x"]}')
  stat = os.stat(path)
  assert listed.summaries()[1].tags == ('x',)
  path.write_text('{"tags": ["y"]}')
  os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  assert listed.summaries()[1].tags == ('y',)


def test_a_cache_that_is_missing_damaged_or_old_is_made_anew(tmp_path, runs):
  _old(runs)
  before = _lasting(tmp_path)
  (path,) = (tmp_path / 'cache').iterdir()
  content = path.read_bytes()
  header, entries = content.split(b'\n', 1)
  old = json.dumps({**json.loads(header), 'version': 'older'}).encode()
  for damage in (b'', b'\0' * 100, content[:-10], content.replace(b'0.75', b'0.99'), old + b'\n' + entries):
    path.write_bytes(damage)
    assert _lasting(tmp_path) == before
    assert path.read_bytes() == content
  path.unlink()
  path.mkdir()  # It cannot be written.
  assert _lasting(tmp_path) == before


def test_runs_that_come_and_go_are_seen(tmp_path, runs):
  listed = _index(tmp_path)
  assert [each.name for each in listed.summaries()] == ['a', 'b']
  os.rename(runs / 'b', runs / 'c')
  folders.make(runs, 'd', record_values=False)
  found = listed.summaries()
  assert [(each.name, each.status) for each in found] == [('a', 'running'), ('c', 'finished'), ('d', 'unknown')]
  assert found[1].path == str(runs / 'c')


def test_whether_a_process_lives_is_never_cached(tmp_path):
  process = folders.subprocess.Popen(['sleep', '600'])
  try:
    own = processes.own_identity()
    identity = processes.ProcessIdentity(
      own.host, process.pid, processes.start_of(process.pid), own.boot_id, own.pid_namespace
    )
    folders.make(tmp_path / 'runs', 'a', identity=identity)
    _old(tmp_path / 'runs')
    assert _summaries(tmp_path)['a'].status == 'running'
  finally:
    process.kill()
    process.wait()
  assert _summaries(tmp_path)['a'].status == 'dead'


def test_a_run_that_has_ended_is_summarised_once_and_one_that_is_started_again_each_time(tmp_path, runs):
  _old(runs)
  listed = _index(tmp_path)
  before, after = ({each.name: each for each in listed.summaries()} for _ in range(2))
  assert after['b'] is before['b'] and after['a'] is not before['a']
  process = folders.subprocess.Popen(['sleep', '600'])
  try:
    own = processes.own_identity()
    identity = processes.ProcessIdentity(
      own.host, process.pid, processes.start_of(process.pid), own.boot_id, own.pid_namespace
    )
    started = {**identity.as_dict(), 'started': json_values.timestamp_now(), 'ended': None, 'exit_status': None}
    (runs / 'b' / 'started.json').write_text(json.dumps(started))
    _old(runs)
    assert listed.summaries()[1].status == 'starting'
  finally:
    process.kill()
    process.wait()
  assert listed.summaries()[1].status == 'dead'  # No file has changed.


def test_configurations_have_short_names(tmp_path, runs):
  _old(runs)
  found = _index(tmp_path).params()
  assert [found[name]['learning_rate'] for name in ('a', 'b')] == [1e-3, 1e-2]
  assert found['a']['trainer.train_steps'] == 100
  assert _index(tmp_path).params() == found


def test_notes_outlive_many_writers_and_a_damaged_file(tmp_path):
  run = folders.make(tmp_path / 'runs', 'a')
  with open(run.file(run_folders.NOTES), 'w') as file:
    file.write('{"tags": ["kept", 3, ""], "note": 7')
  assert run_folders.read_notes(run) == run_folders.Notes()
  code = """
import sys
from official_ext.operations.runs import run_folders
for number in range(5):
  run_folders.change_notes(run_folders.Run(sys.argv[1], 'a'), [f'{sys.argv[2]}-{number}'])
"""
  writers = [folders.subprocess.Popen([folders.sys.executable, '-c', code, run.path, word]) for word in 'xy']
  assert [writer.wait(60) for writer in writers] == [0, 0]
  assert run_folders.read_notes(run).tags == tuple(f'{word}-{i}' for word in 'xy' for i in range(5))
  run_folders.change_notes(run, remove=['x-0', 'none'], note='why')
  assert _summaries(tmp_path)['a'].note == 'why'
  assert len(_summaries(tmp_path)['a'].tags) == 9
  for tag in ('', 'a,b', 'a\nb', 'x' * 101):
    with pytest.raises(errors.UserError, match='--tag='):
      run_folders.change_notes(run, [tag])


def test_a_configuration_with_dates_is_listed(tmp_path):
  run = folders.make(tmp_path, 'a')
  with open(run.file('params.yaml'), 'w') as file:
    file.write('task: {days: [2020-01-01, 3]}\n')
  for _ in range(2):  # From the file, and from the cache.
    found = run_index.RunIndex(str(tmp_path), str(tmp_path / 'cache')).params()
    assert str(found['a']['task.days']) in ("['2020-01-01', 3]", '[datetime.date(2020, 1, 1), 3]')
