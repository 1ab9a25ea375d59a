"""Tests for writers: composition, failures, flattening."""

import errno
import os
import pathlib
import re

import numpy as np
import tensorflow as tf

from official_ext.base.run_folder import run_files
from official_ext.training.writers import writers


class _Recorder(writers.Writer):
  def __init__(self):
    self.calls = []

  def write(self, event, step, values):
    self.calls.append((event, step, dict(values)))

  def flush(self):
    self.calls.append('flush')

  def close(self):
    self.calls.append('close')


class _Broken(writers.Writer):
  def write(self, event, step, values):
    raise OSError('disk full')

  def flush(self):
    raise RuntimeError('disk full')


def test_every_writer_gets_every_event():
  # Stock: writes for TensorBoard alone.
  recorders = [_Recorder(), _Recorder()]
  composite = writers.Writers(recorders)
  composite.write('train', 1, {'loss': 2.0})
  composite.flush()
  composite.close()
  assert recorders[0].calls == recorders[1].calls == [('train', 1, {'loss': 2.0}), 'flush', 'close']


def test_a_writer_that_fails_is_reported_once_and_stops_nothing(caplog):
  recorder = _Recorder()
  composite = writers.Writers([_Broken(), recorder])
  for step in (1, 2):
    composite.write('train', step, {})
  composite.flush()
  composite.close()
  assert recorder.calls == [('train', 1, {}), ('train', 2, {}), 'flush', 'close']
  messages = [record.getMessage() for record in caplog.records]
  assert messages == ['_Broken failed to write; training continues: disk full']


def test_flatten():
  nested = {
    'loss': tf.constant(0.5),
    'step': tf.Variable(3, dtype=tf.int64),
    'per_class': {'iou': np.array([0.25, 0.75]), 'deep': {'name': tf.constant('cat')}},
    'one': np.ones([1, 1], np.float32),
  }
  flat = writers.flatten(nested)
  assert list(flat) == ['loss', 'step', 'per_class/iou', 'per_class/deep/name', 'one']
  assert flat['loss'] == 0.5 and flat['step'] == 3 and flat['per_class/deep/name'] == 'cat' and flat['one'] == 1.0
  assert type(flat['loss']) is float and type(flat['step']) is int and type(flat['one']) is float
  np.testing.assert_array_equal(flat['per_class/iou'], [0.25, 0.75])


def test_every_event_that_is_written_is_known():
  core = pathlib.Path(writers.__file__).parents[1] / 'loop'
  written = {
    name for path in core.glob('*.py') for name in re.findall(r"\.(?:_log|report|write)\(\s*'(\w+)'", path.read_text())
  }
  assert {'start', 'train', 'rollback', 'early_stopped'} <= written
  assert written <= set(run_files.EVENTS)


def test_a_writer_whose_sync_failed_writes_again_when_a_sync_succeeds(caplog):
  # Before: the next flush, which proves nothing, was reported as the end of the failure.
  class Unsynced(_Recorder):
    can_sync = False

    def sync(self):
      if not self.can_sync:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

  def messages():
    return [record.getMessage() for record in caplog.records]

  writer = Unsynced()
  composite = writers.Writers([writer])
  composite.sync()
  failed = f'Unsynced failed to sync; training continues: [Errno {errno.EIO}] {os.strerror(errno.EIO)}'
  composite.flush()
  assert messages() == [failed]
  writer.can_sync = True
  composite.sync()
  assert messages() == [failed, 'Unsynced writes again']
