"""Reads the handwritten digits of scikit-learn without the second that its import takes.

Example:

  >>> pixels, labels = ext.handwritten_digits.load()
  >>> pixels.shape, float(pixels.max())
  ((1797, 64), 16.0)
  >>> np.bincount(labels).tolist()  # Images of each digit.
  [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
"""

import functools
import importlib.util
import pathlib

import numpy as np

from official_ext.base import errors

_FILE = 'datasets/data/digits.csv.gz'


@functools.cache
def load() -> tuple[np.ndarray, np.ndarray]:
  """The numbers of `sklearn.datasets.load_digits`.

  Returns:
    (pixels of 0 to 16, float64 [1797, 64]; labels, int64 [1797]).

  Raises:
    UserError: scikit-learn is not installed.
  """
  spec = importlib.util.find_spec('sklearn')
  if spec is None or spec.origin is None:
    raise errors.UserError('the handwritten digits come with scikit-learn, which is missing: pip install scikit-learn')
  rows = np.loadtxt(pathlib.Path(spec.origin).parent / _FILE, delimiter=',')
  return rows[:, :-1], rows[:, -1].astype(np.int64)
