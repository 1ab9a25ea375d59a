"""Elements that threads make ahead."""

from concurrent import futures
import threading

import pytest

from official_ext.data.service import client


def test_elements_are_made_at_the_same_time_and_each_once():
  both, made = threading.Barrier(2, timeout=30), []

  def make(number):
    both.wait()
    made.append(number)
    return 10 * number

  maker = client.LocalMaker(make, 2)
  assert maker.make(3, ahead=[4]) == 30
  assert maker.has_begun(4) and not maker.has_begun(3)
  assert maker.make(4) == 40 and sorted(made) == [3, 4]
  assert not maker.has_begun(4) and 0 < maker.seconds < 30
  maker.close()


def test_an_error_is_raised_where_its_element_is_taken():
  maker = client.LocalMaker(lambda number: 1 // number, 1)
  assert maker.make(1, ahead=[0]) == 1
  with pytest.raises(ZeroDivisionError):
    maker.make(0)
  maker.close()


def test_after_the_end_nothing_more_is_begun():
  first, released, made = threading.Event(), threading.Event(), []

  def make(number):
    made.append(number)
    first.set()
    released.wait(30)

  maker = client.LocalMaker(make, 1)
  taking = threading.Thread(target=maker.make, args=(1, [2, 3]))
  taking.start()
  first.wait(30)
  maker.close()
  released.set()
  taking.join(30)
  assert made == [1]


def test_an_end_between_two_elements_is_no_error_of_the_first():
  begun = threading.Event()

  def make(number):
    begun.set()
    return 10 * number

  maker = client.LocalMaker(make, 1)

  def ahead():
    assert begun.wait(30)
    maker.close()  # As another thread may at this moment.
    yield 2

  assert maker.make(1, ahead()) == 10
  assert not maker.has_begun(2)
  with pytest.raises(futures.CancelledError, match='element 3: the maker is closed'):
    maker.make(3)
