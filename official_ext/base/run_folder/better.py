"""Whether a higher or a lower value of a metric is better."""

import re

# Words in the names of metrics.
_BETTER = {
  'min': {'loss', 'error', 'err', 'mae', 'mse', 'rmse', 'nll', 'perplexity', 'wer', 'cer'},
  'max': {'acc', 'accuracy', 'top', 'auc', 'f', 'precision', 'recall', 'iou', 'ap', 'map', 'bleu', 'rouge', 'score'},
}


def mode_of(metric: str, mode: str = 'auto') -> str:
  """Whether a higher ('max') or a lower ('min') value is better; 'auto' goes by the words in the metric's name.

  Raises:
    ValueError: `mode` is invalid, or the name does not imply it.
  """
  if mode != 'auto':
    if mode not in ('max', 'min'):
      raise ValueError(f"expected 'auto', 'max' or 'min', got {mode!r}")
    return mode
  words = set(re.split('[^a-z]+', metric.lower()))
  found = {better for better, known in _BETTER.items() if words & known}
  if len(found) != 1:
    raise ValueError(f'the name {metric} does not imply whether higher or lower is better; set it to max or min')
  return found.pop()


def implies_max(metric: str) -> bool:
  """Whether the name of a metric implies that a higher value is better."""
  try:
    return mode_of(metric) == 'max'
  except ValueError:
    return False
