"""Draws a reliability diagram."""

import numpy as np

from official_ext.base import json_types

_DOTS_PER_INCH = 100


def draw(calibration: json_types.JsonMapping) -> np.ndarray:
  """Draws accuracy over confidence, as figure 1 of Guo et al. 2017, arXiv:1706.04599.

  Args:
    calibration: of `class_figures.calibration`.

  Returns:
    uint8 `[480, 480, 3]`.
  """
  # Not pyplot, which keeps every figure, and may look for a display.
  from matplotlib import figure  # pylint: disable=g-import-not-at-top
  from matplotlib.backends import backend_agg  # pylint: disable=g-import-not-at-top

  canvas = backend_agg.FigureCanvasAgg(figure.Figure(figsize=(4.8, 4.8), dpi=_DOTS_PER_INCH, layout='constrained'))
  axes = canvas.figure.add_subplot()
  bins = calibration['bins']
  width = 1 / len(bins)
  known = [each for each in bins if each['examples']]
  axes.bar(
    [each['up_to'] - width / 2 for each in known], [each['accuracy'] for each in known], width, edgecolor='white'
  )
  axes.plot([0, 1], [0, 1], '--', color='grey')
  axes.set(xlim=(0, 1), ylim=(0, 1), xlabel='confidence', ylabel='accuracy')
  axes.set_title(f'expected calibration error {calibration["ece"]:.3f}')
  canvas.draw()
  return np.asarray(canvas.buffer_rgba())[..., :3].copy()
