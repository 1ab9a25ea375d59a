"""The task `sft`: the loss on the tokens of the answers."""

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs


@ext.register_task(configs.SftTaskConfig)
class SftTask(ext.FineTuningTask):
  """Cross-entropy with the answers, rows of several examples that do not see each other.

  The loss is the mean over the tokens of a batch; that of an update is the mean of its micro-batches' losses, and
  `validation_loss` that of its batches'. `token_loss` counts every token the same.
  """

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """The fraction of the learned tokens that have the largest logit; their mean cross-entropy, in nats."""
    return [tf_keras.metrics.Mean('token_accuracy'), tf_keras.metrics.Mean('token_loss')]

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """See base class."""
    logits = model(
      inputs['input_ids'], positions=inputs['position_ids'], segments=inputs['segment_ids'], training=training
    )
    logits, labels = logits[:, :-1], inputs['labels'][:, 1:]  # Those at t are for the token at t + 1.
    mask = tf.not_equal(labels, ext.losses.IGNORED_LABEL)
    loss, logs = ext.weighted_losses.total(
      self.config.losses, {'label': {'logits': logits, 'labels': labels}, 'z_loss': {'logits': logits, 'mask': mask}}
    )
    is_right = tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), labels), tf.float32)
    is_learned = tf.cast(mask, tf.float32)
    nats = -ext.losses.log_probs(logits, labels)
    return loss, {**logs, 'token_accuracy': (is_right, is_learned), 'token_loss': (nats, is_learned)}
