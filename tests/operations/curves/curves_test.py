"""Tests for curves, their columns and their decimation."""

import json
import math
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.base.run_folder import run_files
from official_ext.operations.curves import column_filler
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves
from official_ext.operations.curves import decimation
from official_ext.operations.curves import event_columns
from official_ext.operations.curves import event_lines
from tests import tiers
from tests.operations.curves import decimated
from tests.operations.runs import folders
from tests.operations.runs.folders import event

_NAN, _INF = float('nan'), float('inf')


@pytest.fixture
def store(tmp_path):
  return column_store.ColumnStore(str(tmp_path / 'cache'))


def _curve(store, run, name, **view):
  return curves.read(store, [run], [name], curves.View(**view)).curves[run.name, name]


def _lines(*events):
  return ''.join(json.dumps(each) + '\n' for each in events)


def _expected(path, kind, name):
  """The result of a plain reader: (step, value) of the lines that stand."""
  events = [run_files.parse_event(line) for line in open(path, 'rb').read().split(b'\n')[:-1]]
  standing = run_files.standing_events([each for each in events if each is not None and each['step'] < 2**62])
  numbers = (int, float)
  found = []
  for each in standing:
    value = each.get(name)
    value = float(value) if value in ('NaN', 'Infinity', '-Infinity') else value
    if each['event'] == kind and isinstance(value, numbers) and not isinstance(value, bool):
      found.append((each['step'], float(value)))
  return found


def _found(path, kind, name, folder=None):
  columns = event_columns.EventColumns(str(path), folder)
  columns.update()
  assert any(each.is_spilled for each in columns._arrays()) == (folder is not None)
  lines, values = columns.metric(name)
  keep = (columns.kinds[lines] == kind) & columns.standing[lines]
  return list(zip(columns.steps[lines][keep].tolist(), values[keep].tolist()))


@tiers.parametrize('spills', [False, True], fast=1)
def test_columns_are_what_a_plain_reader_finds(tmp_path, monkeypatch, spills):
  """For any form of the lines: as they are written, by another program, damaged, odd; in memory and in files."""
  monkeypatch.setattr(event_columns, '_BLOCK', 1000)
  monkeypatch.setattr(event_columns, '_CHUNK', 100)
  monkeypatch.setattr(event_columns, 'SPILL_BYTES', 1000)
  cache = str(tmp_path / 'cache') if spills else None
  rng = random.Random(0)
  values = [0, 1, -2.5, 1e-300, 1.7976931348623157e308, 5e-324, 123456789012345, 'NaN', 'Infinity', '-Infinity']
  values += ['text', '5', None, True, [1, 2], '"loss": 7', ', "loss": 7']
  odd = ['', 'no event', '{"event": "train"}', '{"event": "train", "step": 1.5, "loss": 3}', '[1]', '{"time": 1, "ev']
  odd += ['{"step": 3, "event": "train", "loss": 4}', '{"time":5,"event":"train","step":4,"loss":2.5}', 'é' * 300]
  odd += [
    '{"time": -1.5, "event": "eval", "step": 4, "loss": 1}',
    '{"time": 1e3, "event": "train", "step": 5, "loss": 1}',
  ]
  odd += [
    '{"time": 1.0, "event": "train", "step": 99999999999999999999, "loss": 1}',
    '{"loss": 8, "event": "eval", "step": 2}',
  ]
  odd += [
    '{"time": 1.0, "event": "train", "step": 3, "loss": NaN}',
    '{"time": 1.0, "event": "trainer", "step": 3, "loss": 1}',
  ]
  lines, step = [], 0
  for _ in range(2000):
    step += 1
    draw = rng.random()
    if draw < 0.01:
      step = max(0, step - rng.randrange(50))
      lines.append(json.dumps(event(rng.choice(['restored', 'rollback']), step, evaluation_pending=rng.random() < 0.5)))
    elif draw < 0.1:
      lines.append(rng.choice(odd))
    else:
      kind = rng.choice(['train', 'train', 'train', 'eval', 'checkpoint', 'start'])
      others = {name: rng.choice(values) for name in ('a', 'x"loss', 'my_loss', 'loss2') if rng.random() < 0.5}
      found = {'loss': rng.choice(values)} if rng.random() < 0.9 else {}
      lines.append(json.dumps({**event(kind, step), **others, **found, 'z': 1}))
  path = tmp_path / 'events.jsonl'
  path.write_text('\n'.join(lines) + '\n{"time": 1.0, "event": "train", "step": 1, "loss": 1')
  for number, kind in enumerate(event_columns.KINDS):
    for name in ('loss', 'a', 'x"loss', 'loss2', 'none'):
      np.testing.assert_equal(_found(path, number, name, cache), _expected(path, kind, name), f'{kind}/{name}')
  assert len(_expected(path, 'train', 'loss')) > 300


def test_a_file_that_grows_is_read_once(store, tmp_path, monkeypatch):
  run = folders.make(tmp_path, 'run', [event('train', step, loss=step) for step in range(1, 5)])
  assert _curve(store, run, 'train/loss').y.tolist() == [1, 2, 3, 4]
  read, parse = [], event_columns.EventColumns._parse

  def counting(self, content, first):
    read.append(content)
    return parse(self, content, first)

  monkeypatch.setattr(event_columns.EventColumns, '_parse', counting)
  new = json.dumps(event('train', 5, loss=5, other=1))
  with open(run.file('events.jsonl'), 'a') as file:
    file.write(new[:30])
    file.flush()
    assert _curve(store, run, 'train/loss').y.tolist() == [1, 2, 3, 4]  # Half a line does not count.
    assert read == []
    file.write(new[30:] + '\n')
  assert _curve(store, run, 'train/loss').y.tolist() == [1, 2, 3, 4, 5]
  assert _curve(store, run, 'train/other').x.tolist() == [5]
  assert curves.names(store, run) == ['train/loss', 'train/other']
  assert b''.join(read) == new.encode() + b'\n'
  # A run that is restored: its earlier events are superseded.
  with open(run.file('events.jsonl'), 'a') as file:
    file.write(_lines(event('restored', 3), event('train', 4, loss=40)))
  assert _curve(store, run, 'train/loss').y.tolist() == [1, 2, 3, 40]
  assert _curve(store, run, 'train/loss').x.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize('is_same_file', [True, False])
def test_a_file_that_is_begun_anew_is_read_anew(store, tmp_path, is_same_file):
  run = folders.make(tmp_path, 'run', [event('train', 1, loss=1)])
  assert _curve(store, run, 'train/loss').y.tolist() == [1]
  text = _lines(*[event('train', step, loss=10 * step) for step in (1, 2, 3)])
  if not is_same_file:
    os.unlink(run.file('events.jsonl'))
  with open(run.file('events.jsonl'), 'w') as file:
    file.write(text)
  assert _curve(store, run, 'train/loss').y.tolist() == [10, 20, 30]
  os.unlink(run.file('events.jsonl'))
  assert curves.names(store, run) == []
  assert not curves.read(store, [run], ['train/loss']).curves


def test_the_cache_serves_another_process_and_is_only_a_cache(tmp_path, monkeypatch):
  monkeypatch.setattr(column_store, '_WORTH_KEEPING', 1)
  run = folders.make(tmp_path, 'run', [event('train', step, loss=step) for step in range(1, 5)])
  folder = tmp_path / 'cache'
  expected = _curve(column_store.ColumnStore(str(folder)), run, 'train/loss').y.tolist()
  (kept,) = folder.iterdir()
  with monkeypatch.context() as patch:
    patch.setattr(event_columns.EventColumns, '_parse', None)  # Nothing is parsed.
    patch.setattr(event_lines, 'numbers_in', None)
    assert _curve(column_store.ColumnStore(str(folder)), run, 'train/loss').y.tolist() == expected
  with open(run.file('events.jsonl'), 'a') as file:
    file.write(_lines(event('train', 5, loss=5)))
  assert _curve(column_store.ColumnStore(str(folder)), run, 'train/loss').y.tolist() == [*expected, 5]
  content = kept.read_bytes()
  for damaged in (b'', content[:-1], content[: len(content) // 2], b'{}\n' + content, bytes(1000)):
    kept.write_bytes(damaged)
    assert _curve(column_store.ColumnStore(str(folder)), run, 'train/loss').y.tolist() == [*expected, 5]
  kept.write_bytes(content)
  (tmp_path / 'run' / 'events.jsonl').write_text(_lines(event('train', 7, loss=7)))
  assert _curve(column_store.ColumnStore(str(folder)), run, 'train/loss').y.tolist() == [7]


def test_very_many_points_are_made_twice_and_are_the_same(store, tmp_path, monkeypatch):
  runs = [folders.make(tmp_path, f'run{i}', [event('train', s, loss=s + i) for s in range(1, 100)]) for i in range(3)]
  once = curves.as_dict(curves.read(store, runs, ['train/loss'], curves.View(buckets=20)))
  monkeypatch.setattr(curves, '_MAX_KEPT', 150)
  assert curves.as_dict(curves.read(store, runs, ['train/loss'], curves.View(buckets=20))) == once


def test_memory_has_a_limit(tmp_path):
  runs = [folders.make(tmp_path, f'run{i}', [event('train', s, loss=s) for s in range(100)]) for i in range(5)]
  store = column_store.ColumnStore(str(tmp_path / 'cache'), max_bytes=10_000)
  for _ in range(2):
    found = curves.read(store, runs, ['train/loss'])
    assert [len(curve.x) for curve in found.curves.values()] == [100] * 5
    assert sum(each.nbytes for each in store._known.values()) <= 10_000


def test_x_by_step_time_pauses_and_examples(store, tmp_path):
  """Two attempts: the first of 4 steps of 10 examples, a pause of 1,000 s, the second from step 2 with 20 examples."""

  def at(time, name, step, **values):
    return {'time': time, 'event': name, 'step': step, **values}

  start = 1_700_000_000.0
  events = [at(start, 'start', 0, effective_batch_size=10)]
  events += [at(start + step, 'train', step, loss=step) for step in (1, 2, 3, 4)]
  events += [at(start + 1004, 'start', 0, effective_batch_size=20), at(start + 1005, 'restored', 2)]
  events += [at(start + 1005 + step, 'train', step, loss=step) for step in (3, 4)]
  run = folders.make(tmp_path, 'run', events)
  expected = {
    'step': [1, 2, 3, 4],
    'time': [1, 2, 1008, 1009],
    'active': [1, 2, 8, 9],
    'wall': [start + 1, start + 2, start + 1008, start + 1009],
    'examples': [10, 20, 40, 60],
  }
  assert {x: _curve(store, run, 'train/loss', x=x).x.tolist() for x in curves.AXES} == expected
  # An evaluation beside it is placed by the training's clock, and by its batches.
  (tmp_path / 'run' / 'run.continuous_eval.json').write_text(json.dumps(folders.record(mode='continuous_eval')))
  (tmp_path / 'run' / 'events.continuous_eval.jsonl').write_text(_lines(at(start + 1010, 'eval', 4, accuracy=0.5)))
  name = 'continuous_eval:eval/accuracy'
  assert name in curves.names(store, run)
  assert {x: _curve(store, run, name, x=x).x.tolist() for x in curves.AXES} == {
    'step': [4],
    'time': [1010],
    'active': [10],
    'wall': [start + 1010],
    'examples': [60],
  }
  other = folders.make(tmp_path, 'old', [event('train', 1, loss=1)])
  found = curves.read(store, [run, other], ['train/loss'], curves.View(x='examples'))
  assert (found.lacking, list(found.curves)) == (('old',), [('run', 'train/loss')])


def test_one_spike_and_one_nan_of_50000_points_stay():
  x = np.arange(50_000.0)
  y = np.sin(x / 1000)
  y[12_345], y[23_456], y[34_567], y[45_678] = 1e6, _NAN, _INF, -_INF
  curve = decimated.decimate(x, y, 0, 49_999, 500)
  assert curve.num_points == 50_000 and len(curve.x) == 500
  assert curve.high.max() == 1e6
  assert abs(float(curve.x[curve.high.argmax()]) - 12_345) < 100
  assert {name: places.tolist() for name, places in curve.marks.items()} == {
    'NaN': [23_456],
    'Infinity': [34_567],
    '-Infinity': [45_678],
  }
  assert curve.num_marks == {'NaN': 1, 'Infinity': 1, '-Infinity': 1}
  json.dumps(curve.as_dict(), allow_nan=False)


@pytest.mark.parametrize('log', [False, True])
def test_buckets_have_the_least_the_greatest_the_mean_and_their_order(log):
  rng = np.random.default_rng(0)
  x = np.sort(rng.uniform(1, 1000, 3000))
  y = rng.normal(size=3000)
  curve = decimated.decimate(x, y, 1, 1000, 40, log)
  scaled = np.log10(x) / 3 if log else (x - 1) / 999
  index = np.minimum((scaled * 40).astype(int), 39)
  there = np.unique(index)
  for number, bucket in enumerate(there):
    own = y[index == bucket]
    assert (curve.low[number], curve.high[number]) == (own.min(), own.max())
    assert curve.mean[number] == pytest.approx(own.mean())
    assert bool(curve.rises[number]) == bool(own.argmin() <= own.argmax())
    assert curve.x[number] == x[index == bucket].max()
  assert len(curve.x) == len(there)


@pytest.mark.parametrize('log', [False, True])
@pytest.mark.parametrize('order', ['ascending', 'with jumps back', 'at random'])
@pytest.mark.parametrize('ends', [(1, 1000), (300, 310), (0, 2000), (-5, 0.5)])
def test_points_that_come_in_parts_make_the_same_curve(log, order, ends):
  rng = np.random.default_rng(0)
  x = np.round(rng.uniform(0.5, 1000, 5000), 1)  # Some places more than once.
  x = {
    'ascending': np.sort(x),
    'at random': x,
    'with jumps back': np.concatenate([np.sort(x[:3000]), np.sort(x[3000:])]),
  }[order]
  y = np.round(rng.normal(size=5000), 1)  # Some values too.
  y[rng.integers(0, 5000, 30)] = rng.choice([_NAN, _INF, -_INF], 30)
  whole = decimated.decimate(x, y, *ends, 50, log)
  made = decimation.Decimation(*ends, 50, log, float(x.min()))
  place = 0
  while place < len(x):
    size = int(rng.integers(1, 700))
    made.add(x[place : place + size], y[place : place + size])
    place += size
  found, expected = made.curve().as_dict(), whole.as_dict()
  means = [np.array(each.pop('mean', [])) for each in (found, expected)]
  np.testing.assert_allclose(*means, atol=1e-12)
  if order != 'ascending':  # The order of equal values at one place is that in which they came.
    rises = [each.pop('rises', '') for each in (found, expected)]
    assert sum(one != other for one, other in zip(*rises)) <= 3
  assert found == expected


def test_few_points_are_what_they_are():
  x, y = np.array([3.0, 1.0, 2.0, 4.0]), np.array([30.0, 10.0, _NAN, 40.0])
  curve = decimated.decimate(x, y, 1, 4, 10)
  assert (curve.as_dict()['x'], curve.as_dict()['y']) == ([1, 2, 3, 4], [10, None, 30, 40])
  assert curve.marks['NaN'].tolist() == [2]
  # A part of the axis: the nearest points outside stay, so that the line reaches its ends.
  assert decimated.decimate(x, y, 2.5, 2.75, 10).x.tolist() == [2, 3]
  assert decimated.decimate(x, y, 2.5, 2.75, 10).num_points == 0


def test_curves_without_a_finite_point_still_have_their_marks():
  x = np.arange(1000.0)
  curve = decimated.decimate(x, np.full(1000, _NAN), 0, 999, 10)
  assert len(curve.marks['NaN']) >= 10 and curve.num_marks == {'NaN': 1000}
  assert json.loads(json.dumps(curve.as_dict(), allow_nan=False))['x'] == []
  greatest = np.full(1000, np.finfo(float).max)
  assert (decimated.decimate(x, greatest, 0, 999, 10).mean == greatest[0]).all()
  log = decimated.decimate(x - 500, np.ones(1000), -500, 499, 10, log=True)
  assert log.num_points == 499


def test_mistakes_in_a_view_are_reported(store, tmp_path):
  run = folders.make(tmp_path, 'run')
  for name in ('loss', 'checkpoint/loss', '../x:eval/loss'):
    with pytest.raises(errors.UserError, match='no curve'):
      curves.read(store, [run], [name])
  for view in ({'x': 'epoch'}, {'first': 2.0, 'last': 1.0}, {'first': math.nan}, {'buckets': 0}, {'buckets': 10**9}):
    with pytest.raises(errors.UserError):
      curves.View(**view)


def _write_long(path, count, width=200):
  """A file of so many training events, with an evaluation for each hundred, a restore, and an odd line."""
  text = 'x' * width
  with open(path, 'w') as file:
    for step in range(1, count + 1):
      file.write(
        f'{{"time": {1.7e9 + step}, "event": "train", "step": {step}, "loss": {step / count}, "t": "{text}"}}\n'
      )
      if step % 100 == 0:
        file.write(json.dumps({'time': 1.7e9 + step, 'event': 'eval', 'step': step, 'accuracy': step / count}) + '\n')
      if step == count // 2:
        file.write('no event\n' + json.dumps(event('restored', step // 2)) + '\n')


def test_a_long_file_shows_a_sample_until_it_is_read(tmp_path, monkeypatch):
  monkeypatch.setattr(column_store, '_MUCH', 1 << 18)
  monkeypatch.setattr(event_lines, '_BLOCK', 8 << 10)
  store = column_store.ColumnStore(str(tmp_path / 'cache'), fill=column_filler.run)
  run = folders.make(tmp_path, 'run', [])
  _write_long(run.file('events.jsonl'), 20_000)
  assert curves.names(store, run, is_patient=False) == ['train/loss', 'eval/accuracy']
  wanted = ['train/loss', 'eval/accuracy']
  coarse = curves.read(store, [run], wanted, is_patient=False)
  for _ in range(1000):
    whole = curves.read(store, [run], wanted, is_patient=False)
    if not whole.is_coarse:
      break
    time.sleep(0.02)
  assert coarse.is_coarse and not whole.is_coarse
  assert curves.as_dict(whole) == curves.as_dict(
    curves.read(column_store.ColumnStore(str(tmp_path / 'x')), [run], wanted)
  )
  for name in wanted:
    found, expected = coarse.curves['run', name], whole.curves['run', name]
    assert 0 < found.num_points < expected.num_points
    assert max(abs(found.x.min() - expected.x.min()), abs(found.x.max() - expected.x.max())) <= 2000
    values = found.mean if found.is_decimated else found.y
    np.testing.assert_allclose(values, found.x / 20_000, atol=0.03)
  # What grows by little is read at once.
  with open(run.file('events.jsonl'), 'a') as file:
    file.write(json.dumps(event('train', 20_001, loss=5)) + '\n')
  again = curves.read(store, [run], wanted, is_patient=False)
  assert not again.is_coarse and again.curves['run', 'train/loss'].x.max() == 20_001


def test_a_long_file_is_read_at_once_if_there_is_no_place_for_its_columns(tmp_path, monkeypatch):
  monkeypatch.setattr(column_store, '_MUCH', 1 << 18)
  (tmp_path / 'file').touch()
  store = column_store.ColumnStore(str(tmp_path / 'file'), fill=column_filler.run)
  run = folders.make(tmp_path, 'run', [])
  _write_long(run.file('events.jsonl'), 5_000)
  for _ in range(1000):
    found = curves.read(store, [run], ['train/loss'], is_patient=False)
    if not found.is_coarse:
      break
    time.sleep(0.02)
  assert not found.is_coarse and found.curves['run', 'train/loss'].x.max() == 5_000


_PEAK = """
import sys
from official_ext.operations.curves import column_store, curves
from official_ext.operations.runs import run_folders
from tests import tiers


def peak():
  lines = open('/proc/self/status').read().splitlines()
  return int(next(line for line in lines if line.startswith('VmHWM')).split()[1]) / 1024


run, before = run_folders.Run(sys.argv[1], 'run'), peak()
store = column_store.ColumnStore(sys.argv[2])
found = curves.read(store, [run], ['train/loss', 'eval/accuracy'])
assert found.curves['run', 'train/loss'].num_points > 100, found
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
  taken = []
  for number, count in enumerate((150_000, 900_000)):
    run = folders.make(tmp_path, f'run{number}', [])
    _write_long(run.file('events.jsonl'), count, width=30)
    words = [sys.executable, '-c', _PEAK, run.path, str(tmp_path / 'cache')]
    taken.append(float(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
  assert taken[1] < 60  # MB; the columns alone have 33.
  assert taken[1] - taken[0] < 20
