"""The handwritten digits that come with scikit-learn, and latent vectors."""

import functools

import numpy as np

NUM_CLASSES = 10
_NUM_VALIDATION = 360
_MAX_PIXEL = 16


@functools.cache
def _split() -> tuple[np.ndarray, ...]:
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  from sklearn import model_selection  # pylint: disable=g-import-not-at-top

  digits = datasets.load_digits()
  pixels, labels = digits.data.astype(np.float32) / _MAX_PIXEL, digits.target.astype(np.int64)
  return tuple(
    model_selection.train_test_split(pixels, labels, test_size=_NUM_VALIDATION, random_state=0, stratify=labels)
  )


def images(is_training: bool) -> np.ndarray:
  """1,437 images for training, or the 360 others: float32 of shape [n, 64], in [0, 1]."""
  return _split()[0 if is_training else 1]


def labels(is_training: bool) -> np.ndarray:
  """Their labels: int64 of shape [n]."""
  return _split()[2 if is_training else 3]


def latents(num_samples: int, latent_size: int, seed: int) -> np.ndarray:
  """Standard normal numbers, a function of the arguments: float32 of shape [num_samples, latent_size]."""
  return np.random.default_rng(seed).standard_normal((num_samples, latent_size)).astype(np.float32)
