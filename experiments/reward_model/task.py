"""The task `reward_model`: pairs of answers, a score for each, and the loss of Bradley and Terry."""

from collections.abc import Callable, Mapping

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs


@ext.register_task(configs.RewardModelTaskConfig)
class RewardModelTask(ext.FineTuningTask):
  """A decoder with one score for a text: higher for the answer that was chosen."""

  def build_model(self) -> tf_keras.Model:
    """A `SequenceClassifier` with one score."""
    return self.build_classifier(num_labels=1)

  @property
  def learns_tokens(self) -> bool:
    """False: a score is of a whole text."""
    return False

  def built_in_records(self, split: str) -> ext.TextRecords:
    """Docstrings, each with another function's as the rejected answer."""
    return ext.python_docstrings.preference_records(split)

  def result_writers(self, model: tf_keras.Model) -> Mapping[str, Callable[[str], None]]:
    """The whole model, adapters merged: transformers loads it as a model for sequence classification."""
    return self.classifier_writers(model)

  def load_result(self, name: str, folder: str) -> tf_keras.Model:
    """See base class."""
    return ext.pretrained.load_classifier(folder, num_labels=1)

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """How often the chosen answer has the higher score."""
    return [tf_keras.metrics.Mean('accuracy')]

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """The mean over pairs of -log sigmoid(score of the chosen - score of the rejected): see base class.

    Ouyang et al. 2022, https://arxiv.org/abs/2203.02155, equation 1.
    """
    ids, segments, positions = (_both(inputs, name) for name in ('input_ids', 'segment_ids', 'position_ids'))
    scores = model(ids, positions=positions, segments=segments, training=training)[:, 0]
    chosen, rejected = tf.split(scores, 2)
    loss = -tf.reduce_mean(tf.math.log_sigmoid(chosen - rejected))
    if self.config.center_rewards_coefficient:
      loss += self.config.center_rewards_coefficient * tf.reduce_mean(tf.square(chosen + rejected))
    pairs = tf.concat(tf.split(segments, 2), axis=1)
    return loss, {
      **(ext.token_metrics.counts(pairs) if training else {}),
      'accuracy': (tf.cast(chosen > rejected, tf.float32),),
      'rewards/chosen': tf.reduce_mean(chosen),
      'rewards/rejected': tf.reduce_mean(rejected),
      'rewards/margins': tf.reduce_mean(chosen - rejected),
    }


def _both(inputs, name):
  """A feature of the chosen answers, and below it of the rejected: [2b, t]."""
  return tf.concat([inputs[f'chosen_{name}'], inputs[f'rejected_{name}']], axis=0)
