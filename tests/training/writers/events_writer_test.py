"""Tests for json_lines. The file is read by a parser that knows strict JSON alone."""

import json
import math
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from official_ext.training.writers import writers


def _refuse(constant):
  raise AssertionError(f'{constant} is not JSON')


def _lines(path):
  text = path.read_text()
  assert text.endswith('\n')
  return [json.loads(line, parse_constant=_refuse) for line in text.splitlines()]


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'events.jsonl'


def test_lines_are_flat_and_in_order(path):
  writer = writers.EventsWriter(str(path))
  before = time.time()
  writer.write('start', 0, {'devices': '1 CPU', 'command': ['python', 'train.py'], 'error': None})
  writer.write('train', tf.constant(5, tf.int64), {'training_loss': tf.constant(0.1), 'a': {'b': {'c': np.int64(7)}}})
  start, train = _lines(path)  # Without close or flush.
  assert list(start) == ['time', 'event', 'step', 'devices', 'command', 'error']
  assert start['command'] == ['python', 'train.py'] and start['error'] is None
  assert before - 0.001 <= start['time'] <= train['time'] <= time.time() + 0.001  # In milliseconds.
  del train['time']
  assert train == {'event': 'train', 'step': 5, 'training_loss': float(np.float32(0.1)), 'a/b/c': 7}
  writer.close()


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('make', [float, np.float32, tf.constant])
def test_numbers_that_are_not_finite_survive_strict_json(path, value, make):
  writers.EventsWriter(str(path)).write('train', 1, {'loss': make(value), 'list': [value, 1.0]})
  (line,) = _lines(path)
  np.testing.assert_equal(float(line['loss']), value)
  np.testing.assert_equal(float(line['list'][0]), value)


def test_what_json_does_not_know(path):
  values = {
    'images': np.zeros([2, 4, 4, 3]),
    'matrix': tf.zeros([2, 2]),
    'positions': tf.constant([3, 1], tf.int64),
    'nothing': np.zeros([0]),
    'flag': np.bool_(True),
    'dtype': tf.float32,
    'step': 99,
  }
  writers.EventsWriter(str(path)).write('update_skipped', 4, values)
  (line,) = _lines(path)
  del line['time']
  assert line == {
    'event': 'update_skipped',
    'step': 4,
    'positions': [3, 1],
    'nothing': [],
    'flag': True,
    'dtype': str(tf.float32),
    'step_': 99,
  }


def test_a_second_writer_appends_behind_a_torn_line(path):
  first = writers.EventsWriter(str(path))
  first.write('train', 1, {})
  first.close()
  with path.open('a') as f:
    f.write('{"time": 1.0, "eve')
  second = writers.EventsWriter(str(path))
  second.write('train', 2, {})
  second.close()
  third = writers.EventsWriter(str(path))
  third.write('train', 3, {})
  third.close()
  assert len(path.read_text().splitlines()) == 4
  assert [event['step'] for event in writers.read_events(str(path))] == [1, 2, 3]


def test_later_lines_supersede_after_a_restore(path):
  writer = writers.EventsWriter(str(path))
  for event, step in [('start', 0), ('train', 10), ('checkpoint', 10), ('train', 20), ('start', 0), ('restored', 10)]:
    writer.write(event, step, {'attempt': 1})
  writer.write('train', 20, {'attempt': 2})
  writer.write('rollback', 10, {})
  writer.write('train', 20, {'attempt': 3})
  writer.close()
  standing = [(event['event'], event['step'], event.get('attempt')) for event in writers.read_events(str(path))]
  assert standing == [
    ('start', 0, 1),
    ('train', 10, 1),
    ('checkpoint', 10, 1),
    ('start', 0, 1),
    ('restored', 10, 1),
    ('rollback', 10, None),
    ('train', 20, 3),
  ]
  assert len(_lines(path)) == 9  # The file itself keeps everything.


def test_lines_of_a_killed_process_stay(path, start_script):
  process = start_script(
    """
    import os, signal, sys
    from official_ext.training.writers import writers as json_lines
    writer = json_lines.EventsWriter(sys.argv[1])
    for step in range(100):
      writer.write('train', step, {'loss': step / 3})
    os.kill(os.getpid(), signal.SIGKILL)
  """,
    [path],
  ).finish()
  assert process.returncode == -signal.SIGKILL, process.stderr
  assert [line['loss'] for line in _lines(path)] == [step / 3 for step in range(100)]
