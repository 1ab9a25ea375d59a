"""Compares an export's outputs with the model's: classes, pixels, other values, or boxes. No TensorFlow.

A detector decides by thresholds and by the order of scores: a score is above `pre_nms_score_threshold` or not, two
boxes overlap by `nms_iou_threshold` or do not, and of two overlapping boxes the one with the higher score stays. A
rounding error flips a decision between equal values, and another box is found. Such boxes are *borderline*: see
`match_boxes`.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

CLASSES, BOXES, PIXELS, VALUES = KINDS = ('classes', 'boxes', 'pixels', 'values')
# Names of outputs that hold a value for each class, the most direct first.
CLASS_OUTPUTS = ('logits', 'outputs', 'probs', 'probabilities')


# Rounding errors of float32, unless the boxes that are the same on both sides differ by more: of scores, which are from
# 0 to 1, and of corners, relative to the size of the image. Corners inherit the error of a box that was larger before
# the border of the image clipped it.
_SCORE_ERROR, _MOST_SCORE_ERROR = 1e-5, 1e-4
_CORNER_ERROR, _MOST_CORNER_ERROR = 1e-5, 1e-4
_MOST_CLASS_ERROR = 1e-3  # Of the largest value of a class.
_OVERLAP_ERROR = 1e-3  # Of intersections over union, added to the error of corners.
_MARGIN = 2  # A decision may meet errors that are larger than the errors of matched boxes.

SCORE = 'a score at pre_nms_score_threshold'
NUMBER = 'a score at the limit of max_num_detections'
OVERLAP = 'an overlap at nms_iou_threshold'
EQUAL_SCORES = 'equal scores of overlapping boxes'
EQUAL_CLASSES = 'equal values of the two highest classes'


@dataclasses.dataclass(frozen=True)
class BoxThresholds:
  """The decisions of a detector: fields of Model Garden's `detection_generator`.

  Attributes:
    score: `pre_nms_score_threshold`: boxes of lower scores are dropped.
    overlap: `nms_iou_threshold`: of two boxes of a class with this intersection over union, the one with the lower
      score is dropped.
    number: `max_num_detections`: the largest number of boxes in an image.
  """

  score: float = float('-inf')
  overlap: float = float('inf')
  number: int = 1 << 31


UNKNOWN = BoxThresholds()  # No box is borderline.


@dataclasses.dataclass(frozen=True)
class Boxes:
  """The boxes of an image, the highest scores first.

  Attributes:
    corners: float64 `[n, 4]`: top, left, bottom, right.
    classes: `[n]`.
    scores: float64 `[n]`, above 0.
  """

  corners: np.ndarray
  classes: np.ndarray
  scores: np.ndarray

  def __len__(self) -> int:
    return len(self.scores)


def of_image(outputs: Mapping[str, np.ndarray], number: int) -> Boxes:
  """The boxes of one image among the outputs of a detector, without padding."""
  scores = outputs['detection_scores'][number].astype(np.float64)
  kept = np.flatnonzero(scores > 0)
  kept = kept[np.argsort(-scores[kept], kind='stable')]
  corners = outputs['detection_boxes'][number].astype(np.float64)
  return Boxes(corners[kept], outputs['detection_classes'][number][kept], scores[kept])


@dataclasses.dataclass(frozen=True)
class BoxMatching:
  """The boxes of a model and of its export in one image.

  Attributes:
    pairs: indices of boxes that are the same: (of the model, of the export).
    borderline: of each box that only a rounding error took from the other side, the reason.
    unmatched: the number of boxes that the other side lacks without such a reason.
  """

  pairs: list[tuple[int, int]]
  borderline: list[str]
  unmatched: int


def match_boxes(model: Boxes, export: Boxes, least_overlap: float, thresholds: BoxThresholds) -> BoxMatching:
  """Matches boxes by class and overlap, high scores first.

  A box that was clipped at the border of the image to a line or a point has no area: see `_same_shares`.

  A box that one side has alone is borderline if, within rounding errors,

  - its score is `thresholds.score`, or the score of the last box of `thresholds.number`;
  - its overlap with a box of both sides, whose score is as high, is `thresholds.overlap`;
  - a box that the other side has alone has its score, and drops it by `thresholds.overlap`;
  - a borderline box of the other side has a score as high, and drops it by `thresholds.overlap`.

  Args:
    model: the boxes of the model.
    export: the boxes of the export.
    least_overlap: the intersection over union of boxes that are the same.
    thresholds: of the detector.
  """
  rounding = _rounding_of(model, export, [])
  for _ in range(2):  # Thin boxes are the same within the errors of the others.
    pairs = _box_pairs(model, export, least_overlap, rounding)
    if least_overlap < _CLOSE_OVERLAP:  # Quantized: the boxes differ by more than rounding errors.
      break
    rounding = _rounding_of(model, export, pairs)
  sides = (model, export)
  paired = [np.isin(np.arange(len(side)), [pair[own] for pair in pairs]) for own, side in enumerate(sides)]
  reasons: tuple[dict[int, str], dict[int, str]] = ({}, {})
  alone = [(own, int(box)) for own in (0, 1) for box in np.flatnonzero(~paired[own])]
  for own, box in alone:
    reason = _box_reason(sides[own], box, sides[1 - own], paired[1 - own], thresholds, rounding)
    if reason:
      reasons[own][box] = reason
  while True:  # A borderline box drops others, which then are borderline too.
    found = [
      (own, box, reasons[1 - own][by])
      for own, box in alone
      if box not in reasons[own]
      for by in _dropping(sides[own], box, sides[1 - own], thresholds, rounding)
      if by in reasons[1 - own]
    ]
    if not found:
      break
    for own, box, reason in found:
      reasons[own][box] = reason
  borderline = [*reasons[0].values(), *reasons[1].values()]
  return BoxMatching(pairs, borderline, len(alone) - len(borderline))


class _Rounding(NamedTuple):
  """Rounding errors: `score` of scores, `corner` of corners in their unit."""

  score: float
  corner: float


def _rounding_of(model: Boxes, export: Boxes, pairs: Sequence[tuple[int, int]]) -> _Rounding:
  """The rounding errors of two sides, of which some boxes are known to be the same."""
  size = max(float(np.abs(side.corners).max(initial=0)) for side in (model, export))
  own, other = np.array(pairs, int).reshape(-1, 2).T
  scores = float(np.abs(model.scores[own] - export.scores[other]).max(initial=0))
  corners = float(np.abs(model.corners[own] - export.corners[other]).max(initial=0))
  return _Rounding(
    score=min(max(_SCORE_ERROR, _MARGIN * scores), _MOST_SCORE_ERROR),
    corner=min(max(_CORNER_ERROR * size, _MARGIN * corners), _MOST_CORNER_ERROR * size),
  )


def _box_pairs(model: Boxes, export: Boxes, least_overlap: float, rounding: _Rounding) -> list[tuple[int, int]]:
  free = np.ones(len(export), bool)
  pairs = []
  shares = _same_shares(model, export, rounding.corner)
  for index in range(len(model)):
    shared = shares[index]
    shared[~free | (export.classes != model.classes[index])] = 0
    best = int(shared.argmax()) if len(shared) else 0
    if len(shared) and shared[best] >= least_overlap:
      free[best] = False
      pairs.append((index, best))
  return pairs


def _box_reason(
  own: Boxes, box: int, other: Boxes, paired: np.ndarray, thresholds: BoxThresholds, rounding: _Rounding
) -> str:
  """The reason that does not depend on other borderline boxes; ''."""
  score = own.scores[box]
  if abs(score - thresholds.score) <= rounding.score:
    return SCORE
  if len(other) >= thresholds.number and score <= other.scores.min() + rounding.score:
    return NUMBER
  least, most = _overlap_range(own.corners[box], other.corners, rounding)
  same, gaps = other.classes == own.classes[box], other.scores - score
  is_at_threshold = (least <= thresholds.overlap) & (thresholds.overlap <= most)
  if np.any(same & paired & (gaps >= -rounding.score) & is_at_threshold):
    return OVERLAP
  drops = same & ~paired & (most >= thresholds.overlap)
  return EQUAL_SCORES if np.any(drops & (abs(gaps) <= rounding.score)) else ''


def _dropping(own: Boxes, box: int, other: Boxes, thresholds: BoxThresholds, rounding: _Rounding) -> np.ndarray:
  """Indices of the other side's boxes that drop a box."""
  _, most = _overlap_range(own.corners[box], other.corners, rounding)
  same = other.classes == own.classes[box]
  higher = other.scores >= own.scores[box] - rounding.score
  return np.flatnonzero(same & higher & (most >= thresholds.overlap))


def _overlap_range(box: np.ndarray, boxes: np.ndarray, rounding: _Rounding) -> tuple[np.ndarray, np.ndarray]:
  """The least and the greatest intersection over union of a box with boxes, within rounding errors: float64 `[n]`.

  The narrower a box is, the more does an error of its corners change.
  """
  sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
  found = []
  for error in (-2 * rounding.corner, 2 * rounding.corner):
    shared = np.prod(np.maximum(sides + error, 0), axis=1)
    areas = [np.prod(np.maximum(each - error, 0), axis=-1) for each in (box[2:] - box[:2], boxes[:, 2:] - boxes[:, :2])]
    union = np.maximum(areas[0] + areas[1] - shared, shared)
    found.append(np.divide(shared, union, out=np.zeros_like(union), where=union > 0))
  return found[0] - _OVERLAP_ERROR, found[1] + _OVERLAP_ERROR


def _same_shares(model: Boxes, export: Boxes, error: float) -> np.ndarray:
  """The intersections over union of the boxes of two sides as shapes: float64 `[model boxes, export boxes]`.

  Each box is grown by the rounding error of a corner. So lines are compared by their lengths, and points by their
  places. Boxes whose corners differ by no more than that error have 1.
  """
  grown = np.array([-error, -error, error, error])
  others = export.corners + grown
  found = np.array([overlaps(corners + grown, others) for corners in model.corners]).reshape(len(model), len(export))
  apart = np.abs(model.corners[:, np.newaxis] - export.corners).max(axis=2, initial=0)
  found[apart <= error] = 1
  return found


def overlaps(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
  """The intersection over union of a box `[4]` (top, left, bottom, right) with boxes `[n, 4]`: float64 `[n]`."""
  box, boxes = np.asarray(box, np.float64), np.asarray(boxes, np.float64)
  sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
  shared = np.prod(np.maximum(sides, 0), axis=1)
  union = np.prod(box[2:] - box[:2]) + np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) - shared
  return np.divide(shared, union, out=np.zeros_like(union), where=union > 0)


# The intersection over union of boxes that are the same: with the arithmetic of float32, and quantized.
_CLOSE_OVERLAP, _LEAST_OVERLAP = 0.99, 0.5
_CLOSE_TOLERANCE = 0.001
_MOST_BORDERLINE = 0.05  # Of the boxes of both; of examples or pixels, at least one.


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The differences of an export from its model.

  Attributes:
    kind: one of `KINDS`.
    difference: the largest absolute difference of an output; of boxes: of the scores of matched ones.
    relative: the largest difference of an output, relative to the largest absolute value that the model has for it.
    agreement: the share of examples or pixels with the same highest class. Of boxes: twice the number of matches over
      the number of boxes of both. Borderline ones are left out. None for outputs that are not classes.
    compared: the number of examples, pixels or boxes of the model in `agreement`.
    overlap: of boxes: the least intersection over union of matched ones that have an area. None for other outputs.
    borderline: the number of examples, pixels or boxes that only a rounding error made different, by reason: see
      `_compare_classes` and `match_boxes`.
    reason: why the outputs cannot be compared; ''.
  """

  kind: str
  difference: float
  relative: float
  agreement: float | None = None
  compared: int = 0
  overlap: float | None = None
  borderline: Mapping[str, int] = dataclasses.field(default_factory=dict)
  reason: str = ''

  def is_within(self, tolerance: float) -> bool:
    """Whether the relative difference is at most `tolerance`, and the agreement at least 1 - tolerance.

    Of boxes, at most one in 20 may be borderline; `compare` counts more examples or pixels as differences.
    """
    if self.reason or not np.isfinite(self.relative) or self.relative > tolerance:
      return False
    if self.kind == BOXES and sum(self.borderline.values()) > _MOST_BORDERLINE * 2 * self.compared:
      return False
    return self.agreement is None or self.agreement >= 1 - tolerance


def compare(
  kind: str,
  expected: Mapping[str, np.ndarray],
  found: Mapping[str, np.ndarray],
  tolerance: float = 0.0,
  thresholds: BoxThresholds = UNKNOWN,
) -> Comparison:
  """Compares outputs by name.

  Args:
    kind: one of `KINDS`.
    expected: the model's outputs: arrays `[n, ...]`.
    found: the export's outputs of the same names; others are ignored.
    tolerance: of `Comparison.is_within`: boxes are the same if their intersection over union is at least 0.99, or 0.5
      for a tolerance above 0.001.
    thresholds: of a detector.
  """
  for name, array in expected.items():
    if name not in found:
      return incomparable(kind, f'the export has no output {name}; it has {", ".join(sorted(found))}')
    if found[name].shape != array.shape:
      return incomparable(kind, f'{name} has the shape {found[name].shape}, expected {array.shape}')
  if kind == BOXES:
    least_overlap = _CLOSE_OVERLAP if tolerance <= _CLOSE_TOLERANCE else _LEAST_OVERLAP
    return _compare_boxes(expected, found, least_overlap, thresholds)
  difference, relative = _differences(expected, found)
  classes = _classes(kind, expected)
  if classes is None:
    return Comparison(kind, difference, relative)
  agreement, borderline = _compare_classes(expected[classes], found[classes])
  return Comparison(kind, difference, relative, agreement, expected[classes][..., 0].size, borderline=borderline)


def incomparable(kind: str, reason: str) -> Comparison:
  """The comparison of outputs that cannot be compared, for a reason."""
  return Comparison(kind, float('inf'), float('inf'), reason=reason)


def _classes(kind: str, expected: Mapping[str, np.ndarray]) -> str | None:
  """The output whose last dimension holds a value for each class."""
  if kind not in (CLASSES, PIXELS):
    return None
  return next((name for name in CLASS_OUTPUTS if name in expected), next(iter(expected)))


def _compare_classes(expected: np.ndarray, found: np.ndarray) -> tuple[float, dict[str, int]]:
  """(agreement, borderline) of values for each class, `[..., classes]`.

  An example is borderline if the export has another highest class, and the model's value of that class is below its
  highest by at most twice the largest difference among the other examples. That difference counts up to 0.001 of the
  largest value, the rounding of float16. More than 5 % of such examples, and more than one, are differences.
  """
  expected, found = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (expected, found))
  rows, highest = np.arange(len(expected)), found.argmax(-1)
  is_same = expected.argmax(-1) == highest
  rounding = _MOST_CLASS_ERROR * float(np.abs(expected).max(initial=0))
  error = _MARGIN * min(float(np.abs(expected - found)[is_same].max(initial=0)), rounding)
  is_borderline = ~is_same & (expected.max(-1) - expected[rows, highest] <= error)
  number = int(is_borderline.sum())
  if number > max(1, _MOST_BORDERLINE * len(expected)):
    return float(is_same.mean()), {}
  others = is_same[~is_borderline]
  return float(others.mean()) if others.size else 1.0, {EQUAL_CLASSES: number} if number else {}


def _differences(expected, found) -> tuple[float, float]:
  """(largest absolute difference, largest difference relative to the scale of its output); of other texts infinite."""
  absolute = relative = 0.0
  for name, array in expected.items():
    values, others = _flat(array), _flat(found[name])
    if values.dtype == object:
      if values.shape != others.shape or any(values != others):
        return float('inf'), float('inf')
      continue
    difference = float(np.abs(values - others).max(initial=0.0)) if values.shape == others.shape else float('inf')
    if not np.isfinite(difference):
      return float('inf'), float('inf')
    scale = float(np.abs(values).max(initial=0.0))
    absolute = max(absolute, difference)
    relative = max(relative, difference / scale if scale else (float('inf') if difference else 0.0))
  return absolute, relative


def _flat(array: np.ndarray) -> np.ndarray:
  """The numbers of an array, float64, or its texts, of dtype object; of an array of arrays, of all of them."""
  if array.dtype == object and array.ndim == 1 and array.size and isinstance(array[0], np.ndarray):
    return np.concatenate([_flat(each) for each in array])
  return array.ravel() if array.dtype == object else array.ravel().astype(np.float64)


def _compare_boxes(expected, found, least_overlap: float, thresholds: BoxThresholds) -> Comparison:
  matches = unmatched = boxes = 0
  difference = scale = 0.0
  least = 1.0
  borderline: collections.Counter[str] = collections.Counter()
  for number in range(len(expected['detection_scores'])):
    model, export = (of_image(outputs, number) for outputs in (expected, found))
    matching = match_boxes(model, export, least_overlap, thresholds)
    boxes += len(model)
    matches += len(matching.pairs)
    unmatched += matching.unmatched
    borderline.update(matching.borderline)
    scale = max(scale, float(model.scores.max(initial=0.0)))
    for own, other in matching.pairs:
      difference = max(difference, float(abs(model.scores[own] - export.scores[other])))
      least = min(least, float(overlaps(model.corners[own], export.corners[[other]])[0]) or 1.0)
  if not boxes:
    return incomparable(BOXES, 'the model finds no box in the examples; lower pre_nms_score_threshold')
  agreement = 2 * matches / (2 * matches + unmatched) if matches + unmatched else 0.0
  return Comparison(
    BOXES, difference, difference / scale, agreement, boxes, least if matches else 0.0, dict(borderline)
  )
