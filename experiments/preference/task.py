"""The task `preference`: pairs of answers, or single answers with labels, and the losses of preferences by name."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs
from . import unpaired

_WITH_REFERENCE = ('dpo', 'ipo', 'kto')
_OF_MEANS = ('ipo', 'simpo', 'orpo')  # Of the tokens of an answer; the other losses take sums.


@ext.register_task(configs.PreferenceTaskConfig)
class PreferenceTask(ext.FineTuningTask):
  """A language model learns to prefer one answer over another."""

  @property
  def needs_reference(self) -> bool:
    """DPO, IPO and KTO compare the model with its initial weights; SimPO, CPO and ORPO do not."""
    return bool(set(_WITH_REFERENCE) & set(ext.weighted_losses.selected(self.config.weighted_losses)))

  @property
  def mixes_examples(self) -> bool:
    """KTO estimates a divergence by the answers of the batch to the prompts of others: see base class."""
    return self.config.is_unpaired

  def built_in_records(self, split: str) -> ext.TextRecords:
    """Docstrings, each with another function's as the rejected answer."""
    return ext.python_docstrings.preference_records(split)

  def source(self, params: ext.TextDataConfig) -> Any:
    """Pairs; for KTO, each answer by itself, with a label: see base class."""
    return super().source(params.replace(example_format='unpaired') if self.config.is_unpaired else params)

  def build_inputs(
    self, params: ext.TextDataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches of the rows of `source`; for KTO, of at least two answers for each replica: see base class."""
    num_replicas = 1 if input_context is None else input_context.num_replicas_in_sync
    if self.config.is_unpaired and params.is_training and params.global_batch_size < 2 * num_replicas:
      raise ext.UserError(
        f'task.train_data.global_batch_size: {params.global_batch_size} answers for {num_replicas} devices; kto '
        f'compares each prompt with the answer to another one: set at least {2 * num_replicas}'
      )
    return super().build_inputs(params, input_context)

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """The accuracy; for KTO, the rewards of desirable and of undesirable answers; the metrics of the tokens of answers.

    `accuracy` is the share of pairs whose chosen answer has the greater reward. For KTO it is the share of answers
    whose reward is on the right side of the divergence: above it if they are desirable.
    """
    names = ['accuracy', *(('rewards/chosen', 'rewards/rejected') if self.config.is_unpaired else ())]
    return [*map(tf_keras.metrics.Mean, names), *ext.token_metrics.build()]

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """The losses, and TRL's measures of them: see base class.

    The reward of an answer is its gain on the reference, times the loss's beta; under SimPO, CPO and ORPO, which have
    none, the log-probability of its tokens, times the loss's beta. It is a sum over tokens, or for IPO, SimPO and ORPO
    a mean.
    """
    if self.config.is_unpaired:
      return self._of_answers(inputs, model, training)
    return self._of_pairs(inputs, model, training)

  def _of_pairs(self, inputs, model, training):
    losses = self.config.weighted_losses
    rows = {name: _both(inputs, name) for name in _FEATURES}
    labels = rows['labels'][:, 1:]
    reference = None
    if self.needs_reference:  # First: a model's own losses are its last call's.
      reference = tf.stop_gradient(_sums(self.reference(model), rows))
    logits = _logits(model, rows, training)
    log_probs = ext.losses.log_probs(logits, labels)
    sums = tf.reduce_sum(log_probs, axis=1)
    of_losses = self._label_inputs({name: _chosen(values) for name, values in rows.items()}, _chosen(logits))
    counts = tf.maximum(tf.reduce_sum(tf.cast(labels != ext.losses.IGNORED_LABEL, tf.float32), axis=1), 1)
    rewards = losses.orpo.beta * sums / counts
    for name in ('orpo', 'cpo', 'simpo', 'ipo', 'dpo'):  # The last one that is used has the rewards.
      part, divisor = getattr(losses, name), counts if name in _OF_MEANS else 1.0
      gains = sums / divisor
      of_losses[name] = _pair('policy', gains)
      if name in _WITH_REFERENCE:
        if reference is None:
          continue
        of_losses[name] |= _pair('reference', reference / divisor)
        gains -= reference / divisor
      if part.weight:
        rewards = part.beta * gains
    loss, logs = ext.weighted_losses.total(losses, of_losses)
    chosen, rejected = tf.split(rewards, 2)
    pairs = (tf.concat(tf.split(each, 2), axis=1) for each in (rows['segment_ids'], labels))
    return loss, {
      **ext.token_metrics.updates(*map(_chosen, (logits, labels, log_probs))),
      **(ext.token_metrics.counts(*pairs) if training else {}),
      **{f'{name}_loss': value for name, value in logs.items()},
      'accuracy': (tf.cast(chosen > rejected, tf.float32),),
      'rewards/chosen': tf.reduce_mean(chosen),
      'rewards/rejected': tf.reduce_mean(rejected),
      'rewards/margins': tf.reduce_mean(chosen - rejected),
      'logps/chosen': tf.reduce_mean(tf.split(sums, 2)[0]),
      'logps/rejected': tf.reduce_mean(tf.split(sums, 2)[1]),
    }

  def _of_answers(self, inputs, model, training):
    """KTO's: the divergence is estimated by the answers of the batch to the prompts of others, without a gradient."""
    losses = self.config.weighted_losses
    rows = {name: inputs[name] for name in _FEATURES}
    others = unpaired.mismatched(rows)
    reference = self.reference(model)
    kl = ext.losses.kto_kl(_sums(model, others), _sums(reference, others))
    reference_sums = tf.stop_gradient(_sums(reference, rows))
    logits = _logits(model, rows, training)  # Last: a model's own losses are its last call's.
    is_desirable = inputs['is_desirable'] > 0
    labels = rows['labels'][:, 1:]
    log_probs = ext.losses.log_probs(logits, labels)
    sums = tf.reduce_sum(log_probs, axis=1)
    desirable = tf.where(is_desirable[:, tf.newaxis], rows['labels'], ext.losses.IGNORED_LABEL)
    of_losses = self._label_inputs({**rows, 'labels': desirable}, logits)
    of_losses['kto'] = {'policy': sums, 'reference': reference_sums, 'kl': kl, 'is_desirable': is_desirable}
    loss, logs = ext.weighted_losses.total(losses, of_losses)
    gains = tf.stop_gradient(sums - reference_sums)
    is_right = tf.where(is_desirable, gains > kl, gains < kl)
    weights = {'chosen': tf.cast(is_desirable, tf.float32), 'rejected': tf.cast(~is_desirable, tf.float32)}
    return loss, {
      **ext.token_metrics.updates(logits, desirable[:, 1:]),
      **(ext.token_metrics.counts(rows['segment_ids'], labels) if training else {}),
      **{f'{name}_loss': value for name, value in logs.items()},
      'accuracy': (tf.cast(is_right, tf.float32),),
      **{f'rewards/{name}': (losses.kto.beta * gains, of_kind) for name, of_kind in weights.items()},
      'kl': kl,
    }

  def _label_inputs(self, rows, logits):
    """The inputs of `label` and `z_loss`: answers to learn, with the logits of the next tokens."""
    labels = rows['labels'][:, 1:]
    if self.config.label_on_prompt:
      # The first token of a text has nothing before it, and is at another column only if the row is padded in front.
      is_text = (rows['segment_ids'][:, 1:] > 0) & (rows['segment_ids'][:, :-1] > 0)
      labels = tf.where(is_text, rows['input_ids'][:, 1:], ext.losses.IGNORED_LABEL)
    mask = tf.cast(labels != ext.losses.IGNORED_LABEL, tf.float32)
    return {'label': {'logits': logits, 'labels': labels}, 'z_loss': {'logits': logits, 'mask': mask}}


_FEATURES = ('input_ids', 'labels', 'segment_ids', 'position_ids')


def _both(inputs, name):
  """A feature of the chosen answers, and below it of the rejected: [2b, t]."""
  return tf.concat([inputs[f'chosen_{name}'], inputs[f'rejected_{name}']], axis=0)


def _chosen(values):
  """The first half, which belongs to the chosen answers."""
  return tf.split(values, 2)[0]


def _pair(kind, values):
  """Arguments of a loss: of the chosen answers and of the rejected."""
  return dict(zip((f'{kind}_chosen', f'{kind}_rejected'), tf.split(values, 2)))


def _sums(model, rows):
  """The sums of the log-probabilities of the tokens of answers, without dropout: float32 [b]."""
  return tf.reduce_sum(ext.losses.log_probs(_logits(model, rows, False), rows['labels'][:, 1:]), axis=1)


def _logits(model, rows, training):
  """Of the next tokens: float32 [b, t - 1, vocab_size]."""
  ids, segments, positions = rows['input_ids'], rows['segment_ids'], rows['position_ids']
  return model(ids, positions=positions, segments=segments, training=training)[:, :-1]
