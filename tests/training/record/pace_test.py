"""The estimate of the rest of a training's time, by hand."""

import time

import pytest

from official_ext.training.record import pace


@pytest.fixture
def clock(monkeypatch):
  """clock(seconds) lets time pass, and returns the present."""
  now = [100.0]
  monkeypatch.setattr(time, 'perf_counter', lambda: now[0])

  def advance(seconds=0.0):
    now[0] += seconds
    return now[0]

  return advance


def test_nothing_is_known_before_the_first_timed_steps():
  found = pace.Pace()
  found.add('save', 1.0)
  assert found.seconds_left(10, 1, 1) is None
  found.add_loop(0, 0.0)  # All of them compiled.
  assert found.seconds_left(10, 1, 1) is None


def test_loops_with_what_is_between_them_evaluations_and_saves_are_added():
  found = pace.Pace()
  found.add_loop(50, 10.0)
  found.add_loop(50, 20.0)
  assert found.seconds_left(200, 3, 4) == pytest.approx(200 * 0.3)  # Of evaluations and saves nothing is known yet.
  found.add('between', 0.5)
  found.add('save', 2.0)
  found.add('evaluation', 7.0)
  assert found.seconds_left(200, 3, 4) == pytest.approx(200 * 0.3 + 4 * 0.5 + 3 * 7.0 + 4 * 2.0)
  found.add('save', 90.0)  # As on a disk that hung for once.
  found.add('save', 2.5)
  assert found.seconds_left(0, 0, 1) == 2.5


def test_the_last_loops_count():
  found = pace.Pace()
  for seconds in [1000.0] * 5 + [1.0] * 20:
    found.add_loop(1, seconds)
  assert found.seconds_left(7, 0, 0) == pytest.approx(7.0)


def test_the_compilation_in_the_first_batch_of_an_evaluation_does_not_count(clock):
  found = pace.Pace()
  found.add_loop(1, 1.0)
  begin = clock()
  found.begin_evaluation()
  clock(30.0)  # Compiles.
  found.end_batch()
  for _ in range(4):
    clock(2.0)
    found.end_batch()
  clock(0.5)  # Notes.
  found.add_evaluation(begin, clock())
  assert found.seconds_left(0, 1, 0) == pytest.approx(5 * 2.0 + 0.5)
  found.begin_evaluation()  # Of one batch, which cannot be divided.
  begin = clock()
  clock(3.0)
  found.end_batch()
  found.add_evaluation(begin, clock())
  assert found.seconds_left(0, 1, 0) == pytest.approx(3.0)
