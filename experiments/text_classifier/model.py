"""The network of `text_classifier`: a decoder, and the head on top of it."""

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs


class TextClassifierModel(tf_keras.Model):
  """A decoder with logits of classes, from its output for the last token: it has seen the whole text.

  Attributes:
    decoder: an `ext.Decoder`.
    score: the head.
  """

  def __init__(self, decoder: ext.Decoder, num_classes: int):
    super().__init__(name='text_classifier')
    self.decoder = decoder
    # Softmax needs float32 under mixed precision.
    self.score = tf_keras.layers.Dense(num_classes, use_bias=False, dtype='float32', name='score')
    self.score.build((None, decoder.config.hidden_size))
    self.built = True

  def call(self, input_ids: tf.Tensor, segments: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Logits.

    Args:
      input_ids: int32 [b, t]; each row ends with the last token of its text.
      segments: int32 [b, t]: 1 for tokens of the text, 0 for padding.
      training: whether there is dropout.

    Returns:
      float32 [b, num_classes].
    """
    hidden, _ = self.decoder(input_ids, segments=segments, training=training)
    return self.score(hidden[:, -1])


def build(config: configs.TextClassifierTaskConfig) -> TextClassifierModel:
  """The model of a `TextClassifierTaskConfig`."""
  if config.model_path:
    decoder = ext.pretrained.load(config.model_path, **ext.pretrained.settings(config.model)).decoder
  else:
    decoder = ext.Decoder(config.model)
  return TextClassifierModel(decoder, len(config.class_names))
