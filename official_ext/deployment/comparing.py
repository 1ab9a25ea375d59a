"""The comparison of an export's outputs with the model's own. No TensorFlow."""

import collections
from collections.abc import Mapping
import dataclasses

import numpy as np

from official_ext.deployment import box_matching
from official_ext.deployment import tensor_kinds

# The intersection over union of boxes that are the same: with the arithmetic of float32, and quantized.
_CLOSE_OVERLAP, _LEAST_OVERLAP = 0.99, 0.5
_CLOSE_TOLERANCE = 0.001
_MOST_BORDERLINE = 0.05  # Of the boxes of both.


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The differences of an export from its model.

  Attributes:
    kind: one of `tensor_kinds.KINDS`.
    difference: the largest absolute difference of an output; of boxes: that of the scores of matched ones.
    relative: the largest difference of an output, relative to the largest absolute value that the model has for it.
    agreement: the share of examples or pixels with the same highest class. Of boxes: twice the number of matches over
      the number of boxes of both, without borderline ones. None for outputs that are not classes.
    compared: the number of examples, pixels or boxes of the model in `agreement`.
    overlap: of boxes: the least intersection over union of matched ones that have an area. None for other outputs.
    borderline: of boxes: the number of those that only a rounding error took away from the model or the export, by the
      reason: see `box_matching.match`.
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

    Of boxes, at most one in 20 may be borderline.
    """
    if self.reason or not np.isfinite(self.relative) or self.relative > tolerance:
      return False
    if sum(self.borderline.values()) > _MOST_BORDERLINE * 2 * self.compared:
      return False
    return self.agreement is None or self.agreement >= 1 - tolerance


def compare(
  kind: str,
  expected: Mapping[str, np.ndarray],
  found: Mapping[str, np.ndarray],
  tolerance: float = 0.0,
  thresholds: box_matching.Thresholds = box_matching.UNKNOWN,
) -> Comparison:
  """Compares outputs by name.

  Args:
    kind: one of `tensor_kinds.KINDS`.
    expected: the model's outputs: arrays `[n, ...]`.
    found: the export's outputs: those of the same names, and others, which are ignored.
    tolerance: of `Comparison.is_within`: boxes are the same if their intersection over union is at least 0.99, or 0.5
      for a tolerance above 0.001.
    thresholds: of a detector.
  """
  for name, array in expected.items():
    if name not in found:
      return incomparable(kind, f'the export has no output {name}; it has {", ".join(sorted(found))}')
    if found[name].shape != array.shape:
      return incomparable(kind, f'{name} has the shape {found[name].shape}, expected {array.shape}')
  if kind == tensor_kinds.BOXES:
    least_overlap = _CLOSE_OVERLAP if tolerance <= _CLOSE_TOLERANCE else _LEAST_OVERLAP
    return _compare_boxes(expected, found, least_overlap, thresholds)
  difference, relative = _differences(expected, found)
  agreement, compared = None, 0
  classes = _classes(kind, expected)
  if classes is not None:
    highest = [arrays[classes].argmax(-1) for arrays in (expected, found)]
    agreement, compared = float(np.mean(highest[0] == highest[1])), highest[0].size
  return Comparison(kind, difference, relative, agreement, compared)


def incomparable(kind: str, reason: str) -> Comparison:
  """The comparison of outputs that cannot be compared, for a reason."""
  return Comparison(kind, float('inf'), float('inf'), reason=reason)


def _classes(kind: str, expected: Mapping[str, np.ndarray]) -> str | None:
  """The output whose last dimension holds a value for each class."""
  if kind not in (tensor_kinds.CLASSES, tensor_kinds.PIXELS):
    return None
  return next((name for name in tensor_kinds.CLASS_OUTPUTS if name in expected), next(iter(expected)))


def _differences(expected, found) -> tuple[float, float]:
  """(largest absolute difference, largest difference relative to the scale of its output)."""
  absolute = relative = 0.0
  for name, array in expected.items():
    values, others = array.astype(np.float64), found[name].astype(np.float64)
    difference = float(np.abs(values - others).max(initial=0.0))
    if not np.isfinite(difference):
      return float('inf'), float('inf')
    scale = float(np.abs(values).max(initial=0.0))
    absolute = max(absolute, difference)
    relative = max(relative, difference / scale if scale else (float('inf') if difference else 0.0))
  return absolute, relative


def _compare_boxes(expected, found, least_overlap: float, thresholds: box_matching.Thresholds) -> Comparison:
  matches = unmatched = boxes = 0
  difference = scale = 0.0
  least = 1.0
  borderline: collections.Counter[str] = collections.Counter()
  for number in range(len(expected['detection_scores'])):
    model, export = (box_matching.of_image(outputs, number) for outputs in (expected, found))
    matching = box_matching.match(model, export, least_overlap, thresholds)
    boxes += len(model)
    matches += len(matching.pairs)
    unmatched += matching.unmatched
    borderline.update(matching.borderline)
    scale = max(scale, float(model.scores.max(initial=0.0)))
    for own, other in matching.pairs:
      difference = max(difference, float(abs(model.scores[own] - export.scores[other])))
      least = min(least, float(box_matching.overlaps(model.corners[own], export.corners[[other]])[0]) or 1.0)
  if not boxes:
    return incomparable(tensor_kinds.BOXES, 'the model finds no box in the examples; lower pre_nms_score_threshold')
  agreement = 2 * matches / (2 * matches + unmatched) if matches + unmatched else 0.0
  return Comparison(
    tensor_kinds.BOXES, difference, difference / scale, agreement, boxes, least if matches else 0.0, dict(borderline)
  )
