"""A writer in a thread: everything arrives in order, and one that hangs or fails holds nobody up."""

import threading
import time

import numpy as np
import pytest

from official_ext.training.writers import registry
from official_ext.training.writers import writers


class _Recorder(writers.Writer):
  def __init__(self):
    self.calls, self.threads = [], set()

  def write(self, event, step, values):
    self.threads.add(threading.current_thread().name)
    self.calls.append((event, step, dict(values)))

  def close(self):
    self.calls.append('close')


class _Hanging(writers.Writer):
  def __init__(self):
    self.release = threading.Event()
    self.steps = []

  def write(self, event, step, values):
    self.release.wait(60)
    self.steps.append(step)


class _Failing(_Recorder):
  def write(self, event, step, values):
    super().write(event, step, values)
    raise OSError('no route to host')


def _messages(caplog):
  return [record.getMessage() for record in caplog.records]


def test_everything_arrives_in_order(caplog):
  recorder = _Recorder()
  writer = registry.BackgroundWriter(recorder)
  value = np.array(0.5)
  for step in range(50):
    writer.write('train', np.int64(step), {'loss': value, 'set': {'f1': 1}, 'image': np.zeros([2, 2])})
  value[...] = 7.0  # The file has the events handed over.
  writer.close()
  assert recorder.calls == [('train', step, {'loss': 0.5, 'set/f1': 1}) for step in range(50)] + ['close']
  assert recorder.threads == {'_Recorder'} and not _messages(caplog)


def test_nothing_is_started_for_nothing():
  before = threading.active_count()
  registry.BackgroundWriter(_Recorder()).close()
  assert threading.active_count() == before


def test_one_that_hangs_delays_the_end_for_a_limited_time(caplog):
  hanging = _Hanging()
  writer = registry.BackgroundWriter(hanging, max_pending=5, close_seconds=0.3)
  start = time.monotonic()
  for step in range(100):
    writer.write('train', step, {})
  assert time.monotonic() - start < 0.2
  start = time.monotonic()
  writer.close()
  assert 0.25 < time.monotonic() - start < 2.0
  did_not, dropped = _messages(caplog)
  assert did_not == '_Hanging did not finish within 0.3 s: some events are lost.'
  # One is being written, unless the thread came too late to take it, and five wait.
  assert dropped in [f'_Hanging was too slow: {number} events were dropped.' for number in (94, 95)]
  hanging.release.set()


def test_one_that_fails_is_reported_once_and_tried_again(caplog):
  failing = _Failing()
  writer = registry.BackgroundWriter(failing)
  for step in range(3):
    writer.write('train', step, {})
  writer.close()
  assert len(failing.calls) == 4
  assert _messages(caplog) == ['_Failing failed to write; training continues: OSError: no route to host']


@pytest.mark.parametrize('num_events', [1, 6], ids=['with room in the queue', 'with a full queue'])
def test_the_thread_of_one_that_hung_ends_after_the_events_that_wait(num_events):
  # Before: with a full queue it waited for events to the end of the process, and held the writer.
  hanging = _Hanging()
  writer = registry.BackgroundWriter(hanging, max_pending=5, close_seconds=0.1)
  writer.write('train', 0, {})
  while not writer._queue.empty():
    time.sleep(0.001)
  for step in range(1, num_events):
    writer.write('train', step, {})
  writer.close()
  hanging.release.set()
  writer._thread.join(10)
  assert not writer._thread.is_alive() and hanging.steps == list(range(num_events))
  writer.write('train', 7, {})
  writer.close()
  assert not writer._thread.is_alive() and hanging.steps == list(range(num_events))
