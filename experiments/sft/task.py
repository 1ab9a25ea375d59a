"""The task `sft`: the loss on the tokens of the answers."""

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs


@ext.register_task(configs.SftTaskConfig)
class SftTask(ext.FineTuningTask):
  """Cross-entropy with the answers, rows of several examples that do not see each other.

  The loss of a batch is the mean over its learned tokens. Over the batches of an update and of an evaluation, it is
  averaged as `SftTaskConfig.token_average` says.
  """

  def build_model(self) -> tf_keras.Model:
    """A language model, with noise on its embeddings in training if `neftune_noise_alpha` is set: see base class."""
    model = super().build_model()
    model.decoder.neftune_noise_alpha = self.config.neftune_noise_alpha or 0.0
    return model

  def micro_batch_weight(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor | None:
    """The number of learned tokens, unless `token_average` is micro_batch."""
    if self.config.token_average == 'micro_batch':
      return None
    is_learned = tf.not_equal(inputs['labels'][:, 1:], ext.losses.IGNORED_LABEL)
    return tf.reduce_sum(tf.cast(is_learned, tf.float32))

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """The accuracy, the mean cross-entropy and the perplexity of the learned tokens."""
    return ext.token_metrics.build()

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """See base class."""
    logits = model(
      inputs['input_ids'], positions=inputs['position_ids'], segments=inputs['segment_ids'], training=training
    )
    logits, labels = logits[:, :-1], inputs['labels'][:, 1:]  # Logits at t are for the token at t + 1.
    mask = tf.not_equal(labels, ext.losses.IGNORED_LABEL)
    loss, logs = ext.weighted_losses.total(
      self.config.losses, {'label': {'logits': logits, 'labels': labels}, 'z_loss': {'logits': logits, 'mask': mask}}
    )
    counts = ext.token_metrics.counts(inputs['segment_ids'], labels) if training else {}
    return loss, {**logs, **ext.token_metrics.updates(logits, labels), **counts}
