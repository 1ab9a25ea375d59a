"""The means that a training loop logs, over the updates that were made."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_ext.training.step import gradient_tap
from official_ext.training.step import step_parts


class StepMeans:
  """Means over the steps of a training loop. Made and read in the cross-replica context, updated in replica context.

  All but the training loss, which is Model Garden's, are in one variable: a step adds to it once.
  """

  def __init__(self, parts: step_parts.StepParts, log_names: Sequence[str]):
    """Makes the variables.

    Args:
      parts: the step's.
      log_names: the names of the task's logs.
    """
    self._optimizer = parts.optimizer
    self._train_loss = parts.train_loss
    self._names = [*log_names, *gradient_tap.logs_of(parts.optimizer), 'grad_norm']
    sums = lambda name, count: tf.Variable(
      tf.zeros([2, count]),
      name=name,
      trainable=False,
      synchronization=tf.VariableSynchronization.ON_READ,
      aggregation=tf.VariableAggregation.SUM,
    )
    with parts.strategy.scope():  # Sums of values times their weights, and of the weights.
      self._sums = sums('log_sums', len(self._names))
      self._skipped_loss = sums('skipped_loss_sums', 1)

  def update(self, loss: tf.Tensor, logs: Mapping[str, tf.Tensor], norm: tf.Tensor | None = None) -> None:
    """Counts a step that was made, with what the optimizer logs about its update.

    Args:
      loss: of the step, a float32 scalar.
      logs: the scalars that it logs.
      norm: of the gradient, a float32 scalar, which counts if it is finite, as do the optimizer's logs: an overflow
        that loss scaling handles makes no update. None if the task owns its updates.
    """
    self._train_loss.total.assign_add(loss)
    self._train_loss.count.assign_add(1.0)
    finite = tf.constant(True) if norm is None else tf.math.is_finite(norm)
    made = tf.cast(finite, tf.float32)
    zero = tf.constant(0.0)
    counted = {
      **{name: (value, 1.0) for name, value in logs.items()},
      **{name: (value, made) for name, value in gradient_tap.logs_of(self._optimizer).items()},
      'grad_norm': (zero, zero) if norm is None else (tf.where(finite, norm, 0.0), made),
    }
    values, weights = zip(*(counted[name] for name in self._names))
    weights = tf.stack(weights)
    self._sums.assign_add(tf.stack([tf.stack(values) * weights, weights]))

  def note_skipped_loss(self, loss: tf.Tensor, ok: tf.Tensor) -> None:
    """Counts the loss of a step if it is skipped (not `ok`)."""
    self._skipped_loss.assign_add(tf.where(ok, 0.0, tf.stack([[loss], [1.0]])))

  @property
  def variables(self) -> list[tf.Variable]:
    """The variables that are written by a step that is not skipped."""
    return [*self._train_loss.variables, self._sums]

  def skipped_loss(self) -> Any:
    """The mean loss of the loop, if all its steps were skipped, or None. Call it before the loss is reset."""
    total, count = self._skipped_loss.numpy()[:, 0]
    return total / count if count and not self._train_loss.count.numpy() else None

  def take_logs(self) -> dict[str, Any]:
    """Returns and forgets the means of the loop, without the training loss."""
    totals, counts = self._sums.numpy()
    for variable in (self._sums, self._skipped_loss):
      variable.assign(tf.zeros_like(variable))
    return {name: total / count for name, total, count in zip(self._names, totals, counts) if count}
