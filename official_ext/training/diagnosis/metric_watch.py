"""Watches metrics for updates."""

from collections.abc import Iterator, Sequence
import contextlib
import functools

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import protocols
from official_ext.training.devices import failures
from official_ext.training.diagnosis import findings
from official_ext.training.step import method_patch


class Metrics:
  """Metrics that count their updates.

  Attributes:
    all: the metrics that the task has built.
    float_labels: floats that a metric got instead of class numbers.
  """

  def __init__(self, metrics: Sequence[tf_keras.metrics.Metric] | None):
    self.all = list(metrics or ())
    self.float_labels: object = None
    self._updates = {id(metric): 0 for metric in self.all}
    self._before = {id(metric): _values(metric) for metric in self.all}

  @contextlib.contextmanager
  def watching(self) -> Iterator[None]:
    """A context that counts updates, and looks at their labels."""
    with contextlib.ExitStack() as stack:
      for metric in self.all:
        if hasattr(metric, 'update_state'):
          counting = functools.partial(self._counting, metric)
          stack.enter_context(method_patch.MethodPatch(metric, 'update_state', counting))
      yield

  def _counting(self, metric, update_state):

    def counting(*args, **kwargs):
      self._updates[id(metric)] += 1
      labels: tf.Tensor = args[0] if args else kwargs.get('y_true')
      if type(metric).__name__.startswith('Sparse') and tf.is_tensor(labels) and labels.dtype.is_floating:
        self.float_labels = labels
      return update_state(*args, **kwargs)

    return counting

  def unused(self, task: protocols.Task, step: str, logs: object) -> list[findings.Finding]:
    """The metrics that neither the step nor the task's aggregation of `logs` has updated."""
    unused = [metric for metric in self.all if not self._updates[id(metric)] and self._is_as_before(metric)]
    if unused and logs and getattr(task, 'aggregate_logs', None) is not None:
      with contextlib.suppress(Exception):  # It may need the logs of a whole evaluation.
        task.reduce_aggregated_logs(task.aggregate_logs(None, logs), global_step=0)
      unused = [metric for metric in unused if self._is_as_before(metric)]
    return [
      findings.Finding(
        'error',
        failures.of_function(task.build_metrics),
        f'{step} never updates the metric {metric.name}',
        f'let forward log {metric.name!r}: (labels, predictions), or call its update_state',
      )
      for metric in unused
    ]

  def _is_as_before(self, metric) -> bool:
    before = self._before[id(metric)]
    return (
      bool(hasattr(metric, 'variables'))
      and len(before) == len(metric.variables)
      and all(np.array_equal(old, new, equal_nan=True) for old, new in zip(before, _values(metric)))
    )


def _values(metric: object) -> list[np.ndarray]:
  return [variable.numpy() for variable in getattr(metric, 'variables', ())]
