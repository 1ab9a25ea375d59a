"""Statistics that each replica gathers separately, such as those of batch normalisation."""

from collections.abc import Callable

import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals


class ReplicaStatistics:
  """The variables of a model whose values differ between replicas."""

  def __init__(self, model: tf_keras.Model):
    """Takes a model, whose variables may be made later."""
    self._model = model
    self._agree_fn: Callable[[], None] | None = None

  def agree(self) -> None:
    """Gives every replica the mean of all replicas' values.

    A checkpoint holds only that mean, and a run that resumes from it must have the same values as the uninterrupted
    one.
    """
    statistics = [v for v in self._model.variables if isinstance(v, tf_internals.SyncOnReadVariable)]
    if not statistics:
      return
    if self._agree_fn is None:

      def agree():
        for variable in statistics:
          variable.assign(variable.read_value())

      self._agree_fn = tf.function(agree, autograph=False)
    self._agree_fn()
