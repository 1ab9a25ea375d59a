"""Computes the result of a classifier, of images or of texts: figures, the table of its classes, pictures.

The figures: of each class; calibration; intersection over union of pixels.
"""

from collections.abc import Callable, Sequence
import math
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.training.evaluation import results
from official_ext.training.writers import tensorboard

NUM_BINS = 15  # Guo et al. 2017.
NO_CLASS = -1  # The prediction of outputs that are not finite.
_DIGITS = 6


def figures_of_probabilities(
  probabilities: np.ndarray, labels: np.ndarray, names: Sequence[str]
) -> tuple[json_values.JsonObject, list[results.Table]]:
  """All figures of a classifier, and the table of its classes.

  An example with an output that is not finite is of no class: a wrong prediction, outside of the confusion matrix and
  the calibration. Their number is the figure `not_finite`, and the log loss is None.

  Args:
    probabilities: float `[examples, classes]`, rows that sum to 1.
    labels: int `[examples]`.
    names: of the classes.

  Raises:
    UserError: no example has finite outputs.
  """
  from sklearn import metrics  # pylint: disable=g-import-not-at-top  # It takes a second.

  is_finite, numbers = np.isfinite(probabilities).all(-1), list(range(len(names)))
  check_finite(int(is_finite.sum()), len(labels), 'examples')
  predictions = np.where(is_finite, probabilities.argmax(-1), NO_CLASS)
  matrix = metrics.confusion_matrix(labels, predictions, labels=numbers)
  precision, recall, f1, support = metrics.precision_recall_fscore_support(
    labels, predictions, labels=numbers, zero_division=0
  )
  rows = [
    [name, *(rounded(values[number]) for values in (precision, recall, f1)), int(support[number])]
    for number, name in enumerate(names)
  ]
  fields = ('precision', 'recall', 'f1', 'examples')
  occurring = support > 0
  figures: json_values.JsonObject = {
    'examples': len(labels),
    'accuracy': rounded(np.mean(predictions == labels)),
    'mean_f1': rounded(f1[occurring].mean()),  # Over classes with examples.
    'log_loss': rounded(-np.mean(np.log(np.maximum(probabilities[np.arange(len(labels)), labels], 1e-12)))),
    'calibration': calibration(probabilities[is_finite], labels[is_finite]),
    'classes': {row[0]: dict(zip(fields, row[1:])) for row in rows},
    'confusion_matrix': matrix.tolist(),
  }
  if not is_finite.all():
    figures['not_finite'] = int((~is_finite).sum())
  return figures, [results.Table('Classes', ('class', *fields), rows)]


def check_finite(number: int, total: int, noun: str) -> None:
  """Refuses the outputs of a model of which none is finite: they have no figures.

  Args:
    number: how many are finite.
    total: how many there are.
    noun: for the message, such as 'examples'.

  Raises:
    UserError: `number` is 0.
  """
  if total and not number:
    raise errors.UserError(
      f'outputs: are NaN or infinite for all {total} {noun}: there is nothing to evaluate; choose an earlier checkpoint'
    )


def calibration(probabilities: np.ndarray, labels: np.ndarray, num_bins: int = NUM_BINS) -> json_values.JsonObject:
  """The expected calibration error and its bins.

  Source: Guo, Pleiss, Sun and Weinberger 2017, "On Calibration of Modern Neural Networks", arXiv:1706.04599, equations
  2, 3 and 5. Bin m holds the confidences in ((m - 1) / M, m / M].

  Args:
    probabilities: float `[examples, classes]`.
    labels: int `[examples]`.
    num_bins: M.

  Returns:
    `ece`, and `bins`: of each bin its upper end, and if it has examples, their number, mean confidence and accuracy.
  """
  confidences, is_right = probabilities.max(-1), probabilities.argmax(-1) == labels
  bins = np.clip(np.ceil(confidences * num_bins).astype(int) - 1, 0, num_bins - 1)
  found, error = [], 0.0
  for number in range(num_bins):
    inside = bins == number
    entry: json_values.JsonObject = {'up_to': rounded((number + 1) / num_bins), 'examples': int(inside.sum())}
    if inside.any():
      confidence, accuracy = float(confidences[inside].mean()), float(is_right[inside].mean())
      error += inside.mean() * abs(accuracy - confidence)
      entry |= {'confidence': rounded(confidence), 'accuracy': rounded(accuracy)}
    found.append(entry)
  return {'ece': rounded(error), 'bins': found}


def figures_of_pixels(
  matrix: np.ndarray, names: Sequence[str], missed: np.ndarray | None = None
) -> tuple[json_values.JsonObject, list[results.Table]]:
  """Intersection over union of each class, and the table of the classes.

  Args:
    matrix: `[classes, classes]`; row i counts pixels of class i, column j pixels predicted as class j.
    names: of the classes.
    missed: `[classes]`: further pixels of each class, whose outputs are not finite: they are of no class, thus wrong;
      None for none. Their number is the figure `not_finite`.

  Raises:
    UserError: no pixel has finite outputs.
  """
  missed = np.zeros(len(names), np.int64) if missed is None else missed
  check_finite(int(matrix.sum()), int(matrix.sum() + missed.sum()), 'pixels')
  right, true, predicted = np.diag(matrix), matrix.sum(1) + missed, matrix.sum(0)
  union = true + predicted - right
  ious = [rounded(right[number] / union[number]) if union[number] else None for number in range(len(names))]
  shares = true / max(1, true.sum())
  rows = [[name, ious[number], rounded(shares[number])] for number, name in enumerate(names)]
  known = [iou for iou in ious if iou is not None]
  figures: json_values.JsonObject = {
    'mean_iou': rounded(np.mean(known)),  # Over classes that occur in the masks or the predictions.
    'pixel_accuracy': rounded(right.sum() / max(1, true.sum())),
    'classes': {name: {'iou': iou, 'share_of_pixels': share} for name, iou, share in rows},
    'confusion_matrix': matrix.tolist(),
  }
  if missed.any():
    figures['not_finite'] = int(missed.sum())
  return figures, [results.Table('Classes', ('class', 'iou', 'share of pixels'), rows)]


def confusion(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> np.ndarray:
  """The confusion matrix of pixels: int64 `[classes, classes]`, rows are true classes. `NO_CLASS` does not count."""
  labels, predictions = labels[predictions != NO_CLASS], predictions[predictions != NO_CLASS]
  return np.bincount(labels * num_classes + predictions, minlength=num_classes**2).reshape(num_classes, num_classes)


def rounded(value: float | np.floating) -> float | None:
  """A number for a report; None for one that is not finite."""
  return round(float(value), _DIGITS) if math.isfinite(value) else None


_DOTS_PER_INCH = 100


def drawn(draw: Callable[[Any], None]) -> np.ndarray:
  """The picture of a function that draws on Matplotlib's axes: uint8 `[480, 480, 3]`."""
  # Not pyplot, which keeps every figure, and may look for a display.
  from matplotlib import figure  # pylint: disable=g-import-not-at-top
  from matplotlib.backends import backend_agg  # pylint: disable=g-import-not-at-top

  canvas = backend_agg.FigureCanvasAgg(figure.Figure(figsize=(4.8, 4.8), dpi=_DOTS_PER_INCH, layout='constrained'))
  draw(canvas.figure.add_subplot())
  canvas.draw()
  return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def draw_calibration(calibration: json_values.JsonMapping) -> np.ndarray:
  """Draws accuracy over confidence, as figure 1 of Guo et al. 2017, arXiv:1706.04599.

  Args:
    calibration: the result of `calibration`.

  Returns:
    uint8 `[480, 480, 3]`.
  """
  bins = calibration['bins']
  width = 1 / len(bins)
  known = [each for each in bins if each['examples']]

  def draw(axes):
    axes.bar(
      [each['up_to'] - width / 2 for each in known], [each['accuracy'] for each in known], width, edgecolor='white'
    )
    axes.plot([0, 1], [0, 1], '--', color='grey')
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel='confidence', ylabel='accuracy')
    axes.set_title(f'expected calibration error {calibration["ece"]:.3f}')

  return drawn(draw)


def of_probabilities(probabilities: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> results.Result:
  """The result without mistakes: see `figures_of_probabilities` for the arguments."""
  figures, tables = figures_of_probabilities(probabilities, labels, names)
  pictures = {
    'confusion_matrix': tensorboard.draw_confusion_matrix(np.array(figures['confusion_matrix']), names),
    'calibration': draw_calibration(figures['calibration']),
  }
  return results.Result(figures, tables, pictures)
