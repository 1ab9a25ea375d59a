"""Boxes of two detectors, matched; a suppression in numpy separates rounding errors from other differences."""

import numpy as np
import pytest

from official_ext.deployment import comparing

THRESHOLDS = comparing.BoxThresholds(score=0.05, overlap=0.5, number=100)


def boxes(*rows):
  """Rows of (corners, class, score)."""
  corners, classes, scores = zip(*rows) if rows else ((), (), ())
  return comparing.Boxes(np.array(corners, float).reshape(-1, 4), np.array(classes), np.array(scores, float))


def suppressed(candidates, thresholds=THRESHOLDS):
  """The boxes that a greedy non-maximum suppression by class keeps, the highest scores first."""
  kept = []
  for index in np.argsort(-candidates.scores, kind='stable'):
    if candidates.scores[index] <= thresholds.score or len(kept) == thresholds.number:
      continue
    same = [other for other in kept if candidates.classes[other] == candidates.classes[index]]
    shared = comparing.overlaps(candidates.corners[index], candidates.corners[same])
    if not np.any(shared >= thresholds.overlap):
      kept.append(index)
  return comparing.Boxes(candidates.corners[kept], candidates.classes[kept], candidates.scores[kept])


def matched(model, export, thresholds=THRESHOLDS):
  return comparing.match_boxes(model, export, 0.99, thresholds)


def test_the_overlap_of_boxes():
  others = [[0, 0, 2, 2], [0, 1, 2, 3], [2, 2, 3, 3], [0, 0, 0, 0]]
  np.testing.assert_allclose(comparing.overlaps([0, 0, 2, 2], others), [1, 2 / 6, 0, 0])
  assert comparing.overlaps([0, 0, 0, 0], [[0, 0, 0, 0]]) == 0


LEFT, RIGHT = [0, 0, 10, 10], [0, 3, 10, 13]  # An overlap of 70 / 130 = 0.54.
FAR = [50, 50, 60, 60]


def test_equal_scores_in_another_order():
  both = boxes((LEFT, 1, 0.7), (RIGHT, 1, 0.7))
  swapped = boxes((RIGHT, 1, 0.7000001), (LEFT, 1, 0.7))
  found = matched(suppressed(both), suppressed(swapped))
  assert found.pairs == [] and found.borderline == [comparing.EQUAL_SCORES] * 2 and found.unmatched == 0
  # The same boxes with scores that differ are two differences.
  lower = boxes((RIGHT, 1, 0.72), (LEFT, 1, 0.7))
  found = matched(suppressed(both), suppressed(lower))
  assert found.borderline == [] and found.unmatched == 2


def test_a_box_behind_a_flipped_one_is_borderline():
  """The third overlaps the second alone, so it stays if the second is dropped."""
  third = [0, 6, 10, 16]
  model = suppressed(boxes((LEFT, 1, 0.7), (RIGHT, 1, 0.7), (third, 1, 0.6)))
  export = suppressed(boxes((RIGHT, 1, 0.7000001), (LEFT, 1, 0.7), (third, 1, 0.6)))
  assert len(model) == 2 and len(export) == 1
  found = matched(model, export)
  assert found.borderline == [comparing.EQUAL_SCORES] * 3 and found.unmatched == 0
  assert matched(model, suppressed(boxes((RIGHT, 1, 0.72)))).unmatched == 3


def test_a_score_at_the_threshold():
  model = boxes((LEFT, 1, 0.9), (FAR, 1, 0.0500003))
  export = boxes((LEFT, 1, 0.9))
  found = matched(model, export)
  assert found.borderline == [comparing.SCORE] and found.unmatched == 0 and found.pairs == [(0, 0)]
  assert matched(export, model).borderline == [comparing.SCORE]
  assert matched(boxes((LEFT, 1, 0.9), (FAR, 1, 0.0502)), export).unmatched == 1


def test_an_overlap_at_the_threshold():
  half = [0, 10 / 3 - 1e-4, 10, 10 + 10 / 3 - 1e-4]  # Nearly (20 / 3) / (40 / 3) = 0.5.
  near = [0, 10 / 3 + 1e-4, 10, 10 + 10 / 3 + 1e-4]
  model = suppressed(boxes((LEFT, 1, 0.9), (near, 1, 0.8)))
  export = suppressed(boxes((LEFT, 1, 0.9), (half, 1, 0.8)))
  assert (len(model), len(export)) == (2, 1)
  assert matched(model, export).borderline == [comparing.OVERLAP]
  elsewhere = boxes((LEFT, 1, 0.9), ([0, 5, 10, 15], 1, 0.8))  # An overlap of 1 / 3: nothing dropped it.
  assert matched(elsewhere, export).unmatched == 1


def test_the_last_boxes_of_a_full_image():
  thresholds = comparing.BoxThresholds(0.05, 0.5, 2)
  model = boxes((LEFT, 1, 0.9), (FAR, 1, 0.5))
  export = boxes((LEFT, 1, 0.9), ([80, 80, 90, 90], 1, 0.5000001))
  found = matched(model, export, thresholds)
  assert found.borderline == [comparing.NUMBER] * 2 and found.unmatched == 0
  assert matched(model, export).unmatched == 2  # 100 boxes would have been possible.


def test_other_classes_are_other_boxes():
  found = matched(boxes((LEFT, 1, 0.9)), boxes((LEFT, 2, 0.9)))
  assert found.pairs == [] and found.unmatched == 2 and found.borderline == []


def test_a_box_without_area_matches_itself_alone():
  """Its overlap with itself is 0."""
  line, other = [0, 10, 20, 10], [0, 11, 20, 11]
  assert matched(boxes((line, 1, 0.9)), boxes(([0, 10.00005, 20, 10.00005], 1, 0.9))).pairs == [(0, 0)]
  assert matched(boxes((line, 1, 0.9)), boxes((other, 1, 0.9))).unmatched == 2
  found = matched(boxes((line, 1, 0.9), (other, 1, 0.8)), boxes((other, 1, 0.9), (line, 1, 0.8)))
  assert found.pairs == [(0, 1), (1, 0)]


def test_lines_are_compared_by_length_and_points_by_place():
  """A detector clips boxes at the borders of its image; here 128 pixels wide, which another box shows."""
  wide = ([0, 0, 128, 128], 1, 0.5)

  def is_same(corners, other):
    found = matched(boxes(wide, (corners, 1, 0.9)), boxes(wide, (other, 1, 0.9)))
    assert found.unmatched in (0, 2)
    return len(found.pairs) == 2

  # An overlap of 0.99 is that of lengths.
  assert is_same([0, 0, 0, 34.3633], [0, 0, 0, 34.3633 * 0.995])
  assert not is_same([0, 0, 0, 34.3633], [0, 0, 0, 34.3633 * 0.98])
  # Another border; the other direction; the same border from another place on.
  assert not is_same([0, 0, 0, 34.3633], [128, 0, 128, 34.3633])
  assert not is_same([0, 0, 0, 34.3633], [0, 0, 34.3633, 0])
  assert not is_same([0, 0, 0, 34.3633], [0, 40, 0, 74.3633])
  # A short line; a point at its corner, and another.
  assert is_same([0, 0, 5.33357, 0], [0, 0, 5.33343, 0])
  assert is_same([0, 0, 0, 0], [0, 0, 0, 0]) and not is_same([0, 0, 0, 0], [0, 128, 0, 128])
  # A line, and a box as narrow as a rounding error.
  assert is_same([0, 0, 5, 0], [0, 0, 5, 128e-6])


def test_a_thin_box_is_the_same_within_the_errors_of_the_others():
  """Corners of a box that the border clips have the error of the whole box."""
  wide, wider = ([0, 0, 128, 128], 2, 0.9), ([0, 0, 128, 127.996], 2, 0.9)
  thin, thinner = ([0, 0, 90, 0.020], 1, 0.8), ([0, 0, 90, 0.016], 1, 0.8)
  elsewhere, other = ([0, 0, 90, 0.016], 1, 0.78), ([0, 0, 90, 0.5], 1, 0.78)
  assert matched(boxes(wide, thin), boxes(wider, thinner)).unmatched == 0
  assert matched(boxes(wide, thin), boxes(wide, elsewhere)).unmatched == 2  # No other box has such an error.
  assert matched(boxes(wide, thin), boxes(wider, other)).unmatched == 2
  # So is an overlap of thin boxes at the threshold: 0.4 and 0.6, of 0.5.
  below, above = ([0, 0, 90, 0.008], 1, 0.7), ([0, 0, 90, 0.012], 1, 0.7)
  model, export = (suppressed(boxes(big, thin, small)) for big, small in ((wide, below), (wider, above)))
  assert (len(model), len(export)) == (3, 2)
  found = matched(model, export)
  assert found.unmatched == 0 and found.borderline == [comparing.OVERLAP]
  assert matched(boxes(wide, thin, ([0, 0, 90, 0.002], 1, 0.7)), boxes(wide, thin)).unmatched == 1


def test_a_score_at_the_threshold_within_the_errors_of_the_others():
  model = boxes((LEFT, 1, 0.9), (FAR, 1, 0.05002))
  assert matched(model, boxes((LEFT, 1, 0.90002))).borderline == [comparing.SCORE]
  assert matched(model, boxes((LEFT, 1, 0.9))).unmatched == 1
  assert matched(boxes((LEFT, 1, 0.9), (FAR, 1, 0.0502)), boxes((LEFT, 1, 0.8))).unmatched == 1


def drawn(rng, number=60):
  """Overlapping boxes of two classes, whose scores are often equal."""
  corner = rng.uniform(0, 60, (number, 2))
  corners = np.concatenate([corner, corner + rng.uniform(20, 30, (number, 2))], axis=1)
  return comparing.Boxes(corners, rng.integers(1, 3, number), rng.integers(1, 9, number) / 10)


@pytest.mark.parametrize('seed', range(5))
def test_rounding_errors_alone_leave_no_unmatched_box(seed):
  """Of 60 overlapping boxes with 8 scores, errors of 1e-7 flip many decisions."""
  rng = np.random.default_rng(seed)
  borderline = 0
  for _ in range(20):
    candidates = drawn(rng)
    rounded = comparing.Boxes(
      candidates.corners + rng.uniform(-1e-5, 1e-5, candidates.corners.shape),
      candidates.classes,
      candidates.scores + rng.uniform(-1e-7, 1e-7, len(candidates)),
    )
    model, export = suppressed(candidates), suppressed(rounded)
    found = matched(model, export)
    assert found.unmatched == 0
    assert 2 * len(found.pairs) + len(found.borderline) == len(model) + len(export)
    borderline += len(found.borderline)
  assert borderline > 20


@pytest.mark.parametrize('seed', range(5))
def test_real_differences_are_unmatched(seed):
  """Boxes without equal scores, of which some move, vanish or change their class."""
  rng = np.random.default_rng(seed)
  model = suppressed(drawn(rng))
  model = comparing.Boxes(model.corners, model.classes, np.linspace(0.9, 0.1, len(model)))
  changed = rng.choice(len(model), 3, replace=False)
  moved = model.corners.copy()
  moved[changed] += 40
  found = matched(model, comparing.Boxes(moved, model.classes, model.scores))
  assert found.unmatched == 6 and found.borderline == []
  classes = model.classes.copy()
  classes[changed] += 5
  assert matched(model, comparing.Boxes(model.corners, classes, model.scores)).unmatched == 6
  rest = np.delete(np.arange(len(model)), changed)
  without = comparing.Boxes(model.corners[rest], model.classes[rest], model.scores[rest])
  assert matched(model, without).unmatched == 3
