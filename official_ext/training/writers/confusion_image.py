"""Draws a confusion matrix."""

from collections.abc import Sequence
from typing import Any

import numpy as np

NAME = 'confusion_matrix'  # The name of the metric that is drawn.
_MAX_NUMBERS = 32  # Up to so many classes, cells show their counts.
_MAX_LABELS = 64  # Up to so many classes, every one is named.
_DOTS_PER_INCH = 100
_MAX_LABEL_LENGTH = 16


def is_matrix(value: Any) -> bool:
  """Whether a value is a square matrix of numbers."""
  return (
    isinstance(value, np.ndarray)
    and value.ndim == 2
    and value.shape[0] == value.shape[1] > 1
    and value.dtype.kind in 'fiu'
  )


def draw(matrix: np.ndarray, class_names: Sequence[str] = ()) -> np.ndarray:
  """Draws a confusion matrix as an image: the shade of a cell is its fraction of its row, its text the count.

  Args:
    matrix: [classes, classes]; row i counts the examples of class i, column j those predicted as class j.
    class_names: the labels, if there are as many as classes; else the labels are numbers.

  Returns:
    uint8 of shape [height, width, 3], 480 to 1,600 pixels high.
  """
  # Not pyplot, which keeps every figure, and may look for a display.
  from matplotlib import figure  # pylint: disable=g-import-not-at-top
  from matplotlib.backends import backend_agg  # pylint: disable=g-import-not-at-top

  count = len(matrix)
  labels = [_shorten(str(name)) for name in (class_names if len(class_names) == count else range(count))]
  size = float(np.clip(0.45 * count + 2, 4.8, 16))
  canvas = backend_agg.FigureCanvasAgg(
    figure.Figure(figsize=(size * 1.15, size), dpi=_DOTS_PER_INCH, layout='constrained')
  )
  axes = canvas.figure.add_subplot()
  totals = matrix.sum(1, keepdims=True)
  fractions = np.divide(matrix, totals, out=np.zeros(matrix.shape), where=totals != 0)
  image = axes.imshow(fractions, cmap='Blues', vmin=0, vmax=1, aspect='auto')
  canvas.figure.colorbar(image, ax=axes, label='fraction of the true class', shrink=0.8)
  axes.set_xlabel('predicted class')
  axes.set_ylabel('true class')
  if count <= _MAX_LABELS:
    axes.set_xticks(range(count), labels, rotation=90 if max(map(len, labels)) > 3 else 0)
    axes.set_yticks(range(count), labels)
  if count <= _MAX_NUMBERS:
    for row, column in np.argwhere(matrix):
      axes.text(
        column,
        row,
        f'{matrix[row, column]:.5g}',
        ha='center',
        va='center',
        fontsize=8,
        color='white' if fractions[row, column] > 0.5 else 'black',
      )
  canvas.draw()
  return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _shorten(label: str) -> str:
  return label if len(label) <= _MAX_LABEL_LENGTH else f'{label[: _MAX_LABEL_LENGTH - 1]}…'
