"""The handwritten digits that come with scikit-learn, the questions about them, and how they are damaged."""

from collections.abc import Mapping
import functools

import numpy as np
import tensorflow as tf

NUM_CLASSES, NUM_PIXELS, NUM_QUARTERS = 10, 64, 4
_SIZE = 8
_NUM_VALIDATION = 360
_MAX_PIXEL = 16


@functools.cache
def examples(is_training: bool) -> Mapping[str, np.ndarray]:
  """1,437 images for training, or the 360 others: a fifth of every class.

  Returns:
    {'pixels': float32 [n, 64] in [0, 1], 'label': int64 [n], 'ink': float32 [n, 4], the means of the pixels of the
    image's quarters}.
  """
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  from sklearn import model_selection  # pylint: disable=g-import-not-at-top

  digits = datasets.load_digits()
  rows = model_selection.train_test_split(
    np.arange(len(digits.target)), test_size=_NUM_VALIDATION, random_state=0, stratify=digits.target
  )
  chosen = rows[0 if is_training else 1]
  pixels = digits.data[chosen].astype(np.float32) / _MAX_PIXEL
  half = _SIZE // 2
  ink = pixels.reshape(-1, 2, half, 2, half).mean(axis=(2, 4)).reshape(-1, NUM_QUARTERS)
  return {'pixels': pixels, 'label': digits.target[chosen].astype(np.int64), 'ink': ink}


def damaged(batch: Mapping[str, tf.Tensor], seeds: tf.Tensor, missing: float) -> Mapping[str, tf.Tensor]:
  """Adds 'damaged', the pixels of which a part is missing (0), each example by its seed.

  Args:
    batch: one example: 'pixels' float32 [64].
    seeds: its seed, int64 [2].
    missing: the fraction that is missing.
  """
  kept = tf.random.stateless_uniform([NUM_PIXELS], seeds) >= missing
  return {**batch, 'damaged': tf.where(kept, batch['pixels'], 0.0)}
