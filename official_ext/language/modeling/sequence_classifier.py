"""A decoder with a head of scores for each text: a classifier, or with one score a reward model."""

from collections.abc import Callable, Mapping
import functools
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.language.modeling import decoder as decoder_lib
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import layers


class SequenceClassifier(tf_keras.Model):
  """Scores of texts, from the hidden state of each one's last token: transformers' `...ForSequenceClassification`.

  Attributes:
    config: the decoder's structure.
    num_labels: how many scores a text gets.
    decoder: all but the head.
    score: the head, a `layers.Linear` without a bias.
    origin: the other files that `pretrained.load_classifier` found; None for a new model.
  """

  def __init__(
    self,
    config: decoder_config.DecoderConfig,
    num_labels: int,
    block_class: type[decoder_lib.Block] = decoder_lib.Block,
    initializer: Callable[[], tf_keras.initializers.Initializer] | None = None,
    dtype: tf.DType | str | None = None,
    name: str = 'sequence_classifier',
    decoder: decoder_lib.Decoder | None = None,
  ):
    """Makes all weights; the arguments are those of `Decoder`. The head always starts with normal numbers.

    Args:
      config: the decoder's structure.
      num_labels: how many scores a text gets.
      block_class: of the blocks.
      initializer: see `Decoder`.
      dtype: see `Decoder`.
      name: of the model.
      decoder: an existing one, of this `config`; None makes it.

    Raises:
      errors.UserError: for a configuration that cannot be built.
    """
    super().__init__(name=name, dtype=dtype, autocast=False)
    self.config = config
    self.num_labels = num_labels
    self.origin: Any = None
    self.decoder = decoder or decoder_lib.Decoder(config, block_class, initializer, dtype=self._dtype_policy)
    normal = functools.partial(tf_keras.initializers.RandomNormal, stddev=config.initializer_range)
    self.score = layers.Linear(config.hidden_size, num_labels, False, normal(), dtype=self._dtype_policy, name='score')
    self.built = True

  def call(
    self,
    input_ids: tf.Tensor,
    positions: tf.Tensor | None = None,
    segments: tf.Tensor | None = None,
    extras: Mapping[str, tf.Tensor] | None = None,
    training: bool = False,
  ) -> tf.Tensor:
    """Scores, float32 [b, num_labels]; the arguments are those of `Decoder.call`, and each row holds one text.

    `segments` are above 0 for a text's tokens and 0 for padding, on either side; None if there is no padding.
    """
    hidden, _ = self.decoder(input_ids, positions=positions, segments=segments, extras=extras, training=training)
    if segments is None:
      last = hidden[:, -1]
    else:
      columns = tf.range(tf.shape(segments)[1])
      last = tf.gather(hidden, tf.reduce_max(tf.where(segments > 0, columns, 0), axis=1), batch_dims=1)
    return tf.cast(self.score(last), tf.float32)


def of_language_model(model: decoder_lib.LanguageModel, num_labels: int) -> SequenceClassifier:
  """A classifier over the decoder of a language model: that itself, not a copy. Its head is new."""
  found = SequenceClassifier(model.config, num_labels, dtype=model._dtype_policy, decoder=model.decoder)
  found.origin = model.origin
  return found
