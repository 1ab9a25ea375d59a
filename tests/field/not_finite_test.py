"""Values that are not finite are of no class, and never a best; quantized draws stay within their bounds."""

import math

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.operations.sweeps import distributions
from official_ext.training.evaluation import classifier_result

NAMES = ['a', 'b']


def test_an_output_that_is_not_finite_is_of_no_class():
  """Of three examples of class a, one has NaN: argmax would take it for a."""
  probabilities = np.array([[0.75, 0.25], [0.25, 0.75], [np.nan, np.nan], [0.25, np.inf]], np.float32)
  labels = np.array([0, 0, 0, 1])
  figures = classifier_result.of_probabilities(probabilities, labels, NAMES).figures
  assert (figures['examples'], figures['not_finite'], figures['accuracy']) == (4, 2, 0.25)
  assert figures['confusion_matrix'] == [[1, 1], [0, 0]] and figures['log_loss'] is None
  assert figures['classes']['a'] == {'precision': 1.0, 'recall': round(1 / 3, 6), 'f1': 0.5, 'examples': 3}
  # Two finite ones with a confidence of 0.75, one of them right.
  assert figures['calibration']['ece'] == 0.25
  with pytest.raises(errors.UserError, match='outputs: are NaN or infinite for all 4 examples'):
    classifier_result.of_probabilities(np.full((4, 2), np.nan), labels, NAMES)


def test_pixels_without_a_finite_output_are_missed():
  labels, predictions = np.array([0, 0, 1, 1, 1]), np.array([0, -1, 1, 1, -1])
  matrix = classifier_result.confusion(labels, predictions, 2)
  figures, _ = classifier_result.figures_of_pixels(matrix, NAMES, np.array([1, 1]))
  assert (figures['pixel_accuracy'], figures['not_finite']) == (0.6, 2)
  assert {name: each['iou'] for name, each in figures['classes'].items()} == {'a': 0.5, 'b': round(2 / 3, 6)}
  with pytest.raises(errors.UserError, match='for all 5 pixels'):
    classifier_result.figures_of_pixels(np.zeros([2, 2], np.int64), NAMES, np.array([2, 3]))


BOUNDED = [
  ({'distribution': 'q_uniform', 'min': 10, 'max': 1000, 'q': 50}, 50, 1000),
  ({'distribution': 'q_uniform', 'min': 1, 'max': 8, 'q': 3}, 3, 6),
  ({'distribution': 'q_uniform', 'min': -0.5, 'max': 0.3, 'q': 0.1}, -0.5, 0.3),
  ({'distribution': 'q_uniform', 'min': 4, 'max': 4, 'q': 2}, 4, 4),
  ({'distribution': 'q_log_uniform_values', 'min': 1, 'max': 100, 'q': 8}, 8, 96),
  ({'distribution': 'q_log_uniform', 'min': 0, 'max': 2, 'q': 2}, 2, 6),  # exp(0) to exp(2) = 7.39.
  ({'distribution': 'q_beta', 'a': 1, 'b': 1, 'q': 0.6}, 0.0, 0.6),
]


@pytest.mark.parametrize(('values', 'least', 'greatest'), BOUNDED)
def test_quantized_draws_stay_within_their_bounds(values, least, greatest):
  (parameter,) = distributions.parse_all({'x': values})
  drawn = {parameter.at(position) for position in np.linspace(0, 1, 2001).tolist()}
  assert (min(drawn), max(drawn)) == (least, greatest)
  for value in drawn:
    assert math.isclose(value / values['q'], round(value / values['q']), abs_tol=1e-9)
  assert {*parameter.extremes()} <= drawn
  if values['distribution'] == 'q_uniform':
    assert drawn == {*parameter.grid()}


def test_a_step_without_a_multiple_within_the_bounds_is_refused():
  values = {'distribution': 'q_uniform', 'min': 3, 'max': 5, 'q': 10}
  with pytest.raises(errors.UserError, match='parameters.x.q: 10: no multiple of it is from 3 to 5; lower q'):
    distributions.parse_all({'x': values})
  (parameter,) = distributions.parse_all({'x': {'distribution': 'q_normal', 'mu': 0, 'sigma': 10, 'q': 5}})
  assert {parameter.at(0.001), parameter.at(0.999)} == {-30, 30}  # Without bounds: 3.09 standard deviations.
