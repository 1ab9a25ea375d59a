"""The signature of a fine-tuned model takes the data's names, and computes the model's function."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.language.fine_tuning import saved_folders
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import lora

CONFIG = decoder_config.DecoderConfig(
  vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
)
IDS = tf.constant(np.random.default_rng(0).integers(0, 31, (2, 7)), tf.int32)
SEGMENTS = tf.constant([[1, 1, 1, 2, 2, 2, 0], [1] * 7])


@pytest.mark.slow
def test_logits_are_those_of_packed_texts_of_any_length():
  model = decoder.LanguageModel(CONFIG)
  lora.attach(model, lora.LoraConfig(r=2))
  serve = saved_folders.signature_of(model)
  for length in (7, 3):
    ids, segments = IDS[:, :length], SEGMENTS[:, :length]
    found = serve(input_ids=ids, segment_ids=segments)
    np.testing.assert_allclose(found['logits'], model(ids, segments=segments), atol=1e-6)
  assert np.abs(serve(input_ids=IDS, segment_ids=tf.ones_like(IDS))['logits'] - model(IDS, segments=SEGMENTS)).max() > 0


def test_scores_are_those_of_texts():
  model = decoder.SequenceClassifier(CONFIG, 3)
  segments = tf.cast(SEGMENTS > 0, tf.int32)
  found = saved_folders.signature_of(model)(input_ids=IDS, segment_ids=segments)
  np.testing.assert_allclose(found['logits'], model(IDS, segments=segments), atol=1e-6)


class _Shifted(decoder.Block):
  def call(self, x, context):
    return super().call(x + context.extras['shift'], context)


class _Other(decoder.LanguageModel):
  pass


def test_models_of_custom_classes_have_none():
  for model in (decoder.LanguageModel(CONFIG, block_class=_Shifted), _Other(CONFIG)):
    assert saved_folders.signature_of(model) is None
