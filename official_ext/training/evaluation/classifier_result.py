"""The result of a classifier, of images or of texts: figures, the table of its classes, pictures."""

from collections.abc import Sequence

import numpy as np

from official_ext.training.evaluation import calibration_image
from official_ext.training.evaluation import class_figures
from official_ext.training.evaluation import results
from official_ext.training.writers import confusion_image


def of_probabilities(probabilities: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> results.Result:
  """The result without mistakes: see `class_figures.of_probabilities` for the arguments."""
  figures, tables = class_figures.of_probabilities(probabilities, labels, names)
  pictures = {
    'confusion_matrix': confusion_image.draw(np.array(figures['confusion_matrix']), names),
    'calibration': calibration_image.draw(figures['calibration']),
  }
  return results.Result(figures, tables, pictures)
