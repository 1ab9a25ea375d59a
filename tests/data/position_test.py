"""How an input learns at which batch to start."""

import threading

import pytest

from official_ext.data import pipelines


def test_start_is_zero_outside():
  assert pipelines.take_start() == 0


def test_start_is_handed_over_and_the_taking_is_noted():
  with pipelines.starting_at(12) as start:
    assert not start.honoured
    assert pipelines.take_start() == 12
    assert start.honoured
  assert pipelines.take_start() == 0


def test_an_input_that_takes_nothing_is_not_honoured():
  with pipelines.starting_at(12) as start:
    pass
  assert not start.honoured


def test_inner_position_ends_with_its_block_even_after_an_error():
  with pipelines.starting_at(1) as outer:
    with pytest.raises(KeyError):
      with pipelines.starting_at(2):
        raise KeyError
    assert not outer.honoured
    assert pipelines.take_start() == 1


def test_other_threads_do_not_see_it():
  seen = []
  with pipelines.starting_at(3):
    thread = threading.Thread(target=lambda: seen.append(pipelines.take_start()))
    thread.start()
    thread.join()
  assert seen == [0]


def test_negative_start_is_refused():
  with pytest.raises(ValueError, match='-1 is negative'):
    with pipelines.starting_at(-1):
      pass
