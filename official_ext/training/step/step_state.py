"""The state that steps keep from one to the next, as variables in the checkpoint."""

import tensorflow as tf

from official_ext.training.config import trainer_parts

NUM_REMEMBERED_SKIPS = 16
NUM_REMEMBERED_LOSSES = trainer_parts.LossSpikeConfig.MAX_WINDOW


class StepState(tf.Module):
  """The updates that were skipped, and the last losses.

  Attributes:
    num_skips: int64 scalar variable, updates skipped since the start or the last rollback.
    skipped_steps: int64 variable of shape [16], the numbers (first step: 1) of the last ones, a ring.
    num_losses: int64 scalar variable, how many losses were noted.
    losses: float32 variable of shape [128], the last ones, a ring.
  """

  def __init__(self):
    super().__init__(name='step_state')
    kwargs = dict(trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    self.num_skips = tf.Variable(0, dtype=tf.int64, name='num_skips', **kwargs)
    self.skipped_steps = tf.Variable([0] * NUM_REMEMBERED_SKIPS, dtype=tf.int64, name='skipped_steps', **kwargs)
    self.num_losses = tf.Variable(0, dtype=tf.int64, name='num_losses', **kwargs)
    self.losses = tf.Variable([0.0] * NUM_REMEMBERED_LOSSES, dtype=tf.float32, name='losses', **kwargs)

  # Skipped updates.

  def record_skip(self, ok: tf.Tensor, step: tf.Tensor) -> None:
    """Counts step number `step` if it is skipped (not `ok`). Cross-replica context, or a single replica."""
    slot = tf.range(NUM_REMEMBERED_SKIPS, dtype=tf.int64) == self.num_skips % NUM_REMEMBERED_SKIPS
    self.skipped_steps.assign(tf.where(tf.logical_and(slot, tf.logical_not(ok)), step, self.skipped_steps))
    self.num_skips.assign_add(tf.where(ok, tf.constant(0, tf.int64), 1))

  def last_skips(self, number: int) -> list[int]:
    """The step numbers of the last `number` skips (16 at most), oldest first."""
    total = int(self.num_skips.numpy())
    ring = self.skipped_steps.numpy()
    number = min(number, total, NUM_REMEMBERED_SKIPS)
    return [int(ring[i % NUM_REMEMBERED_SKIPS]) for i in range(total - number, total)]

  def forget_skips(self) -> None:
    """Starts to count anew."""
    self.num_skips.assign(0)
    self.skipped_steps.assign([0] * NUM_REMEMBERED_SKIPS)

  # Losses that stand out.

  def is_spike(self, loss: tf.Tensor, factor: float, window: int) -> tf.Tensor:
    """Whether a loss is above `factor` times the median of the last `window` losses that were noted.

    It is not if fewer were noted, or if their median is not above 0.

    Args:
      loss: float32 scalar.
      factor: above 1.
      window: 1 to 128; of an even number, the median is the lower of the two in the middle.

    Returns:
      bool scalar.
    """
    last = (self.num_losses - 1 - tf.range(window, dtype=tf.int64)) % NUM_REMEMBERED_LOSSES
    median = tf.sort(tf.gather(self.losses.read_value(), last))[(window - 1) // 2]
    return (self.num_losses >= window) & (median > 0.0) & (loss > factor * median)

  def record_loss(self, loss: tf.Tensor, ok: tf.Tensor) -> None:
    """Notes the loss (float32 scalar) of a step that was not skipped (`ok`). Context as for `record_skip`."""
    slot = tf.range(NUM_REMEMBERED_LOSSES, dtype=tf.int64) == self.num_losses % NUM_REMEMBERED_LOSSES
    self.losses.assign(tf.where(tf.logical_and(slot, ok), loss, self.losses))
    self.num_losses.assign_add(tf.where(ok, tf.constant(1, tf.int64), 0))
