"""Differences of outputs, by numbers that are known."""

import numpy as np
import pytest

from official_ext.deployment import comparing


def test_classes_are_compared_by_value_and_by_the_highest():
  expected = {'logits': np.array([[1.0, -4.0], [2.0, 1.0], [0.0, 3.0], [1.0, 2.0]])}
  found = {'logits': expected['logits'] + [[0.0, 0.5], [0.0, 1.5], [0.0, 0.0], [0.0, 0.0]], 'probs': np.ones([4, 2])}
  compared = comparing.compare(comparing.CLASSES, expected, found)
  assert compared.difference == 1.5 and compared.relative == 1.5 / 4
  assert compared.agreement == 3 / 4 and compared.compared == 4  # 2.0 against 1.0 became 2.0 against 2.5.
  assert compared.is_within(0.375) and not compared.is_within(0.37)
  values = comparing.compare(comparing.VALUES, expected, found)
  assert values.agreement is None and values.relative == compared.relative


def test_the_agreement_counts_too():
  expected = {'logits': np.tile([[0.0, 1e-4]], [4, 1]) + 1000}
  found = {'logits': np.tile([[1e-4, 0.0]], [4, 1]) + 1000}
  compared = comparing.compare(comparing.CLASSES, expected, found)
  assert compared.relative < 1e-6 and compared.agreement == 0 and not compared.is_within(0.5)


def test_pixels_are_compared_each():
  expected = {'logits': np.zeros([1, 2, 5, 3])}
  expected['logits'][..., 1] = 1
  found = {'logits': expected['logits'].copy()}
  found['logits'][0, 0, 0, 2] = 2
  compared = comparing.compare(comparing.PIXELS, expected, found)
  assert compared.agreement == 9 / 10 and compared.compared == 10 and compared.difference == 2


def test_the_scale_is_that_of_each_output():
  expected = {'small': np.array([0.01]), 'large': np.array([100.0])}
  found = {'small': np.array([0.02]), 'large': np.array([100.0])}
  compared = comparing.compare(comparing.VALUES, expected, found)
  assert compared.difference == pytest.approx(0.01) and compared.relative == pytest.approx(1)
  assert comparing.compare(comparing.VALUES, {'a': np.zeros(3)}, {'a': np.zeros(3)}).relative == 0
  assert comparing.compare(comparing.VALUES, {'a': np.zeros(3)}, {'a': np.ones(3)}).relative == np.inf


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_outputs_that_are_not_finite_are_never_within(value):
  compared = comparing.compare(comparing.VALUES, {'a': np.ones(3)}, {'a': np.array([1.0, value, 1.0])})
  assert not compared.is_within(1.0)


def test_missing_outputs_and_other_shapes_are_named():
  expected = {'logits': np.ones([2, 3])}
  missing = comparing.compare(comparing.CLASSES, expected, {'other': np.ones([2, 3])})
  assert missing.reason == 'the export has no output logits; it has other' and not missing.is_within(1.0)
  shaped = comparing.compare(comparing.CLASSES, expected, {'logits': np.ones([2, 4])})
  assert shaped.reason == 'logits has the shape (2, 4), expected (2, 3)'


def boxes(*rows, size=4):
  """The outputs of one image: rows of (box, class, score), padded."""
  found = {
    'detection_boxes': np.zeros([1, size, 4]),
    'detection_classes': np.zeros([1, size]),
    'detection_scores': np.zeros([1, size]),
  }
  for number, (box, label, score) in enumerate(rows):
    found['detection_boxes'][0, number] = box
    found['detection_classes'][0, number] = label
    found['detection_scores'][0, number] = score
  return found


def test_boxes_are_matched_by_class_and_overlap_in_any_order():
  expected = boxes(([0, 0, 10, 10], 1, 0.9), ([20, 20, 30, 30], 2, 0.6))
  found = boxes(([20, 20, 30, 31], 2, 0.8), ([0, 0, 10, 12], 1, 0.7))
  compared = comparing.compare(comparing.BOXES, expected, found, 0.3)
  assert compared.agreement == 1 and compared.compared == 2 and compared.overlap == pytest.approx(10 / 12)
  assert compared.difference == pytest.approx(0.2) and compared.relative == pytest.approx(0.2 / 0.9)


@pytest.mark.parametrize(
  'others, agreement',
  [
    ([([0, 0, 10, 10], 3, 0.9), ([20, 20, 30, 30], 2, 0.6)], 2 / 4),  # Another class.
    ([([0, 8, 10, 18], 1, 0.9), ([20, 20, 30, 30], 2, 0.6)], 2 / 4),  # Elsewhere.
    ([([20, 20, 30, 30], 2, 0.6)], 2 / 3),  # Missing.
    ([([0, 0, 10, 10], 1, 0.9), ([20, 20, 30, 30], 2, 0.6), ([0, 0, 10, 10], 1, 0.5)], 4 / 5),  # One more.
  ],
)
def test_other_boxes_lower_the_agreement(others, agreement):
  expected = boxes(([0, 0, 10, 10], 1, 0.9), ([20, 20, 30, 30], 2, 0.6))
  compared = comparing.compare(comparing.BOXES, expected, boxes(*others))
  assert compared.agreement == pytest.approx(agreement) and compared.difference == 0
  assert not compared.is_within(0.1)


def test_a_small_tolerance_requires_a_large_overlap():
  """10 / 11 is above 0.9 and below 0.99."""
  expected, found = boxes(([0, 0, 10, 10], 1, 0.9)), boxes(([0, 0, 10, 11], 1, 0.9))
  assert comparing.compare(comparing.BOXES, expected, found, 0.01).is_within(0.01)
  assert comparing.compare(comparing.BOXES, expected, found, 0.001).agreement == 0


def test_borderline_boxes_are_counted_apart_and_bounded():
  thresholds = comparing.BoxThresholds(0.05, 0.5, 100)
  rows = [([20 * number, 0, 20 * number + 10, 10], 1, 0.9) for number in range(40)]
  expected = boxes(*rows, ([0, 50, 10, 60], 1, 0.0500001), size=50)
  compared = comparing.compare(comparing.BOXES, expected, boxes(*rows, size=50), 0.001, thresholds)
  assert compared.agreement == 1 and compared.borderline == {comparing.SCORE: 1} and compared.is_within(0.001)
  # Without the thresholds of the detector it is a difference.
  assert comparing.compare(comparing.BOXES, expected, boxes(*rows, size=50), 0.001).agreement == 80 / 81
  many = [([20 * number, 50, 20 * number + 10, 60], 1, 0.0500001) for number in range(5)]
  compared = comparing.compare(comparing.BOXES, boxes(*rows, *many, size=50), boxes(*rows, size=50), 0.001, thresholds)
  assert compared.agreement == 1 and compared.borderline == {comparing.SCORE: 5}
  assert not compared.is_within(0.001)  # 5 of 85.


def class_values(number, *flipped, error=0.0001, margin=0.00015):
  """(model, export) of `number` examples with 3 classes: in the examples `flipped`, the export has another one."""
  model = np.tile([[0.9, 0.1, 0.0]], (number, 1))
  model[list(flipped), 1] = 0.9 - margin
  export = model + error * np.array([-1, 1, 0])
  return {'logits': model}, {'logits': export}


def test_an_example_with_two_equal_classes_is_borderline():
  """The errors of the other examples, 0.0001 on both classes, explain a margin of up to 0.0002."""
  compared = comparing.compare(comparing.CLASSES, *class_values(24, 5))
  assert compared.agreement == 1 and compared.borderline == {comparing.EQUAL_CLASSES: 1} and compared.is_within(0.01)
  model, export = class_values(24, 5, margin=0.0003)
  export['logits'][5] = [0.8999, 0.8999 + 1e-6, 0.0]
  compared = comparing.compare(comparing.CLASSES, model, export)
  assert compared.agreement == 23 / 24 and compared.borderline == {} and not compared.is_within(0.01)


def test_a_single_example_with_two_equal_classes_agrees():
  """There is no other example whose error could explain the difference, unless the values are equal."""
  compared = comparing.compare(comparing.CLASSES, {'logits': np.ones([1, 2])}, {'logits': np.array([[1.0, 1.000001]])})
  assert compared.agreement == 1 and compared.borderline == {comparing.EQUAL_CLASSES: 1} and compared.is_within(0.01)


@pytest.mark.parametrize('number, flipped, agreement', [(40, 2, 1), (40, 3, 37 / 40), (4, 1, 1), (4, 2, 0.5)])
def test_many_examples_with_two_equal_classes_are_differences(number, flipped, agreement):
  compared = comparing.compare(comparing.CLASSES, *class_values(number, *range(flipped)))
  assert compared.agreement == agreement and sum(compared.borderline.values()) == (flipped if agreement == 1 else 0)
  assert compared.is_within(0.3) == (agreement > 0.7)


def test_a_model_without_boxes_verifies_nothing():
  compared = comparing.compare(comparing.BOXES, boxes(), boxes())
  assert compared.reason.startswith('the model finds no box in the examples') and not compared.is_within(1.0)
