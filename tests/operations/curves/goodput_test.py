"""Tests for the shares of a run's wall time."""

import dataclasses
import math

import pytest

from official_ext.operations.curves import column_store
from official_ext.operations.curves import timing
from tests.operations.runs import folders


def _at(time, event, step, **values):
  return {'time': 1e9 + time, 'event': event, 'step': step, **values}


def _read(tmp_path, events):
  return timing.read_goodput(column_store.ColumnStore(str(tmp_path / 'cache')), folders.make(tmp_path, 'run', events))


# Ten steps in 5 s, twice; killed 3 s later; restored from the first ten 20 s after the last event; ten steps in 4 s.
EVENTS = [
  _at(0, 'start', 0),
  _at(1, 'restored', 0),
  _at(8, 'compiled', 0, seconds=6.0),
  _at(13, 'train', 10, steps_per_second=2.0, data_wait=0.2),
  _at(15, 'eval', 10, seconds=2.0, accuracy=0.5),
  _at(16, 'checkpoint', 10, stall_seconds=0.5),
  _at(21, 'train', 20, steps_per_second=2.0, data_wait=0.2),
  _at(41, 'start', 10),
  _at(42, 'restored', 10),
  _at(45, 'compiled', 10, seconds=2.0),
  _at(49, 'train', 20, steps_per_second=2.5, data_wait=0.5),
  _at(50, 'finished', 20),
]


def test_each_second_is_counted_once(tmp_path):
  found = _read(tmp_path, EVENTS)
  expected = {
    'seconds': 50,
    'training': 5 * 0.8 + 4 * 0.5,
    'input': 5 * 0.2 + 4 * 0.5,
    'compilation': 8,
    'evaluation': 2,
    'saving': 0.5,
    'repeated': 5,
    'stopped': 20,
  }
  expected['other'] = 50 - sum(expected[name] for name in timing.GOODPUT_PARTS[:-1])
  assert dataclasses.asdict(found) == pytest.approx(expected)


def test_a_loop_takes_no_longer_than_the_time_around_it(tmp_path):
  # Twenty steps, ten of them in the program that was compiled: their speed is that of the other ten.
  events = [_at(0, 'start', 0), _at(6, 'compiled', 0, seconds=5.0), _at(8, 'train', 20, steps_per_second=5.0)]
  assert _read(tmp_path, events).training == pytest.approx(8 - 5)


def test_a_rollback_repeats_the_steps_after_its_goal(tmp_path):
  # The loop that ends in a rollback has no line 'train'.
  events = [_at(0, 'start', 0), _at(10, 'train', 10, steps_per_second=1.0), _at(12, 'eval', 10, seconds=2.0)]
  events += [_at(20, 'train', 20, steps_per_second=1.25), _at(21, 'checkpoint', 20, stall_seconds=1.0)]
  events += [_at(31, 'rollback', 10), _at(41, 'train', 20, steps_per_second=1.0)]
  found = _read(tmp_path, events)
  assert found.training == pytest.approx(10 + 10)
  assert found.repeated == pytest.approx(8 + 10)  # Steps 11 to 20 before, and the loop that was not logged.
  assert found.other == pytest.approx(0, abs=1e-6)


def test_numbers_that_are_not_finite_and_clocks_set_back(tmp_path):
  events = [*EVENTS, {**_at(0, 'train', 30, steps_per_second='NaN'), 'time': 1e9 - 3600}]
  found = _read(tmp_path, events)
  assert found.seconds == 50 and all(map(math.isfinite, dataclasses.asdict(found).values()))


def test_the_time_after_a_clock_was_set_back_counts(tmp_path):
  events = [_at(0, 'start', 0)]
  events += [_at(600 * n - (3600 if n > 3 else 0), 'train', 600 * n, steps_per_second=1.0) for n in range(1, 10)]
  found = _read(tmp_path, events)
  # The loop in which it was set back has no length.
  assert (found.seconds, found.training) == (pytest.approx(4800), pytest.approx(4800))
  infinite = [events[0], {**events[1], 'time': 'Infinity'}, events[2]]
  assert _read(tmp_path / 'infinite', infinite).seconds == 1200


def test_the_pause_before_a_finished_run_is_extended_is_no_part_of_it(tmp_path):
  events = [_at(0, 'start', 0), _at(10, 'train', 10, steps_per_second=1.0), _at(10, 'finished', 10)]
  events += [_at(10_000, 'start', 10), _at(10_010, 'train', 20, steps_per_second=1.0)]
  found = _read(tmp_path, events)
  assert (found.seconds, found.training, found.stopped) == (20, 20, 0)


def test_a_run_without_a_start_has_none(tmp_path):
  assert _read(tmp_path, EVENTS[3:6]) is None
