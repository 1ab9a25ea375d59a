"""Adapters: trained weights, frozen weights, and their formulas, packed or not, stacked or not."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import layers
from official_ext.language.modeling import lora
from official_ext.language.modeling import model_weights
from official_ext.language.modeling import quantized_linear
from official_ext.training.checkpoints import contents
from official_ext.training.model_parts import model_size
from tests import tiers

IDS = tf.constant(np.random.default_rng(0).integers(0, 61, [2, 9]), tf.int32)
NF4 = quantized_linear.QuantizationConfig(method='nf4')
INT8 = quantized_linear.QuantizationConfig(method='int8')


def _model(**changes):
  tf_keras.utils.set_random_seed(1)
  sizes = dict(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_key_value_heads=2)
  config = decoder_config.DecoderConfig(**{**sizes, 'attention_bias': True, 'initializer_range': 0.2, **changes})
  return decoder.LanguageModel(config)


def _shaken(model, size=0.1):
  """The model, with adapters that do something."""
  for number, variable in enumerate(model.trainable_variables):
    variable.assign_add(size * tf.random.stateless_normal(variable.shape, [7, number]))
  return model


def _difference(first, second):
  return float(np.max(np.abs(np.asarray(first) - np.asarray(second))))


def _loss(model, training=False):
  logits = model(IDS[:, :-1], training=training)
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(IDS[:, 1:], logits))


def _gradients(model, training=False):
  with tf.GradientTape() as tape:
    loss = _loss(model, training)
  return tape.gradient(loss, model.trainable_variables)


@pytest.mark.parametrize('quantization', [None, NF4], ids=['plain', 'nf4'])
def test_a_frozen_model_is_cast_as_well_but_for_what_is_packed(quantization):
  model, other = _model(), _model()
  lora.attach(model, lora.LoraConfig(r=2), quantization, frozen_dtype='bfloat16')
  quantized_linear.quantize(other, quantization or quantized_linear.QuantizationConfig())
  model_weights.freeze(other)
  lora.attach(other, lora.LoraConfig(r=2), quantization, frozen_dtype='bfloat16')
  dtypes = [{v.name: v.dtype.name for v in model_size.constants(m)} for m in (model, other)]
  assert dtypes[0] == dtypes[1] and 'bfloat16' in dtypes[1].values()
  assert model_weights.frozen_digest(model) == model_weights.frozen_digest(other)


def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained():
  model = _model()
  before = model(IDS)
  lora.attach(model, lora.LoraConfig(r=3))
  assert _difference(model(IDS), before) == 0
  adapters = lora.adapters(model)
  assert len(adapters) == 2 * 7
  shapes = sorted(tuple(variable.shape) for variable in model.trainable_variables)
  assert shapes == sorted(shape for a in adapters for shape in ((a.input_size, 3), (3, a.output_size)))
  assert all(np.any(a.lora_a) and not np.any(a.lora_b) for a in adapters)
  np.testing.assert_array_less(np.abs(adapters[0].lora_a), adapters[0].input_size ** -0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'quantization, scan',
  [
    pytest.param(NF4, True, id='nf4 stacked'),
    pytest.param(None, False, id='float32', marks=pytest.mark.soak),
    pytest.param(NF4, False, id='nf4', marks=pytest.mark.soak),
    pytest.param(INT8, True, id='int8 stacked', marks=pytest.mark.soak),
  ],
)
def test_gradients_are_those_of_the_merged_kernels(quantization, scan):
  """With W' = W + s A B: dA = s dW' B^T and dB = s A^T dW', and the logits are those of W'."""
  model = _model(scan_layers=scan)
  before = model(IDS)
  lora.attach(model, lora.LoraConfig(r=2, lora_alpha=3.0), quantization)
  assert quantization is None or 1e-3 < np.std(model(IDS) - before) / np.std(before) < 0.5
  _shaken(model)
  names = [variable.name for variable in model.trainable_variables]
  gradients = dict(zip(names, tf.function(_gradients, jit_compile=True)(model)))
  values = {variable.name: tf.convert_to_tensor(variable) for variable in model.trainable_variables}
  logits = model(IDS)
  lora.merge(model)
  assert _difference(model(IDS), logits) < 1e-5
  merged = {v.name.removesuffix('/kernel:0'): g for v, g in zip(model.trainable_variables, _gradients(model))}
  assert len(names) == 2 * 7 * (1 if scan else 2)
  for name in (name.removesuffix('/lora_a:0') for name in names if name.endswith('/lora_a:0')):
    a, b, of_kernel = values[f'{name}/lora_a:0'], values[f'{name}/lora_b:0'], merged[name]
    np.testing.assert_allclose(
      gradients[f'{name}/lora_a:0'], 1.5 * tf.matmul(of_kernel, b, transpose_b=True), rtol=1e-3, atol=1e-6
    )
    np.testing.assert_allclose(
      gradients[f'{name}/lora_b:0'], 1.5 * tf.matmul(a, of_kernel, transpose_a=True), rtol=1e-3, atol=1e-6
    )


def test_merge_gives_a_plain_model():
  model = _model()
  before = {variable.name: variable.shape for variable in model.variables}
  lora.attach(model, lora.LoraConfig(use_dora=True, use_rslora=True), NF4, frozen_dtype='bfloat16')
  logits = _shaken(model)(IDS)
  lora.merge(model)
  assert {variable.name: variable.shape for variable in model.variables} == before
  assert len(model.trainable_variables) == len(before)
  assert {variable.dtype for variable in model.variables} == {tf.float32}
  assert _difference(model(IDS), logits) < 1e-5
  assert not lora.adapters(model)


@tiers.parametrize('remat', ['block', 'attention', 'mlp', 'scan'], fast=2)
def test_dropout_is_the_same_when_it_is_computed_once_more(remat):
  """Gradients agree with those of layers that keep everything, from the same seed."""
  found = {}
  for name in ('none', remat):
    model = _model(scan_layers=name == 'scan', remat='none' if name == 'scan' else name)
    lora.attach(model, lora.LoraConfig(r=2, lora_dropout=0.5, target_modules=('q_proj', 'up_proj')))
    for variable in model.trainable_variables:
      variable.assign(tf.broadcast_to(tf.random.stateless_normal(variable.shape[-2:], [3, 4]), variable.shape))
    for part in model_weights.layer_parts(model):  # The same frozen weights whether they are stacked or not.
      for variable in part.own_weights().values():
        if not isinstance(part, lora.LoraLinear):
          rank = variable.shape.rank - bool(part.num_rows)
          value = tf.random.stateless_normal(variable.shape[-rank:], [5, 6]) * 0.3
          variable.assign(tf.broadcast_to(value, variable.shape))
    tf.random.set_seed(11)
    gradients = _gradients(model, training=True)
    by_name = {}
    for variable, gradient in zip(model.trainable_variables, gradients):
      rows = gradient if name == 'scan' else [gradient]
      for row, value in enumerate(rows):
        by_name[variable.name.replace('/blocks/', f'/blocks/{row}/') if name == 'scan' else variable.name] = value
    found[name] = by_name
    tf.random.set_seed(11)
    assert abs(_loss(model, training=True) - _loss(model)) > 1e-4
  assert sorted(found['none']) == sorted(found[remat])
  for name, value in found['none'].items():
    np.testing.assert_allclose(found[remat][name], value, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_checkpoints_hold_adapters_alone_and_know_their_base(tmp_path):
  model = _model()
  lora.attach(model, lora.LoraConfig(), NF4)
  logits = _shaken(model)(IDS)
  checkpoint = tf.train.Checkpoint(model=model)
  prefix = checkpoint.write(str(tmp_path / 'ckpt'))
  held = {name: variable.shape.num_elements() for name, variable in contents.variables(checkpoint).items()}
  trained = sum(variable.shape.num_elements() for variable in model.trainable_variables)
  assert sum(held.values()) == trained + 1, sorted(held)

  again = _model()
  lora.attach(again, lora.LoraConfig(), NF4)
  root = tf.train.Checkpoint(model=again)
  contents.Contents(prefix).match(root).check(prefix)
  assert _difference(again(IDS), logits) > 1e-3
  root.read(prefix).assert_consumed()
  assert _difference(again(IDS), logits) == 0

  for other in (_model(initializer_range=0.21), _model()):
    lora.attach(other, lora.LoraConfig(), NF4 if other.config.initializer_range == 0.21 else None)
    with pytest.raises(errors.UserError, match=r'is not in it \(it has model/frozen_weights_sha256_\w{12}'):
      contents.Contents(prefix).match(tf.train.Checkpoint(model=other)).check(prefix)


def test_nf4_takes_less_than_a_third_of_float32():
  model = _model(vocab_size=512, hidden_size=256, intermediate_size=688, num_hidden_layers=4)
  whole = sum(variable.shape.num_elements() for variable in model.variables)
  optimizer = tf_keras.optimizers.SGD()
  size = model_size.of(model, optimizer)
  assert (size.parameters, size.weight_bytes, size.gradient_bytes) == (whole, 4 * whole, 4 * whole)
  lora.attach(model, lora.LoraConfig(r=8), NF4, frozen_dtype='bfloat16')
  held = sum(variable.shape.num_elements() * variable.dtype.size for variable in model.variables)
  adapters = sum(variable.shape.num_elements() for variable in model.trainable_variables)
  assert 3 * held < 4 * whole
  size = model_size.of(model, optimizer)
  assert (size.parameters, size.trained_parameters) == (whole + adapters, adapters)
  assert (size.weight_bytes, size.gradient_bytes) == (held, 4 * adapters)
  mebibytes = 4 * (whole + adapters) / 2**20
  assert f'weights {held / 2**20:.3g} MiB ({mebibytes:.3g} MiB in float32), gradients ' in size.describe()


@pytest.mark.parametrize(
  'pattern, number',
  [
    ('q_proj', 2),
    ('self_attn.o_proj', 2),
    ('lm_head', 1),
    (r'decoder\.blocks\.1\..*_proj', 7),
    (r'model\.layers\.0\.mlp\.(up|down)_proj', 2),
    ('all-linear', 14),
  ],
)
def test_patterns_choose_layers(pattern, number):
  model = _model()
  lora.attach(model, lora.LoraConfig(target_modules=(pattern,)))
  assert len(lora.adapters(model)) == number


@pytest.mark.parametrize(
  'pattern, message',
  [
    ('q_projj', "'q_projj' matches no linear layer; there are .*; did you mean q_proj?"),
    ('embed_tokens', "'embed_tokens' matches no linear layer"),
    ('(', "'\\(' is not a regular expression"),
    ('layers.0.self_attn.q_proj', "'layers.0.self_attn.q_proj' matches some layers of .*scan_layers=False"),
  ],
)
def test_patterns_that_choose_nothing_are_refused(pattern, message):
  model = _model(scan_layers=True)
  with pytest.raises(errors.UserError, match=f'target_modules: {message}'):
    lora.attach(model, lora.LoraConfig(target_modules=('k_proj', pattern)))
  assert not lora.adapters(model) and len(model.trainable_variables) == len(model.variables)


def test_a_second_adapter_is_refused():
  model = _model()
  lora.attach(model, lora.LoraConfig())
  with pytest.raises(errors.UserError, match='the model has adapters already'):
    lora.attach(model, lora.LoraConfig())


def test_rslora_and_alpha_scale():
  config = lora.LoraConfig(r=4, lora_alpha=8.0)
  for use_rslora, expected in ((False, 2.0), (True, 4.0)):
    model = _model()
    lora.attach(model, dataclasses.replace(config, use_rslora=use_rslora))
    assert lora.adapters(model)[0].scaling == expected


@pytest.mark.parametrize('quantization', [None, INT8], ids=['plain', 'int8'])
def test_adapters_of_a_model_in_bfloat16_are_merged(quantization):
  config = _model().config
  model = decoder.LanguageModel(config, dtype='bfloat16')
  lora.attach(model, lora.LoraConfig(r=2, use_dora=True), quantization)
  for number, variable in enumerate(model.trainable_variables):
    shaken = 0.1 * tf.random.stateless_normal(variable.shape, [7, number])
    variable.assign_add(tf.cast(shaken, variable.dtype))
  before = model(IDS)
  lora.merge(model)
  assert {variable.dtype for variable in model.variables} == {tf.bfloat16}
  scale = float(tf.math.reduce_std(before))
  assert 0 < _difference(model(IDS), before) < 0.2 * scale  # Three digits at each of some ten roundings.


def test_switched_off_adapters_leave_the_base_and_those_of_others_on():
  model, other = _model(), _model()
  before = model(IDS)
  for each in (model, other):
    lora.attach(each, lora.LoraConfig(r=2, use_dora=True))
    _shaken(each)
  changed, of_other = model(IDS), other(IDS)
  with lora.switched_off(model):
    assert _difference(model(IDS), before) == 0
    assert _difference(other(IDS), of_other) == 0
    traced = tf.function(lambda ids: model(ids)).get_concrete_function(IDS)
  assert _difference(changed, before) > 0.1
  assert _difference(model(IDS), changed) == 0
  assert _difference(traced(IDS), before) < 1e-5


@pytest.mark.parametrize('tied', [False, True])
def test_a_head_that_is_cast_in_parts_is_the_whole(monkeypatch, tied):
  """Logits and gradients of a frozen head in bfloat16, of 61 columns, 4 at once: those of its values in float32."""
  model = _shaken(_model(tie_word_embeddings=tied))
  lora.attach(model, lora.LoraConfig(r=2), frozen_dtype='bfloat16')
  monkeypatch.setattr(layers, '_CAST_AT_ONCE', 4 * model.config.hidden_size)
  head = model.decoder.embed_tokens.embeddings if tied else model.lm_head.kernel
  assert head.dtype == tf.bfloat16
  x = tf.random.stateless_normal([2, 5, model.config.hidden_size], [1, 2])
  weight = tf.random.stateless_normal([2, 5, 61], [3, 4])

  def of(scores):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = scores(x)
    return y, tape.gradient(y, x, output_gradients=weight)

  expected = of(lambda x: layers.product(x, tf.cast(head, tf.float32), transpose_b=tied))
  for run in (of, tf.function(of, jit_compile=True)):
    for value, other in zip(run(model.logits), expected):
      np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-5)


def test_one_row_that_is_not_finite_spoils_no_other():
  """A value ordered after an input depends on one of its elements, but does not use it."""
  model = _model()
  lora.attach(model, lora.LoraConfig(r=2), NF4, frozen_dtype='bfloat16')
  layer = model.decoder.blocks[0].mlp.up_proj
  x = tf.random.stateless_normal([3, model.config.hidden_size], [1, 2])
  spoiled = tf.concat([[[np.nan] * x.shape[1]], x[1:]], axis=0)
  for call in (layer, tf.function(layer.call, jit_compile=True)):
    np.testing.assert_array_equal(call(spoiled)[1:], call(x)[1:])
    assert np.isnan(call(spoiled)[0]).all()
