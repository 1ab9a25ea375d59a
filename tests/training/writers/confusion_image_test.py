"""The picture of a confusion matrix."""

import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util
import tensorflow as tf

from official_ext.training.writers import tensorboard

MATRIX = np.array([[90, 10, 0], [0, 0, 0], [50, 0, 50]], np.float32)


def _cells(picture):
  """The colours of the cells, found by the white-to-blue rectangle that the axes frame."""
  dark = picture.astype(int).sum(-1) < 60
  columns = np.flatnonzero(dark.sum(0) > 0.5 * picture.shape[0])
  rows = np.flatnonzero(dark.sum(1) > 0.4 * picture.shape[1])
  left, right, top, bottom = columns[0], columns[columns < 0.86 * picture.shape[1]][-1], rows[0], rows[-1]
  width, height = (right - left) / 3, (bottom - top) / 3
  # Beside the middle, where the number is.
  return np.array(
    [[picture[int(top + (i + 0.15) * height), int(left + (j + 0.5) * width)] for j in range(3)] for i in range(3)]
  ).astype(int)


def test_shades_are_fractions_of_rows():
  picture = tensorboard.draw_confusion_matrix(MATRIX, ['a', 'b', 'c'])
  assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[-1] == 3
  red = _cells(picture)[..., 0]  # The less, the higher the fraction.
  fractions = np.array([[0.9, 0.1, 0], [0, 0, 0], [0.5, 0, 0.5]])
  for value in np.unique(fractions):
    assert np.ptp(red[fractions == value]) <= 1
  ordered = [red[fractions == value].mean() for value in sorted(np.unique(fractions))]
  assert np.all(np.diff(ordered) < -5), ordered


def test_labels_count():
  """With names, with numbers, with names of the wrong number."""
  named, numbered, wrong = (
    tensorboard.draw_confusion_matrix(MATRIX, names) for names in (['x', 'yy', 'zzz'], (), ['x'])
  )
  assert named.shape == numbered.shape and (named != numbered).any()
  np.testing.assert_array_equal(numbered, wrong)


@pytest.mark.parametrize(
  'value, expected',
  [
    (np.zeros([2, 2]), True),
    (np.zeros([2, 2], np.int32), True),
    (np.zeros([2, 3]), False),
    (np.zeros([1, 1]), False),
    (np.zeros([2, 2, 2]), False),
    (np.array([['a', 'b']] * 2), False),
    (3.0, False),
  ],
)
def test_what_is_a_matrix(value, expected):
  assert tensorboard.is_confusion_matrix(value) == expected


def test_tensorboard_shows_that_of_an_evaluation(tmp_path):
  writer = tensorboard.TensorBoardWriter(str(tmp_path), class_names=('x', 'yy', 'zzz'))
  writer.write('train', 1, {'confusion_matrix': tf.constant(MATRIX), 'loss': 1.0})
  writer.write('eval', 1, {'confusion_matrix': tf.constant(MATRIX), 'other': tf.constant(MATRIX), 'loss': 1.0})
  writer.close()
  accumulator = event_accumulator.EventAccumulator(str(tmp_path / 'validation')).Reload()
  assert sorted(accumulator.Tags()['tensors']) == ['confusion_matrix', 'loss']
  (event,) = accumulator.Tensors('confusion_matrix')
  _, _, image = tensor_util.make_ndarray(event.tensor_proto)
  np.testing.assert_array_equal(tf.io.decode_png(image), tensorboard.draw_confusion_matrix(MATRIX, ['x', 'yy', 'zzz']))
  accumulator = event_accumulator.EventAccumulator(str(tmp_path / 'train')).Reload()
  assert accumulator.Tags()['tensors'] == ['loss']
