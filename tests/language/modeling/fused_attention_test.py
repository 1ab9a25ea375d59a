"""Fused attention: its call in XLA's program, its limits, and, on a GPU, its results."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import official_ext as ext
from official_ext.base import errors
from official_ext.language.modeling import attention
from official_ext.training.devices import device_types
from official_ext.training.step import step_random

BATCH, HEADS, GROUPS, LENGTH, SIZE = 2, 6, 3, 32, 16
GPUS = tf.config.list_physical_devices('GPU')
needs_gpu = pytest.mark.skipif(not GPUS, reason='there is no GPU')


def tensors(dtype=tf.bfloat16):
  draw = lambda seed, heads: tf.cast(tf.random.stateless_normal([BATCH, heads, LENGTH, SIZE], [0, seed]), dtype)
  return draw(0, HEADS) * SIZE**-0.5, draw(1, GROUPS), draw(2, GROUPS), draw(3, HEADS)


def masks():
  seen = np.tril(np.ones([LENGTH, LENGTH], bool))
  documents = np.arange(LENGTH) // 12
  return {
    'causal': None,
    'documents': np.broadcast_to(seen & (documents[:, None] == documents), [BATCH, 1, LENGTH, LENGTH]),
    'window': (seen & ~np.tril(seen, -8))[None, None],
  }


def gradients(function):
  """A program of (queries, keys, values, dy): the result and the gradients of the first three."""

  @tf.function(jit_compile=True)
  def run(queries, keys, values, dy):
    with tf.GradientTape() as tape:
      tape.watch([queries, keys, values])
      y = function(queries, keys, values)
    return [y, *tape.gradient(y, [queries, keys, values], output_gradients=tf.cast(dy, y.dtype))]

  return run


def calls(mask):
  """The custom calls of forward and backward: [(target, shapes of operands, shapes of results, settings)]."""
  unchecked = attention._fused  # On a machine without a GPU, too.
  if mask is not None:
    unchecked = lambda *args: attention._fused(*args, tf.cast(mask, tf.bfloat16))
  text = gradients(unchecked).experimental_get_compiler_ir(*tensors())(stage='hlo')
  found = []
  for line in text.splitlines():
    call = re.search(r'= \((.*?)\) custom-call\((.*?)\), custom_call_target="(.*?)"', line)
    if call:
      shapes = [re.findall(r'(\w+\[[\d,]*\])', part) for part in call.groups()[:2]]
      settings = json.loads(re.search(r'backend_config=(\{.*\})', line)[1])['cudnn_fmha_backend_config']
      found.append((call[3], shapes[1], shapes[0], settings))
  return found


@pytest.mark.parametrize('kind', ['causal', 'documents'])
def test_the_program_has_two_calls_of_cudnn_that_get_all_that_they_need(kind):
  mask = masks()[kind]
  forward, backward = calls(mask)
  name = 'fmhaSoftmax' if mask is None else 'fmhaScaleBiasSoftmax'
  assert [forward[0], backward[0]] == [f'__cudnn${name}', f'__cudnn${name}Backward']
  queries, keys = f'bf16[{BATCH},{HEADS},{LENGTH},{SIZE}]', f'bf16[{BATCH},{GROUPS},{LENGTH},{SIZE}]'
  bias = [] if mask is None else [f'bf16[{BATCH},1,{LENGTH},{LENGTH}]']
  statistics = f'f32[{BATCH},{HEADS},{LENGTH}]'
  assert forward[1:3] == ([queries, keys, keys, *bias], [queries, statistics, 'u8[0]'])
  assert backward[1:3] == (
    [queries, keys, keys, statistics, queries, *bias, queries],
    [queries, keys, keys, 'u8[0]'],
  )
  for _, _, _, settings in (forward, backward):
    assert settings['mask_type'] == ('CAUSAL' if mask is None else 'NO_MASK')
    assert settings['intermediate_tensor_shape']['dimensions'] == [str(n) for n in (BATCH, HEADS, LENGTH, LENGTH)]
    assert (settings['fmha_scale'], settings['dropout_rate']) == (1.0, 0.0)


def model(**options):
  config = ext.DecoderConfig(
    vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, **options
  )
  return ext.LanguageModel(config)


IDS = tf.constant([[1, 2, 3, 4], [5, 6, 7, 8]])


@pytest.mark.skipif(bool(GPUS), reason='there is a GPU')
def test_a_step_without_a_gpu_refuses_it_in_one_line_and_other_calls_are_eager():
  fused, eager = model(attn_implementation='cudnn', num_key_value_heads=2), model(num_key_value_heads=2)
  eager(IDS)
  fused(IDS)
  fused.set_weights(eager.get_weights())
  np.testing.assert_array_equal(fused(IDS), eager(IDS))
  with step_random.step_key(step_random.StepKey(seed=0, step=tf.constant(0, tf.int64), replica=0, num_replicas=1)):
    with pytest.raises(errors.UserError, match='attn_implementation: cudnn needs an NVIDIA GPU.*; or set eager'):
      fused(IDS)


@pytest.mark.skipif(bool(GPUS), reason='there is a GPU')
def test_auto_is_eager_without_a_gpu_and_cudnn_where_it_can(monkeypatch):
  """The compiled programs with a GPU's plan are those of tests/benchmarks/gpu."""
  assert model(num_key_value_heads=2).config.attn_implementation == 'auto'
  key = step_random.StepKey(seed=0, step=tf.constant(0, tf.int64), replica=0, num_replicas=1)
  chosen, eager = model(num_key_value_heads=2), model(attn_implementation='eager', num_key_value_heads=2)
  chosen(IDS), eager(IDS)
  chosen.set_weights(eager.get_weights())
  with step_random.step_key(key):
    np.testing.assert_array_equal(chosen(IDS), eager(IDS))

  reports, fused = [], []
  monkeypatch.setattr(device_types, 'device_type', lambda strategy: 'GPU')
  monkeypatch.setattr(device_types, 'gpu_capability', lambda: (9, 0))
  monkeypatch.setattr(attention, '_report_choice', reports.append)
  monkeypatch.setattr(attention, 'fused_attend', lambda queries, *rest: fused.append(queries.dtype) or queries)
  with step_random.step_key(key):
    chosen(IDS)  # In float32.
    model(attention_dropout=0.5, num_key_value_heads=2)(IDS)
    assert not fused and 'needs bfloat16 or float16' in reports[0] and 'attention_dropout' in reports[1]
    tf_keras.mixed_precision.set_global_policy('mixed_bfloat16')
    try:
      model(num_key_value_heads=2)(IDS)
      model(attn_implementation='eager', num_key_value_heads=2)(IDS)
    finally:
      tf_keras.mixed_precision.set_global_policy('float32')
  assert fused == [tf.bfloat16] and reports[2:] == ['']


@pytest.mark.parametrize('field', ['attn_logit_softcapping', 'attention_dropout'])
def test_what_it_lacks_is_refused_with_the_configuration(field):
  with pytest.raises(errors.UserError, match=f'^attn_implementation: cudnn has neither .*{field}.*eager'):
    model(attn_implementation='cudnn', num_key_value_heads=2, **{field: 0.5})


@needs_gpu
@pytest.mark.parametrize('kind', ['causal', 'documents', 'window'])
@pytest.mark.parametrize(('dtype', 'tolerance'), [(tf.bfloat16, 6e-3), (tf.float16, 1e-3)], ids=['bfloat16', 'float16'])
def test_on_a_gpu_results_and_gradients_are_those_of_float32_within_the_rounding(kind, dtype, tolerance):
  mask = masks()[kind]
  queries, keys, values, dy = tensors(dtype)
  seen = np.tril(np.ones([LENGTH, LENGTH], bool))[None, None] if mask is None else mask

  def reference(queries, keys, values):
    keys, values = (tf.repeat(each, HEADS // GROUPS, axis=1) for each in (keys, values))
    scores = tf.where(seen, tf.matmul(queries, keys, transpose_b=True), -1e30)
    return tf.matmul(tf.nn.softmax(scores), values)

  found = gradients(lambda *args: attention.fused_attend(*args, mask))(queries, keys, values, dy)
  wanted = gradients(reference)(*(tf.cast(each, tf.float32) for each in (queries, keys, values, dy)))
  for one, other in zip(found, wanted):
    assert tf.norm(tf.cast(one, tf.float32) - other) <= tolerance * tf.norm(other)
