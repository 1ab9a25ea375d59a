"""Metrics of a classifier by name: see classification.py, which is imported when one of its functions is first used.

Example:

  >>> names = ('accuracy', 'f1')
  >>> labels, logits = tf.constant([0, 1, 1]), tf.constant([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
  >>> updates = ext.metrics.updates(names, labels, logits)  # In `forward`.
  >>> for metric in ext.metrics.build(names, num_classes=2):  # In `build_metrics`.
  ...   _ = metric.update_state(*updates[metric.name])
  ...   print(metric.name, round(float(metric.result()), 3))
  accuracy 0.667
  f1 0.667
"""

import importlib

_FUNCTIONS = ('build', 'updates')


def __getattr__(name: str) -> object:
  if name not in _FUNCTIONS:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.classification'), name)


def __dir__() -> list[str]:
  return [*globals(), *_FUNCTIONS]
