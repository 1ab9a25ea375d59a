"""The handwritten digits that come with scikit-learn."""

from collections.abc import Mapping
import functools

import numpy as np

_NUM_VALIDATION = 360
_MAX_PIXEL = 16


@functools.cache
def examples() -> Mapping[str, np.ndarray]:
  """All 1,797 images, a fixed fifth of which, with its share of every class, is not for training.

  Returns:
    {'pixels': float32 [n, 64] in [0, 1], 'label': int64 [n], 'is_training': bool [n]}.
  """
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  from sklearn import model_selection  # pylint: disable=g-import-not-at-top

  digits = datasets.load_digits()
  training, _ = model_selection.train_test_split(
    np.arange(len(digits.target)), test_size=_NUM_VALIDATION, random_state=0, stratify=digits.target
  )
  is_training = np.zeros(len(digits.target), bool)
  is_training[training] = True
  pixels = digits.data.astype(np.float32) / _MAX_PIXEL
  return {'pixels': pixels, 'label': digits.target.astype(np.int64), 'is_training': is_training}
