"""A metric of a run as the axis of its curves."""

import random

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves
from official_ext.operations.curves import event_columns
from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture
def store(tmp_path):
  return column_store.ColumnStore(str(tmp_path / 'cache'))


def _read(store, run, name, **view):
  return curves.read(store, [run], [name], curves.View(**view))


def test_points_are_at_the_value_of_the_metric_at_their_step(store, tmp_path):
  events = [event('train', step, loss=1 / step, tokens=100 * step) for step in (10, 20, 30)]
  events += [event('eval', step, accuracy=step / 100) for step in (20, 25, 30)]  # Step 25 has no tokens.
  run = folders.make(tmp_path, 'run', sorted(events, key=lambda each: each['step']))
  found = _read(store, run, 'train/loss', x='train/tokens')
  curve = found.curves[run.name, 'train/loss']
  assert (curve.x.tolist(), curve.y.tolist()) == ([1000, 2000, 3000], [1 / 10, 1 / 20, 1 / 30])
  assert (found.first, found.last, found.unplaced, found.lacking, found.unordered) == (1000, 3000, {}, (), ())
  found = _read(store, run, 'eval/accuracy', x='train/tokens')
  curve = found.curves[run.name, 'eval/accuracy']
  assert (curve.x.tolist(), curve.y.tolist()) == ([2000, 3000], [0.2, 0.3])
  assert found.unplaced == {(run.name, 'eval/accuracy'): 1}
  (as_json,) = curves.as_dict(found)['curves']
  assert (as_json['num_points'], as_json['num_unplaced']) == (2, 1)
  # The other way round, of a metric that falls.
  found = _read(store, run, 'eval/accuracy', x='train/loss')
  curve = found.curves[run.name, 'eval/accuracy']
  assert (curve.x.tolist(), curve.y.tolist()) == ([1 / 30, 1 / 20], [0.3, 0.2])
  assert found.unordered == (run.name,)


def test_values_that_a_restore_has_superseded_or_that_are_not_finite_are_no_places(store, tmp_path):
  events = [event('train', 1, loss=1.0, tokens=10), event('train', 2, loss=2.0, tokens=99), event('restored', 1)]
  events += [event('train', 2, loss=3.0, tokens=20), event('train', 3, loss=4.0, tokens='NaN')]
  run = folders.make(tmp_path, 'run', events)
  found = _read(store, run, 'train/loss', x='train/tokens')
  curve = found.curves[run.name, 'train/loss']
  assert (curve.x.tolist(), curve.y.tolist()) == ([10, 20], [1, 3])
  assert found.unplaced == {(run.name, 'train/loss'): 1} and found.unordered == ()


def test_the_axis_may_be_of_another_file_and_a_run_may_lack_it(store, tmp_path):
  run = folders.make(tmp_path, 'run', [event('train', step, loss=float(step)) for step in (1, 2, 3)])
  other = folders.make(tmp_path, 'other', [event('train', 1, loss=1.0)])
  with open(run.file_of_mode('events', 'jsonl', 'system'), 'w') as file:
    file.write('{"time": 1.0, "event": "system", "step": 2, "cpu_percent": 50}\n')
  view = curves.View(x='system:system/cpu_percent')
  found = curves.read(store, [run, other], ['train/loss'], view)
  assert found.curves[run.name, 'train/loss'].x.tolist() == [50]
  assert found.lacking == (other.name,) and (other.name, 'train/loss') not in found.curves


@pytest.mark.parametrize('spills', [False, True])
def test_a_long_curve_is_joined_as_a_dictionary_would(tmp_path, monkeypatch, spills):
  """In chunks, in memory and in files, with several values at one step and steps out of their order."""
  monkeypatch.setattr(curves, '_AXIS_CHUNK', 7)
  monkeypatch.setattr(event_columns, '_PART', 7)
  monkeypatch.setattr(event_columns, 'SPILL_BYTES', 100 if spills else 1 << 20)
  store, rng = column_store.ColumnStore(str(tmp_path / 'cache')), random.Random(0)
  events, expected = [], {}
  for _ in range(500):
    step = rng.randrange(200)
    events.append(event('train', step, tokens=rng.random()))
    expected[step] = events[-1]['tokens']
  run = folders.make(tmp_path, 'run', events)
  axis = curves.MetricAxis(store.columns(run.file('events.jsonl')), 0, 'tokens')
  steps = np.arange(-5, 210)
  places = axis.places(steps, steps)
  assert {int(step): place for step, place in zip(steps, places) if np.isfinite(place)} == expected
  assert not axis.is_ordered


def test_an_invalid_axis_is_an_error(tmp_path):
  with pytest.raises(errors.UserError, match='x: tokens: no such axis; there are step, .* and names of curves'):
    curves.View(x='tokens')
  with pytest.raises(errors.UserError, match='other/tokens: no curve'):
    curves.View(x='other/tokens')
