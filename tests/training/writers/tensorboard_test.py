"""Tests for tensorboard: the files are read back by TensorBoard's own reader."""

import os
import time

import numpy as np
import pytest
from tensorboard import context
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.data import server_ingester
from tensorboard.util import grpc_util
from tensorboard.util import tensor_util
import tensorflow as tf

from official_ext.training.writers import tensorboard


def _read(folder):
  accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.TENSORS: 0})
  return accumulator.Reload()


def _curve(folder, tag):
  return [(event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in _read(folder).Tensors(tag)]


def _plugin(folder, tag):
  return _read(folder).SummaryMetadata(tag).plugin_data.plugin_name


def test_nothing_is_made_before_something_is_written(tmp_path):
  writer = tensorboard.TensorBoardWriter(str(tmp_path))
  writer.write('start', 0, {'devices': 'CPU'})
  writer.write('checkpoint', 5, {'seconds': 1.0})
  writer.write('train', 5, {'note': 'no number', 'none': None, 'list': [1, 2], 'vector': np.arange(3)})
  writer.flush()
  writer.close()
  assert os.listdir(tmp_path) == []


def test_train_and_eval_scalars(tmp_path):
  writer = tensorboard.TensorBoardWriter(str(tmp_path), 'val')
  for step in (1, 2):
    writer.write('train', step, {'training_loss': tf.constant(1.0 / step), 'count': np.int64(step)})
  writer.write('eval', 2, {'accuracy': np.float32(0.75), 'done': True})
  writer.close()
  assert sorted(os.listdir(tmp_path)) == ['train', 'val']
  assert _curve(tmp_path / 'train', 'loss') == [(1, 1.0), (2, 0.5)]
  assert _curve(tmp_path / 'train', 'count') == [(1, 1.0), (2, 2.0)]
  assert _curve(tmp_path / 'val', 'accuracy') == [(2, 0.75)]
  assert _curve(tmp_path / 'val', 'done') == [(2, 1.0)]
  assert _plugin(tmp_path / 'val', 'accuracy') == 'scalars'


def test_completions_are_a_table_of_text(tmp_path):
  writer = tensorboard.TensorBoardWriter(str(tmp_path))
  texts = {'prompts': ['a | <b>', 'two\nlines'], 'completions': ['*c*', '`d`'], 'rewards/r': [0.123456, float('nan')]}
  writer.write('completions', 3, texts)
  writer.close()
  (event,) = _read(tmp_path / 'train').Tensors('completions')
  table = tensor_util.make_ndarray(event.tensor_proto).item().decode()
  assert event.step == 3 and _plugin(tmp_path / 'train', 'completions') == 'text'
  assert table.splitlines() == [
    '| prompts | completions | rewards/r |',
    '| --- | --- | --- |',
    r'| a \| &lt;b&gt; | \*c\* | 0.1235 |',
    r'| two<br>lines | \`d\` | nan |',
  ]


def test_the_names_of_model_garden(tmp_path):
  writer = tensorboard.TensorBoardWriter(str(tmp_path), summary_names='model_garden', validation_steps=6)
  writer.write('train', 5, {'training_loss': 2.0, 'percent': 50.0, 'steps_per_second': 8.0, 'learning_rate': 0.5})
  writer.write('eval', 5, {'validation_loss': 3.0, 'accuracy': 0.5, 'seconds': 4.0})
  writer.close()
  train, validation = (_read(tmp_path / part).Tags()['tensors'] for part in ('train', 'validation'))
  assert train == ['training_loss', 'progress/percent', 'steps_per_second', 'learning_rate']
  assert validation == ['validation_loss', 'accuracy', 'progress/seconds', 'steps_per_second']
  assert _curve(tmp_path / 'validation', 'steps_per_second') == [(5, 1.5)]


def test_what_describes_the_run_is_one_group(tmp_path):
  writer = tensorboard.TensorBoardWriter(str(tmp_path))
  writer.write('train', 5, {'training_loss': 2.0, 'percent': 50.0, 'steps_per_second': 8.0})
  writer.write('eval', 5, {'validation_loss': 3.0, 'seconds': 1.0})
  writer.close()
  assert _read(tmp_path / 'train').Tags()['tensors'] == ['loss', 'progress/percent', 'progress/steps_per_second']
  assert _curve(tmp_path / 'train', 'progress/percent') == [(5, 50.0)]
  assert _read(tmp_path / 'validation').Tags()['tensors'] == ['loss', 'progress/seconds']


def test_the_losses_of_training_and_evaluation_share_a_chart(tmp_path):
  """TensorBoard puts curves of one name into one chart."""
  writer = tensorboard.TensorBoardWriter(str(tmp_path))
  writer.write('train', 5, {'training_loss': 2.0})
  writer.write('eval', 5, {'validation_loss': 3.0, 'set': {'validation_loss': 4.0}})
  writer.write('eval', 6, {'validation_loss': 5.0, 'loss': 6.0})  # Neither is lost.
  writer.close()
  assert _curve(tmp_path / 'train', 'loss') == [(5, 2.0)]
  assert _curve(tmp_path / 'validation', 'loss') == [(5, 3.0), (6, 6.0)]
  assert _curve(tmp_path / 'validation', 'validation_loss') == [(6, 5.0)]
  assert _curve(tmp_path / 'validation/set', 'loss') == [(5, 4.0)]


def test_flush_makes_visible(tmp_path):
  writer = tensorboard.TensorBoardWriter(str(tmp_path))
  writer.write('train', 1, {'loss': float('nan')})
  writer.flush()
  ((step, loss),) = _curve(tmp_path / 'train', 'loss')
  assert step == 1 and np.isnan(loss)
  writer.close()


def test_dictionaries_are_folders_as_in_orbit(tmp_path):
  writer = tensorboard.TensorBoardWriter(str(tmp_path))
  writer.write('eval', 3, {'loss': 1.0, 'set1': {'loss': 2.0}, 'set2': {'deep': {'loss': 3.0}}})
  writer.close()
  assert _curve(tmp_path / 'validation', 'loss') == [(3, 1.0)]
  assert _curve(tmp_path / 'validation/set1', 'loss') == [(3, 2.0)]
  assert _curve(tmp_path / 'validation/set2/deep', 'loss') == [(3, 3.0)]


@pytest.mark.parametrize(
  ('value', 'shape'),
  [
    (np.full([2, 4, 6, 3], 255, np.uint8), (4, 6)),
    (tf.fill([2, 4, 6, 1], 0.5), (4, 6)),
    (np.full([4, 6, 3], np.nan, np.float64), (4, 6)),
    (tf.cast(tf.fill([4, 6, 1], 0.5), tf.bfloat16), (4, 6)),
    (np.ones([4, 6, 1], bool), (4, 6)),
    (np.full([4, 6, 3], 255, np.int32), (4, 6)),
  ],
)
def test_images_beside_scalars(tmp_path, value, shape):
  writer = tensorboard.TensorBoardWriter(str(tmp_path), max_images=1)
  writer.write('eval', 1, {'image/mask': value, 'loss': 1.0})
  writer.close()
  (event,) = _read(tmp_path / 'validation').Tensors('image/mask')
  width, height, *images = tensor_util.make_ndarray(event.tensor_proto)
  assert (int(height), int(width)) == shape and len(images) == 1
  assert tuple(tf.io.decode_png(images[0]).shape[:2]) == shape
  assert _plugin(tmp_path / 'validation', 'image/mask') == 'images'
  assert _curve(tmp_path / 'validation', 'loss') == [(1, 1.0)]


@pytest.mark.parametrize(
  'value',
  [
    np.zeros([2, 3]),
    np.zeros([4, 6, 7]),
    np.zeros([1, 2, 3, 4, 5]),
    np.zeros([0, 4, 6, 3]),
    np.zeros([4, 6, 3], np.complex64),
    np.array(['a', 'b']),
    tf.ragged.constant([[1], [1, 2]]),
  ],
)
def test_what_is_neither_is_left_out(tmp_path, value):
  writer = tensorboard.TensorBoardWriter(str(tmp_path))
  writer.write('eval', 1, {'confusion': value, 'loss': 1.0})
  writer.close()
  assert _read(tmp_path / 'validation').Tags()['tensors'] == ['loss']


def test_tensorboard_shows_a_restored_run_once(tmp_path):
  """Two files, of which the second repeats steps of the first, as TensorBoard's data server reads them."""
  for steps, sign in [((10, 20, 30), 1.0), ((20,), -1.0)]:
    writer = tensorboard.TensorBoardWriter(str(tmp_path))
    for step in steps:
      writer.write('train', step, {'loss': sign * step})
    writer.close()
  ingester = server_ingester.SubprocessServerDataIngester(
    server_ingester.get_server_binary(),
    str(tmp_path),
    reload_interval=1,
    channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
  )
  ingester.start()
  deadline = time.monotonic() + 120
  shown = {}
  while not shown and time.monotonic() < deadline:
    shown = ingester.data_provider.read_scalars(
      context.RequestContext(), experiment_id='', plugin_name='scalars', downsample=10
    )
  assert [(point.step, point.value) for point in shown['train']['loss']] == [(10, 10.0), (20, -20.0)]


def test_summaries_that_a_task_writes(tmp_path):
  writer = tensorboard.TensorBoardWriter(str(tmp_path))
  with writer.file_writer('train').as_default(step=4):
    tf.summary.scalar('own', 1.5)
  writer.close()
  assert _curve(tmp_path / 'train', 'own') == [(4, 1.5)]
