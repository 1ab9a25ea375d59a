"""The heartbeat: during any work of the run, until its end, and never longer."""

import threading
import time

from official_ext.base.run_folder import run_status


class _Heart:
  def __init__(self, fails=False):
    self.beats = 0
    self.fails = fails

  def beat(self):
    self.beats += 1
    if self.fails:
      raise OSError('no space left')


def _wait_for(condition):
  deadline = time.monotonic() + 60
  while not condition() and time.monotonic() < deadline:
    time.sleep(0.01)
  return condition()


def _threads():
  return [thread for thread in threading.enumerate() if thread.name == 'heartbeat']


def test_it_beats_until_it_is_closed():
  heart = _Heart()
  beating = run_status.Heartbeat(heart.beat, 0.01)
  assert _wait_for(lambda: heart.beats > 2)
  beating.close()
  before = heart.beats
  time.sleep(0.05)
  assert heart.beats == before


def test_a_beat_that_fails_is_reported_once_and_the_next_one_comes(caplog):
  heart = _Heart(fails=True)
  beating = run_status.Heartbeat(heart.beat, 0.01)
  assert _wait_for(lambda: heart.beats > 3)
  beating.close()
  assert len([message for message in caplog.messages if 'no space left' in message]) == 1


def test_it_ends_with_its_object():
  before = len(_threads())
  heart = _Heart()
  beating = run_status.Heartbeat(heart.beat, 0.01)
  assert len(_threads()) == before + 1
  del heart
  assert _wait_for(lambda: len(_threads()) == before)
  del beating
