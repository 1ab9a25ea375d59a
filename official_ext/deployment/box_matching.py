"""Matches the boxes that an export finds with those of its model. No TensorFlow.

A detector decides by thresholds and by the order of scores: a score is above `pre_nms_score_threshold` or not, two
boxes overlap by `nms_iou_threshold` or do not, and of two boxes that overlap the one with the higher score stays. A
rounding error flips a decision between equal values, and another box is found. Such boxes are *borderline*: see
`match`.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

# Rounding errors of float32: of scores, which are from 0 to 1, of intersections over union, and of corners, relative.
_SCORE_ERROR = 1e-5
_OVERLAP_ERROR = 1e-3
_CORNER_ERROR = 1e-5

SCORE = 'a score at pre_nms_score_threshold'
NUMBER = 'a score at the limit of max_num_detections'
OVERLAP = 'an overlap at nms_iou_threshold'
EQUAL_SCORES = 'equal scores of overlapping boxes'


@dataclasses.dataclass(frozen=True)
class Thresholds:
  """The decisions of a detector: fields of Model Garden's `detection_generator`.

  Attributes:
    score: `pre_nms_score_threshold`: boxes of lower scores are dropped.
    overlap: `nms_iou_threshold`: of two boxes of a class with this intersection over union, that of the lower score is
      dropped.
    number: `max_num_detections`: the largest number of boxes in an image.
  """

  score: float = float('-inf')
  overlap: float = float('inf')
  number: int = 1 << 31


UNKNOWN = Thresholds()  # No box is borderline.


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
class Matching:
  """The boxes of a model and of its export in one image.

  Attributes:
    pairs: indices of boxes that are the same: (of the model, of the export).
    borderline: of each box that only a rounding error took away from the other side, the reason.
    unmatched: the number of boxes that the other side lacks without such a reason.
  """

  pairs: list[tuple[int, int]]
  borderline: list[str]
  unmatched: int


def match(model: Boxes, export: Boxes, least_overlap: float, thresholds: Thresholds) -> Matching:
  """Matches boxes by class and overlap, those of high scores first.

  Boxes with the same corners match without an overlap too: a box that was clipped to a line has no area.

  A box that one side has alone is borderline if, within rounding errors of float32,

  - its score is `thresholds.score`, or that of the last box of `thresholds.number`;
  - its overlap with a box of both sides, whose score is as high, is `thresholds.overlap`;
  - a box that the other side has alone has its score, and drops it by `thresholds.overlap`;
  - a borderline box of the other side has a score as high, and drops it by `thresholds.overlap`.

  Args:
    model: the boxes of the model.
    export: those of the export.
    least_overlap: the intersection over union of boxes that are the same.
    thresholds: of the detector.
  """
  pairs = _pairs(model, export, least_overlap)
  sides = (model, export)
  paired = [np.isin(np.arange(len(side)), [pair[own] for pair in pairs]) for own, side in enumerate(sides)]
  reasons: tuple[dict[int, str], dict[int, str]] = ({}, {})
  alone = [(own, int(box)) for own in (0, 1) for box in np.flatnonzero(~paired[own])]
  for own, box in alone:
    reason = _reason(sides[own], box, sides[1 - own], paired[1 - own], thresholds)
    if reason:
      reasons[own][box] = reason
  while True:  # A borderline box drops others, which then are borderline too.
    found = [
      (own, box, reasons[1 - own][by])
      for own, box in alone
      if box not in reasons[own]
      for by in _dropping(sides[own], box, sides[1 - own], thresholds)
      if by in reasons[1 - own]
    ]
    if not found:
      break
    for own, box, reason in found:
      reasons[own][box] = reason
  borderline = [*reasons[0].values(), *reasons[1].values()]
  return Matching(pairs, borderline, len(alone) - len(borderline))


def _pairs(model: Boxes, export: Boxes, least_overlap: float) -> list[tuple[int, int]]:
  free = np.ones(len(export), bool)
  pairs = []
  for index in range(len(model)):
    corners = model.corners[index]
    shared = overlaps(corners, export.corners)
    shared[np.abs(export.corners - corners).max(axis=1, initial=0) <= _CORNER_ERROR * np.abs(corners).max()] = 1
    shared[~free | (export.classes != model.classes[index])] = 0
    best = int(shared.argmax()) if len(shared) else 0
    if len(shared) and shared[best] >= least_overlap:
      free[best] = False
      pairs.append((index, best))
  return pairs


def _reason(own: Boxes, box: int, other: Boxes, paired: np.ndarray, thresholds: Thresholds) -> str:
  """The reason that does not depend on other borderline boxes; ''."""
  score = own.scores[box]
  if abs(score - thresholds.score) <= _SCORE_ERROR:
    return SCORE
  if len(other) >= thresholds.number and score <= other.scores.min() + _SCORE_ERROR:
    return NUMBER
  shared = overlaps(own.corners[box], other.corners)
  same, gaps = other.classes == own.classes[box], other.scores - score
  if np.any(same & paired & (gaps >= -_SCORE_ERROR) & (abs(shared - thresholds.overlap) <= _OVERLAP_ERROR)):
    return OVERLAP
  drops = same & ~paired & (shared >= thresholds.overlap - _OVERLAP_ERROR)
  return EQUAL_SCORES if np.any(drops & (abs(gaps) <= _SCORE_ERROR)) else ''


def _dropping(own: Boxes, box: int, other: Boxes, thresholds: Thresholds) -> np.ndarray:
  """Indices of the other side's boxes that drop a box."""
  shared = overlaps(own.corners[box], other.corners)
  same = other.classes == own.classes[box]
  higher = other.scores >= own.scores[box] - _SCORE_ERROR
  return np.flatnonzero(same & higher & (shared >= thresholds.overlap - _OVERLAP_ERROR))


def overlaps(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
  """The intersection over union of a box `[4]` (top, left, bottom, right) with boxes `[n, 4]`: float64 `[n]`."""
  box, boxes = np.asarray(box, np.float64), np.asarray(boxes, np.float64)
  sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
  shared = np.prod(np.maximum(sides, 0), axis=1)
  union = np.prod(box[2:] - box[:2]) + np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) - shared
  return np.divide(shared, union, out=np.zeros_like(union), where=union > 0)
