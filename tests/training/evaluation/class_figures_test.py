"""Figures of classifiers against values that are worked out by hand."""

import math

import numpy as np

from official_ext.training.evaluation import classifier_result

NAMES = ('cat', 'dog', 'fox')
# Predicted: cat, cat, dog, dog; the third class does not occur.
PROBABILITIES = np.array([[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.2, 0.8, 0.0], [0.3, 0.7, 0.0]])
LABELS = np.array([0, 1, 1, 1])


def test_figures_of_classes():
  figures, (table,) = classifier_result.figures_of_probabilities(PROBABILITIES, LABELS, NAMES)
  assert figures['examples'] == 4 and figures['accuracy'] == 0.75
  assert figures['confusion_matrix'] == [[1, 0, 0], [1, 2, 0], [0, 0, 0]]
  # Cat: 1 of 2 predictions is right, 1 of 1 is found. Dog: 2 of 2, 2 of 3.
  assert figures['classes']['cat'] == {'precision': 0.5, 'recall': 1.0, 'f1': round(2 / 3, 6), 'examples': 1}
  assert figures['classes']['dog'] == {'precision': 1.0, 'recall': round(2 / 3, 6), 'f1': 0.8, 'examples': 3}
  assert figures['classes']['fox'] == {'precision': 0.0, 'recall': 0.0, 'f1': 0.0, 'examples': 0}
  assert figures['mean_f1'] == round((2 / 3 + 0.8) / 2, 6)
  expected = -sum(math.log(value) for value in (0.9, 0.4, 0.8, 0.7)) / 4
  assert figures['log_loss'] == round(expected, 6)
  assert [row[0] for row in table.rows] == list(NAMES) and len(table.header) == 5


def test_the_calibration_error_is_that_of_guo_et_al():
  found = classifier_result.calibration(PROBABILITIES, LABELS, num_bins=2)
  # All confidences are in (0.5, 1]: their mean is 0.75, the accuracy is 0.75.
  assert found == {
    'ece': 0.0,
    'bins': [
      {'up_to': 0.5, 'examples': 0},
      {'up_to': 1.0, 'examples': 4, 'confidence': 0.75, 'accuracy': 0.75},
    ],
  }
  # Four bins: (0.5, 0.75] has 0.6 (wrong) and 0.7 (right), (0.75, 1] has 0.9 and 0.8, both right.
  found = classifier_result.calibration(PROBABILITIES, LABELS, num_bins=4)
  assert found['ece'] == round(0.5 * abs(0.5 - 0.65) + 0.5 * abs(1.0 - 0.85), 6)
  assert [each['examples'] for each in found['bins']] == [0, 0, 2, 2]


def test_confidences_on_an_edge_belong_to_the_lower_bin():
  found = classifier_result.calibration(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 1]), num_bins=2)
  assert [each['examples'] for each in found['bins']] == [1, 1]


def test_intersection_over_union_of_pixels():
  labels, predictions = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 1, 0])
  matrix = classifier_result.confusion(labels, predictions, 3)
  assert matrix.tolist() == [[2, 1, 0], [1, 2, 0], [0, 0, 0]]
  figures, (table,) = classifier_result.figures_of_pixels(matrix, NAMES)
  assert figures['classes']['cat'] == {'iou': 0.5, 'share_of_pixels': 0.5}  # 2 of 2 + 1 + 1.
  assert figures['classes']['fox'] == {'iou': None, 'share_of_pixels': 0.0}
  assert figures['mean_iou'] == 0.5 and figures['pixel_accuracy'] == round(4 / 6, 6)
  assert table.rows[2] == ['fox', None, 0.0]


def test_the_diagram_shows_the_accuracy_of_each_bin():
  image = classifier_result.draw_calibration(classifier_result.calibration(PROBABILITIES, LABELS, num_bins=4))
  assert image.shape == (480, 480, 3) and image.dtype == np.uint8
  blue = (image[..., 2] > 150) & (image[..., 0] < 100)
  columns = blue.any(0).nonzero()[0]
  assert blue[:, columns[0] + 5].sum() < 0.7 * blue[:, columns[-1] - 5].sum()  # Accuracy 0.5 beside 1.
