"""What is better of a metric: more or less."""

import re

# Words in the names of metrics.
_BETTER = {
  'min': {'loss', 'error', 'err', 'mae', 'mse', 'rmse', 'nll', 'perplexity', 'wer', 'cer'},
  'max': {'acc', 'accuracy', 'top', 'auc', 'f', 'precision', 'recall', 'iou', 'ap', 'map', 'bleu', 'rouge', 'score'},
}


def mode_of(metric: str, mode: str = 'auto') -> str:
  """What is better of a metric: 'max' or 'min'; 'auto' goes by the words in its name.

  Raises:
    ValueError: `mode` is none of them, or the name does not tell.
  """
  if mode != 'auto':
    if mode not in ('max', 'min'):
      raise ValueError(f"expected 'auto', 'max' or 'min', got {mode!r}")
    return mode
  words = set(re.split('[^a-z]+', metric.lower()))
  found = {better for better, known in _BETTER.items() if words & known}
  if len(found) != 1:
    raise ValueError(f'the name {metric} does not tell what is better; set it to max or min')
  return found.pop()
