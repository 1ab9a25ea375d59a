"""Metrics of next tokens: accuracy, cross-entropy and perplexity, and the numbers of tokens for the speed.

    def build_metrics(self, training=True):
      return token_metrics.build()

    def forward(self, inputs, model, training):
      ...
      return loss, {**token_metrics.updates(logits, labels), **token_metrics.counts(inputs['segment_ids'], labels)}

Each learned token counts once, whatever its batch: the metrics are means over the tokens of a loop or an evaluation.

Example:

  >>> logits, labels = tf.zeros([1, 3, 10]), tf.constant([[0, 4, -100]])  # -100: does not count.
  >>> updates = ext.token_metrics.updates(logits, labels)
  >>> for metric in ext.token_metrics.build():
  ...   _ = metric.update_state(*updates[metric.name])
  ...   print(metric.name, round(float(metric.result()), 3))
  mean_token_accuracy 0.5
  token_loss 2.303
  perplexity 10.0
"""

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

from official_ext.base.run_folder import run_files
from official_ext.language.modeling import losses


class Perplexity(tf_keras.metrics.Mean):
  """The exponential of the mean cross-entropy, in nats, of the tokens: see base class."""

  def result(self) -> tf.Tensor:
    """A float32 scalar."""
    return tf.exp(super().result())


def build() -> list[tf_keras.metrics.Metric]:
  """The metrics that `updates` updates.

  `mean_token_accuracy` is the share of tokens with the largest logit, under TRL's name; `token_loss` the mean
  cross-entropy in nats; `perplexity` its exponential.
  """
  means = [tf_keras.metrics.Mean(name) for name in ('mean_token_accuracy', 'token_loss')]
  return [*means, Perplexity('perplexity')]


def updates(
  logits: tf.Tensor, labels: tf.Tensor, log_probs: tf.Tensor | None = None
) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
  """The values and weights of tokens for the metrics of `build`.

  Args:
    logits: float32 [b, t, vocab_size], at t for the label at t.
    labels: int32 [b, t], `losses.IGNORED_LABEL` on tokens that do not count.
    log_probs: float32 [b, t], `losses.log_probs(logits, labels)` if the caller has it.
  """
  is_learned = tf.cast(tf.not_equal(labels, losses.IGNORED_LABEL), tf.float32)
  is_right = tf.cast(tf.equal(tf.argmax(logits, -1, labels.dtype), labels), tf.float32)
  nats = -(losses.log_probs(logits, labels) if log_probs is None else log_probs)
  return {
    'mean_token_accuracy': (is_right, is_learned),
    'token_loss': (nats, is_learned),
    'perplexity': (nats, is_learned),
  }


def counts(segments: tf.Tensor, labels: tf.Tensor | None = None) -> Mapping[str, tf.Tensor]:
  """The tokens of an example, for the logs of a training step: the loop reports them a second.

  Args:
    segments: int32 [b, t], 0 for padding.
    labels: int32 [b, t], `losses.IGNORED_LABEL` on tokens that no loss is on; None: no token is learned by itself.

  Returns:
    Means over the examples: `tokens_per_example`, and with labels `learned_tokens_per_example`.
  """
  mean = lambda is_counted: tf.reduce_mean(tf.reduce_sum(tf.cast(is_counted, tf.float32), axis=1))
  found = {run_files.TOKENS: mean(segments > 0)}
  if labels is not None:
    found[run_files.LEARNED_TOKENS] = mean(tf.not_equal(labels, losses.IGNORED_LABEL))
  return found
