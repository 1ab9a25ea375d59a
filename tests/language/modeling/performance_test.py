"""The time saved by the cache of generation, and by stacked layers in compilation."""

import time

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import generation


def _model(**fields):
  tf_keras.utils.set_random_seed(1)
  return decoder.LanguageModel(decoder_config.DecoderConfig(num_attention_heads=4, num_key_value_heads=4, **fields))


def _worked(function):
  """Seconds that the processor works on a call: other work on the machine counts little."""
  start = time.process_time()
  function()
  return time.process_time() - start


@pytest.mark.soak
def test_the_cache_makes_256_tokens_five_times_cheaper():
  """Without it, each token costs a pass over all columns: 32 such passes are measured, and count eight times."""
  model = _model(vocab_size=512, hidden_size=128, intermediate_size=352, num_hidden_layers=4)
  config = generation.GenerationConfig(max_new_tokens=256, temperature=0.0)
  generate = generation.Generator(model, config)
  step = tf.function(lambda ids: tf.argmax(model(ids)[:, -1], axis=-1), jit_compile=True, autograph=False)
  ids = tf.constant(np.random.default_rng(0).integers(0, 512, [1, 257]), tf.int32)
  step(ids)
  assert len(generate([[5]], seed=0)[0].tokens) == 256
  ratios = []
  for _ in range(3):
    without = 8 * _worked(lambda: [step(ids).numpy() for _ in range(32)])
    ratios.append(without / _worked(lambda: generate([[5]], seed=0)))
  print('without the cache / with it:', ratios)
  assert np.median(ratios) >= 5, ratios


@pytest.mark.soak
def test_the_compile_time_of_stacked_layers_does_not_grow_with_the_depth():
  seconds: dict[int, list[float]] = {12: [], 24: []}
  for depth in (12, 24, 12, 24):
    fields = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=depth)
    model = _model(scan_layers=True, **fields)

    def loss_and_gradients(ids, model=model):
      with tf.GradientTape() as tape:
        logits = model(ids[:, :-1], training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(ids[:, 1:], logits))
      return tape.gradient(loss, model.trainable_variables)

    compiled = tf.function(loss_and_gradients, jit_compile=True, autograph=False)
    ids = tf.constant(np.random.default_rng(0).integers(0, 64, [2, 17]), tf.int32)
    seconds[depth].append(_worked(lambda compiled=compiled, ids=ids: compiled(ids)))
  print('trace and compile, seconds of work:', seconds)
  assert min(seconds[24]) <= 1.3 * min(seconds[12]), seconds
