"""The means that a training loop logs, over the updates that were made."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.training.step import gradient_tap
from official_ext.training.step import step_parts


class StepMeans:
  """Means over the steps of a training loop. Made and read in the cross-replica context, updated in replica context."""

  def __init__(self, parts: step_parts.StepParts, log_names: Sequence[str]):
    """Makes the metrics.

    Args:
      parts: the step's.
      log_names: the names of the task's logs.
    """
    self._optimizer = parts.optimizer
    self._train_loss = parts.train_loss
    with parts.strategy.scope():
      self._grad_norm = tf_keras.metrics.Mean('grad_norm', dtype=tf.float32)
      self._skipped_loss = tf_keras.metrics.Mean('skipped_loss', dtype=tf.float32)
      names = [*log_names, *gradient_tap.logs_of(parts.optimizer)]
      self._logs = {name: tf_keras.metrics.Mean(name, dtype=tf.float32) for name in names}

  def update(self, loss: tf.Tensor, logs: Mapping[str, tf.Tensor]) -> None:
    """Counts a step that was made: its loss, a float32 scalar, and the scalars that it logs."""
    self._train_loss.update_state(loss)
    for name, value in logs.items():
      self._logs[name].update_state(value)

  def update_norm(self, norm: tf.Tensor) -> tf.Tensor:
    """Counts the norm of a gradient, if it is finite: an overflow that loss scaling handles has none.

    Returns:
      The weight with which it was counted: 1 or 0.
    """
    finite = tf.math.is_finite(norm)
    weight = tf.cast(finite, tf.float32)
    self._grad_norm.update_state(tf.where(finite, norm, 0.0), sample_weight=weight)
    return weight

  def update_optimizer(self, weight: tf.Tensor) -> None:
    """Accumulates the optimizer's logs about its update."""
    for name, value in gradient_tap.logs_of(self._optimizer).items():
      self._logs[name].update_state(value, sample_weight=weight)

  def note_skipped_loss(self, loss: tf.Tensor, ok: tf.Tensor) -> None:
    """Counts the loss of a step that was skipped (not `ok`)."""
    self._skipped_loss.update_state(tf.where(ok, 0.0, loss), sample_weight=1.0 - tf.cast(ok, tf.float32))

  @property
  def variables(self) -> list[tf.Variable]:
    """The variables that are written by a step that is not skipped."""
    means = [self._train_loss, self._grad_norm, *self._logs.values()]
    return [variable for mean in means for variable in mean.variables]

  def skipped_loss(self) -> Any:
    """The mean loss of the loop, if all its steps were skipped, or None. Call it before the loss is reset."""
    if not self._train_loss.count.numpy() and self._skipped_loss.count.numpy():
      return self._skipped_loss.result()
    return None

  def take_logs(self) -> dict[str, tf.Tensor]:
    """Returns and forgets the means of the loop, without the training loss."""
    logs = {}
    for mean in [*self._logs.values(), self._grad_norm]:
      if mean.count.numpy():
        logs[mean.name] = mean.result()
      mean.reset_states()
    self._skipped_loss.reset_states()
    return logs
