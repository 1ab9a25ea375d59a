"""The task `preference`: pairs of answers, and the losses of DPO and ORPO."""

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs


@ext.register_task(configs.PreferenceTaskConfig)
class PreferenceTask(ext.FineTuningTask):
  """A language model learns to prefer one answer over another."""

  @property
  def needs_reference(self) -> bool:
    """DPO compares the model with its initial weights."""
    return bool(self.config.losses.dpo.weight)

  def built_in_records(self, split: str) -> ext.TextRecords:
    """Docstrings, each with that of another function as the rejected answer."""
    return ext.python_docstrings.preference_records(split)

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """How often the chosen answer has the greater reward."""
    return [tf_keras.metrics.Mean('accuracy')]

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """The losses of pairs, and TRL's measures of them.

    The reward of an answer is its gain on the reference, times DPO's beta; under ORPO, which has none, the
    mean log-probability of its tokens, times ORPO's beta: see base class.
    """
    losses = self.config.losses
    rows = {name: _both(inputs, name) for name in ('input_ids', 'labels', 'segment_ids', 'position_ids')}
    labels = rows['labels'][:, 1:]
    if losses.dpo.weight:  # First: a model's own losses are those of its last call.
      reference = self.reference(model)
      reference_sums = tf.reduce_sum(ext.losses.log_probs(_logits(reference, rows, False), labels), axis=1)
    logits = _logits(model, rows, training)
    log_probs = ext.losses.log_probs(logits, labels)
    sums = tf.reduce_sum(log_probs, axis=1)
    counts = tf.reduce_sum(tf.cast(labels != ext.losses.IGNORED_LABEL, tf.float32), axis=1)
    means = sums / tf.maximum(counts, 1)
    of_losses = self._label_inputs(rows, logits)
    of_losses['orpo'] = dict(zip(('policy_chosen', 'policy_rejected'), tf.split(means, 2)))
    rewards = losses.orpo.beta * means
    if losses.dpo.weight:
      rewards = losses.dpo.beta * (sums - tf.stop_gradient(reference_sums))
      names = ('policy_chosen', 'policy_rejected', 'reference_chosen', 'reference_rejected')
      of_losses['dpo'] = dict(zip(names, (*tf.split(sums, 2), *tf.split(reference_sums, 2))))
    loss, logs = ext.weighted_losses.total(losses, of_losses)
    chosen, rejected = tf.split(rewards, 2)
    return loss, {
      **{f'{name}_loss': value for name, value in logs.items()},
      'accuracy': (tf.cast(chosen > rejected, tf.float32),),
      'rewards/chosen': tf.reduce_mean(chosen),
      'rewards/rejected': tf.reduce_mean(rejected),
      'rewards/margins': tf.reduce_mean(chosen - rejected),
      'logps/chosen': tf.reduce_mean(tf.split(sums, 2)[0]),
      'logps/rejected': tf.reduce_mean(tf.split(sums, 2)[1]),
    }

  def _label_inputs(self, rows, logits):
    """The input of `label` and `z_loss`: the chosen answers."""
    rows = {name: tf.split(values, 2)[0] for name, values in rows.items()}
    labels = rows['labels'][:, 1:]
    if self.config.label_on_prompt:
      # The first token of a text has nothing before it, and is at another column only if the row is padded in front.
      is_text = (rows['segment_ids'][:, 1:] > 0) & (rows['segment_ids'][:, :-1] > 0)
      labels = tf.where(is_text, rows['input_ids'][:, 1:], ext.losses.IGNORED_LABEL)
    logits = tf.split(logits, 2)[0]
    mask = tf.cast(labels != ext.losses.IGNORED_LABEL, tf.float32)
    return {'label': {'logits': logits, 'labels': labels}, 'z_loss': {'logits': logits, 'mask': mask}}


def _both(inputs, name):
  """A feature of the chosen answers, and below it that of the rejected: [2b, t]."""
  return tf.concat([inputs[f'chosen_{name}'], inputs[f'rejected_{name}']], axis=0)


def _logits(model, rows, training):
  """Of the next tokens: float32 [2b, t - 1, vocab_size]."""
  ids, segments, positions = rows['input_ids'], rows['segment_ids'], rows['position_ids']
  return model(ids, positions=positions, segments=segments, training=training)[:, :-1]
