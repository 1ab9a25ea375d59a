"""The handwritten digits that come with scikit-learn, as a TFDS builder."""

import numpy as np
import tensorflow_datasets as tfds

from . import configs

_NUM_VALIDATION = 360
_SPLIT_SEED = 0


class Digits(tfds.core.GeneratorBasedBuilder):
  """1,797 images of handwritten digits, 8x8 pixels of 0 to 16.

  scikit-learn's copy of the test set of the UCI data set "Optical Recognition of Handwritten Digits" (E. Alpaydin,
  C. Kaynak, 1998, https://archive.ics.uci.edu/dataset/80).
  """

  VERSION = tfds.core.Version('1.0.0')

  def _info(self) -> tfds.core.DatasetInfo:
    """The features: `image`, uint8 of shape [8, 8, 1]; `label`, 0 to 9."""
    return self.dataset_info_from_configs(
      features=tfds.features.FeaturesDict(
        {
          'image': tfds.features.Image(shape=(8, 8, 1), dtype=np.uint8, encoding_format='png'),
          'label': tfds.features.ClassLabel(num_classes=configs.NUM_CLASSES),
        }
      ),
      supervised_keys=('image', 'label'),
      homepage='https://archive.ics.uci.edu/dataset/80',
    )

  def _split_generators(self, dl_manager):
    """A fixed fifth is for validation; nothing is downloaded."""
    del dl_manager
    from sklearn import datasets  # pylint: disable=g-import-not-at-top

    source = datasets.load_digits()
    validation = np.zeros(len(source.target), bool)
    validation[stratified_sample(source.target, _NUM_VALIDATION, _SPLIT_SEED)] = True
    return {
      'train': self._generate_examples(source, np.flatnonzero(~validation)),
      'validation': self._generate_examples(source, np.flatnonzero(validation)),
    }

  def _generate_examples(self, source, indices):
    """Yields (number in scikit-learn's order, example)."""
    images = source.images.astype(np.uint8)[..., np.newaxis]
    for index in indices:
      yield int(index), {'image': images[index], 'label': int(source.target[index])}


def stratified_sample(labels: np.ndarray, num_examples: int, seed: int) -> np.ndarray:
  """Draws indices so that every class has its share.

  Args:
    labels: int array of shape [n].
    num_examples: how many to draw.
    seed: of the draw.

  Returns:
    An int array of shape [num_examples] of distinct indices.
  """
  shuffled = np.random.RandomState(seed).permutation(len(labels))
  # The rank of each example within its class, as a fraction: the smallest fractions of all classes are drawn.
  ranks = np.empty(len(labels))
  for label in np.unique(labels):
    members = shuffled[labels[shuffled] == label]
    ranks[members] = (np.arange(len(members)) + 0.5) / len(members)
  return np.argsort(ranks, kind='stable')[:num_examples]
