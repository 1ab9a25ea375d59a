"""Answers in forks: the last one counts, a fork leaves nothing behind, and its time is limited."""

import faulthandler
import os
import time

from official_ext.base import processes


def test_the_last_answer_counts_and_the_state_stays():
  seen = []

  def answers():
    for number in (1, 2):
      seen.append(number)
      yield {'number': number, 'seen': list(seen), 'process': os.getpid()}

  found = processes.last_answer(answers, 20.0)
  assert found['number'] == 2 and found['seen'] == [1, 2] and found['process'] != os.getpid()
  assert seen == []


def test_what_came_in_time_counts():
  def answers():
    yield {'number': 1}
    time.sleep(60)
    yield {'number': 2}

  start = time.monotonic()
  assert processes.last_answer(answers, 1.0) == {'number': 1}
  assert time.monotonic() - start < 30


def test_no_answer_names_the_cause():
  def slow():
    time.sleep(60)
    yield {}

  def dying():
    faulthandler.disable()  # pytest's would print a report of the intended signal.
    os.kill(os.getpid(), 11)
    yield {}

  failure = 'the process that asks the driver has failed: '
  assert processes.last_answer(slow, 0.2) == {'failure': f'{failure}no answer in 0.2 s'}
  assert processes.last_answer(dying, 20.0) == {'failure': f'{failure}signal 11'}
