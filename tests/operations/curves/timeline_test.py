"""Tests for the line of time of a run."""

import json

from official_ext.operations.curves import column_store
from official_ext.operations.curves import timing
from tests.operations.runs import folders
from tests.operations.runs.folders import event


def _read(tmp_path, run, **options):
  return timing.read_timeline(column_store.ColumnStore(str(tmp_path / 'cache')), run, **options)


def test_events_by_time_with_those_of_an_evaluation_beside_it(tmp_path):
  events = [event('start', 0, mode='train')]
  events += [event('train', step, loss=1.0) for step in range(1, 50)]
  events += [event('checkpoint', 20, checkpoint='a'), event('eval', 20, accuracy=0.5), event('checkpoint', 40)]
  events += [event('rollback', 20, from_step=40), event('update_skipped', 21), event('update_skipped', 25)]
  run = folders.make(tmp_path, 'run', events)
  (tmp_path / 'run' / 'run.continuous_eval.json').write_text(json.dumps(folders.record(mode='continuous_eval')))
  beside = event('eval', 30, accuracy='NaN')
  (tmp_path / 'run' / 'events.continuous_eval.jsonl').write_text(json.dumps(beside) + '\n')
  found = _read(tmp_path, run)
  assert [(each.event, each.first_step, each.step, each.count, each.mode) for each in found.events] == [
    ('start', 0, 0, 1, ''),
    ('checkpoint', 20, 20, 1, ''),
    ('eval', 20, 20, 1, ''),
    ('eval', 30, 30, 1, 'continuous_eval'),
    ('checkpoint', 40, 40, 1, ''),
    ('rollback', 20, 20, 1, ''),
    ('update_skipped', 21, 25, 2, ''),
  ]
  assert [each.event for each in found.events if each.is_superseded] == ['checkpoint']
  assert found.events[0].values == {'mode': 'train'}
  json.dumps([each.as_dict() for each in found.events], allow_nan=False)


def test_a_clock_that_is_set_back_changes_the_order_of_no_file(tmp_path):
  steps = range(10, 70, 10)
  events = [{**event('eval', step), 'time': 1e9 + step - (3600 if step > 30 else 0)} for step in steps]
  run = folders.make(tmp_path, 'run', events)
  assert [each.step for each in _read(tmp_path, run).events] == list(steps)


def test_only_the_last_lines_are_read(tmp_path):
  run = folders.make(tmp_path, 'run', [event('eval', step, accuracy=0.5) for step in range(100)])
  found = _read(tmp_path, run, limit=10)
  assert ([each.step for each in found.events], found.num_left_out) == (list(range(90, 100)), 90)


def test_what_is_large_or_odd_is_cut(tmp_path):
  odd = event('failed', 3, error='x' * 10_000, many=list(range(10_000)), **{f'n{i}': i for i in range(100)})
  found = _read(tmp_path, folders.make(tmp_path, 'run', [odd]))
  assert len(json.dumps(found.events[0].as_dict())) < 3000
  assert _read(tmp_path, folders.make(tmp_path, 'empty')).events == ()
