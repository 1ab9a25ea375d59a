"""Rotations that depend on a text's length: its logits and tokens are those of the text alone, computed at once."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import generation
from official_ext.language.modeling import packed_documents
from official_ext.language.modeling import position_encodings

ROPES = {
  'dynamic': dict(rope_type='dynamic', factor=2.0),
  'longrope': dict(
    rope_type='longrope',
    factor=4.0,
    original_max_position_embeddings=16,
    short_factor=(1.0, 1.1),
    long_factor=(20.0, 40.0),
  ),
}
IDS = np.random.default_rng(0).integers(1, 31, (1, 40)).astype(np.int32)


def made(kind, **fields):
  tf_keras.utils.set_random_seed(1)
  config = decoder_config.DecoderConfig(
    vocab_size=31,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16,
    initializer_range=0.6,
    rope_parameters=position_encodings.RopeParameters(**ROPES[kind]),
    **fields,
  )
  return decoder.LanguageModel(config)


@pytest.mark.parametrize('kind', ROPES)
def test_a_text_has_its_logits_beside_longer_ones(kind):
  model = made(kind)
  short, long = IDS[:, :8], IDS[:, 8:]
  alone = model(short)
  assert np.abs(alone - model(IDS)[:, :8]).max() > 1e-2  # The length matters.
  padded = np.pad(short, [[0, 0], [0, 24]])
  segments = np.array([[1] * 32, [1] * 8 + [0] * 24], np.int32)
  np.testing.assert_allclose(model(np.concatenate([long, padded]), segments=segments)[1:, :8], alone, atol=1e-5)
  packed = model(IDS, segments=np.array([[1] * 8 + [2] * 32], np.int32))
  np.testing.assert_allclose(packed[:, :8], alone, atol=1e-5)
  np.testing.assert_allclose(packed[:, 8:], model(long), atol=1e-5)


def test_the_length_of_each_document():
  segments = tf.constant([[0, 0, 1, 1, 1, 2, 3, 3], [1, 1, 1, 1, 1, 2, 0, 0]])
  found = packed_documents.lengths(packed_documents.positions(segments))
  assert found.numpy().tolist() == [[1, 1, 3, 3, 3, 1, 2, 2], [5, 5, 5, 5, 5, 1, 1, 1]]
  assert packed_documents.lengths(tf.constant([[6], [0]])).numpy().tolist() == [[7], [1]]


@pytest.mark.parametrize('by_block, fields', [(True, {}), (False, {'scan_layers': True})])
def test_tokens_beyond_the_original_length_are_those_without_a_cache(by_block, fields):
  model = made('longrope', **fields)
  prompts = [IDS[0, :length].tolist() for length in (6, 12, 16, 17)]
  config = generation.GenerationConfig(max_new_tokens=8, temperature=0.0)
  found = generation.Generator(model, config, by_block)(prompts)
  for prompt, continuation in zip(prompts, found):
    ids = list(prompt)
    for _ in range(8):
      ids.append(int(np.argmax(model(tf.constant([ids]))[0, -1])))
    assert continuation.tokens == ids[len(prompt) :]
