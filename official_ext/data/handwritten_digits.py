"""Reads the handwritten digits of scikit-learn without the second that its import takes."""

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
