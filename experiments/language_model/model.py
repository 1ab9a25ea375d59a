"""The network of `language_model`: a decoder, and the head on top of it."""

import tf_keras

import official_ext as ext


def build(config: ext.DecoderConfig) -> tf_keras.Model:
  """A model from tokens, int32 [b, t], to logits of the next ones, float32 [b, t, vocab_size]."""
  return ext.LanguageModel(config)
