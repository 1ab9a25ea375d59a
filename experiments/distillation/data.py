"""The handwritten digits that come with scikit-learn, and how they are shifted."""

from collections.abc import Mapping
import functools

import numpy as np
import tensorflow as tf

NUM_CLASSES, NUM_PIXELS = 10, 64
_SIZE = 8
_NUM_VALIDATION = 360
_MAX_PIXEL = 16


@functools.cache
def examples(is_training: bool) -> Mapping[str, np.ndarray]:
  """1,437 images for training, or the 360 others: a fifth of every class.

  Returns:
    {'pixels': float32 [n, 64] in [0, 1], 'label': int64 [n]}.
  """
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  from sklearn import model_selection  # pylint: disable=g-import-not-at-top

  digits = datasets.load_digits()
  rows = model_selection.train_test_split(
    np.arange(len(digits.target)), test_size=_NUM_VALIDATION, random_state=0, stratify=digits.target
  )
  chosen = rows[0 if is_training else 1]
  pixels = digits.data[chosen].astype(np.float32) / _MAX_PIXEL
  return {'pixels': pixels, 'label': digits.target[chosen].astype(np.int64)}


def shifted(pixels: tf.Tensor, shifts: tf.Tensor) -> tf.Tensor:
  """Moves images by fractions of a pixel, by linear interpolation; the new pixels are empty.

  Args:
    pixels: float32 of shape [b, 64].
    shifts: down and to the right: float32 of shape [b, 2].

  Returns:
    float32 of shape [b, 64].
  """
  places = tf.range(_SIZE, dtype=tf.float32)
  # Entry [b, axis, i, j]: how much of the pixel at place j moves to place i.
  distances = places[:, tf.newaxis] - places - shifts[:, :, tf.newaxis, tf.newaxis]
  shares = tf.nn.relu(1 - tf.abs(distances))
  images = tf.reshape(pixels, [-1, _SIZE, _SIZE])
  moved = tf.matmul(tf.matmul(shares[:, 0], images), shares[:, 1], transpose_b=True)
  return tf.reshape(moved, [-1, NUM_PIXELS])
