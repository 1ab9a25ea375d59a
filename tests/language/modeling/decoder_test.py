"""The decoder by itself: packing, recomputation for the gradient, dropout, valid structures."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.language.modeling import attention
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import layers
from official_ext.language.modeling import model_weights
from official_ext.language.modeling import packed_documents
from official_ext.language.modeling import position_encodings
from official_ext.language.modeling import pretrained
from official_ext.training.config import checks
from official_ext.training.model_parts import clusters
from official_ext.training.step import step_random
from tests import tiers

CONFIG = decoder_config.DecoderConfig(
  vocab_size=31,
  hidden_size=16,
  intermediate_size=24,
  num_hidden_layers=3,
  num_attention_heads=4,
  num_key_value_heads=2,
  layer_types=('sliding_attention', 'full_attention', 'sliding_attention'),
  sliding_window=4,
  qk_norm=True,
  post_norms=True,
  attention_bias=True,
  initializer_range=0.3,
)
IDS = tf.constant(np.random.default_rng(0).integers(0, 31, (2, 12)), tf.int32)
DROPOUT = dict(attention_dropout=0.2, residual_dropout=0.3, embedding_dropout=0.1)


def made(cls=decoder.LanguageModel, **fields):
  """A model with the weights of CONFIG's, stacked or not."""
  tf_keras.utils.set_random_seed(1)
  weights = {path: slot.numpy() for path, slot in model_weights.find_slots(decoder.LanguageModel(CONFIG)).items()}
  model = decoder.LanguageModel(CONFIG.replace(**fields))
  for path, slot in model_weights.find_slots(model).items():
    if path in weights:
      slot.assign(weights[path])
  return model


def gradients(model, ids=IDS, jit_compile=False, seed=None, extras=None):
  """(loss, path of a weight -> its gradient), with the dropout of a seed."""
  model.decoder._seed = lambda: None if seed is None else tf.constant([seed, 5], tf.int64)

  def run(ids):
    with tf.GradientTape() as tape:
      logits = model(ids, training=True, extras=extras)
      loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits))
    return loss, tape.gradient(loss, model.trainable_variables)

  loss, found = tf.function(run, jit_compile=jit_compile, autograph=False)(ids)
  of_variable = {id(variable): gradient for variable, gradient in zip(model.trainable_variables, found)}
  by_path = {}
  for path, slot in model_weights.find_slots(model).items():
    gradient = tf.convert_to_tensor(of_variable[id(slot.variable)])
    by_path[path] = (gradient if slot.row is None else gradient[slot.row]).numpy()
  return float(loss), by_path


@pytest.fixture(scope='module')
def kept():
  """A function: whether XLA compiles -> loss and gradients of the decoder that keeps everything."""
  return functools.cache(lambda jit_compile: gradients(made(**DROPOUT), jit_compile=jit_compile, seed=3))


@pytest.mark.slow
@tiers.parametrize(
  'fields, jit_compile',
  [
    pytest.param(dict(remat='block'), True, id='block-xla'),
    pytest.param(dict(scan_layers=True), True, id='scan-xla'),
    pytest.param(dict(remat='mlp'), False, id='mlp-graph', marks=pytest.mark.soak),
    pytest.param(dict(remat='block'), False, id='block-graph', marks=pytest.mark.soak),
    pytest.param(dict(remat='attention'), False, id='attention-graph', marks=pytest.mark.soak),
    pytest.param(dict(remat='attention'), True, id='attention-xla', marks=pytest.mark.soak),
    pytest.param(dict(remat='mlp'), True, id='mlp-xla', marks=pytest.mark.soak),
    pytest.param(dict(scan_layers=True), False, id='scan-graph', marks=pytest.mark.soak),
  ],
  fast=1,
)
def test_what_is_computed_once_more_has_the_gradients_of_what_is_kept(fields, jit_compile, kept):
  """With dropout: a mask that is drawn anew would be another function."""
  expected_loss, expected = kept(jit_compile)
  loss, found = gradients(made(**fields, **DROPOUT), jit_compile=jit_compile, seed=3)
  assert loss == pytest.approx(expected_loss, rel=1e-6)
  _check_gradients(found, expected)


def _check_gradients(found, expected):
  assert set(found) == set(expected) and len(found) > 40
  for path, gradient in expected.items():
    largest = np.max(np.abs(gradient))
    assert largest > 0, path
    # A small element is a sum of large terms, as many as tokens: each rounds by 6e-8 of its size.
    atol = max(2e-7, 2e-6 * largest)
    np.testing.assert_allclose(found[path], gradient, rtol=2e-4, atol=atol, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize('remat', ['none', 'attention'])
def test_a_loop_that_keeps_activations_has_the_gradients_of_separate_layers(remat, kept):
  """As in a step that XLA compiles between products."""
  expected_loss, expected = kept(False)
  with clusters.compiled():
    loss, found = gradients(made(scan_layers=True, remat=remat, **DROPOUT), seed=3)
  assert loss == pytest.approx(expected_loss, rel=1e-6)
  _check_gradients(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize('block_type', ['parallel', 'parallel_norms'])
def test_blocks_in_parallel_have_the_same_gradients_however_they_run(block_type):
  fields = dict(block_type=block_type, residual_multiplier=0.7, rope_interleaved=True, **DROPOUT)
  expected_loss, expected = gradients(made(**fields), jit_compile=True, seed=3)
  for options in (dict(remat='block'), dict(remat='attention'), dict(remat='mlp'), dict(scan_layers=True)):
    loss, found = gradients(made(**fields, **options), jit_compile=True, seed=3)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert set(found) == set(expected)
    for path, gradient in expected.items():
      assert np.max(np.abs(gradient)) > 0, path
      np.testing.assert_allclose(found[path], gradient, rtol=2e-4, atol=2e-7, err_msg=path)


@pytest.mark.slow
def test_another_seed_is_another_function(kept):
  assert gradients(made(**DROPOUT), seed=4)[0] != pytest.approx(kept(False)[0], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields',
  [
    pytest.param(dict(remat='block'), id='block'),
    pytest.param(dict(scan_layers=True), id='scan', marks=pytest.mark.soak),
  ],
)
def test_frozen_layers_get_no_gradients_and_the_others_the_same(fields):
  model = made(**fields)
  whole = gradients(model)[1]
  for block in model.decoder.blocks:
    block.mlp.up_proj.trainable = False
  with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(IDS, model(IDS)))
  slots = model_weights.find_slots(model)
  found = tape.gradient(loss, {path: slot.variable for path, slot in slots.items()})
  assert [path for path, gradient in found.items() if gradient is None] == [path for path in slots if 'up_proj' in path]
  for path, gradient in found.items():
    if gradient is not None:
      gradient = tf.convert_to_tensor(gradient)
      gradient = gradient if slots[path].row is None else gradient[slots[path].row]
      np.testing.assert_allclose(gradient, whole[path], rtol=2e-4, atol=2e-7, err_msg=path)


class Shifted(decoder.Block):
  """Adds the preprocessed input of every layer."""

  def call(self, x, context):
    return super().call(x + context.extras['shift'], context)


@tiers.parametrize('fields', [{}, dict(remat='block'), dict(scan_layers=True)], ids=['none', 'block', 'scan'], fast=2)
def test_extra_tensors_reach_every_layer_and_have_gradients(fields):
  tf_keras.utils.set_random_seed(1)
  reference = decoder.LanguageModel(CONFIG, block_class=Shifted)
  model = decoder.LanguageModel(CONFIG.replace(**fields), block_class=Shifted)
  for path, slot in model_weights.find_slots(reference).items():
    model_weights.find_slots(model)[path].assign(slot.numpy())
  shift = tf.constant(np.random.default_rng(1).normal(size=(2, 12, 16)), tf.float32)

  def slope(model):
    with tf.GradientTape() as tape:
      tape.watch(shift)
      loss = tf.reduce_sum(model(IDS, extras={'shift': shift}) ** 2)
    return loss, tape.gradient(loss, shift)

  (loss, gradient), (expected_loss, expected) = slope(model), slope(reference)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
  np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)
  step = 1e-2 * expected / tf.norm(expected)  # And it is the slope of the function.
  with_step = tf.reduce_sum(model(IDS, extras={'shift': shift + step}) ** 2)
  without = tf.reduce_sum(model(IDS, extras={'shift': shift - step}) ** 2)
  np.testing.assert_allclose((with_step - without) / 2, 1e-2 * tf.norm(expected), rtol=2e-2)


@tiers.parametrize(
  'fields',
  [
    {},
    dict(scan_layers=True),
    dict(position_embedding_type='learned'),
    dict(position_embedding_type='alibi'),
    dict(position_embedding_type='alibi', scan_layers=True),
  ],
  fast=1,
)
def test_packed_documents_are_those_alone_whatever_lies_beside_them(fields):
  model = made(**fields)
  rng = np.random.default_rng(2)
  documents = [rng.integers(0, 31, length).tolist() for length in (7, 3, 5, 11, 1)]
  ids, segments = packed_documents.pack(documents, 12)
  assert len(ids) == 3 and sum(value > 0 for row in segments for value in row) == 27
  logits = model(tf.constant(ids), segments=tf.constant(segments)).numpy()
  found = 0
  for row, numbers in zip(range(3), np.asarray(segments)):
    for number in set(numbers) - {0}:
      places = np.flatnonzero(numbers == number)
      document = np.asarray(ids)[row, places].tolist()
      assert document in documents
      found += 1
      np.testing.assert_allclose(logits[row, places], model(tf.constant([document]))[0], atol=1e-5)
  assert found == 5


def test_padding_on_the_left_changes_nothing():
  model = made()
  padded = tf.concat([tf.zeros([2, 4], tf.int32), IDS], axis=1)
  segments = tf.concat([tf.zeros([2, 4], tf.int32), tf.ones_like(IDS)], axis=1)
  np.testing.assert_allclose(model(padded, segments=segments)[:, 4:], model(IDS), atol=1e-5)


def test_positions_count_in_each_document():
  segments = tf.constant([[0, 0, 1, 1, 1, 2, 2, 0], [3, 3, 7, 7, 7, 7, 0, 0]])
  expected = [[0, 0, 0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 3, 0, 0]]
  np.testing.assert_array_equal(packed_documents.positions(segments), expected)


@pytest.mark.parametrize('length', [1, 8, 37])
def test_positions_are_counted_whatever_is_known_of_the_shape(length):
  rng = np.random.default_rng(3)
  segments = np.repeat(rng.integers(0, 4, [3, length]), rng.integers(1, 5, length), axis=1)[:, :length].astype(np.int32)
  expected = np.zeros_like(segments)
  for row, column in np.argwhere(segments > 0):
    if column and segments[row, column - 1] == segments[row, column]:
      expected[row, column] = expected[row, column - 1] + 1
  unknown = tf.function(packed_documents.positions, input_signature=[tf.TensorSpec([None, None], tf.int32)])
  np.testing.assert_array_equal(packed_documents.positions(tf.constant(segments)), expected)
  np.testing.assert_array_equal(unknown(segments), expected)
  np.testing.assert_array_equal(tf.function(packed_documents.positions, jit_compile=True)(segments), expected)


def test_a_token_sees_its_own_document_within_the_window():
  segments = tf.constant([[1, 1, 1, 2, 2, 0]])
  expected = [
    [1, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0],
    [0, 1, 1, 0, 0, 0],
    [0, 0, 0, 1, 0, 0],
    [0, 0, 0, 1, 1, 0],
    [0, 0, 0, 0, 0, 0],
  ]
  np.testing.assert_array_equal(packed_documents.mask(6, 6, 0, segments, 2)[0, 0], np.array(expected, bool))


def test_documents_that_do_not_fit_are_not_cut():
  with pytest.raises(ValueError, match='A document of 3 tokens does not fit into rows of 2'):
    packed_documents.pack([[1, 2, 3]], 2)


def test_dropout_is_for_training_and_its_rate_is_right():
  model = made(**DROPOUT)
  np.testing.assert_array_equal(model(IDS), made()(IDS))
  assert np.max(np.abs(model(IDS, training=True) - model(IDS))) > 0.01
  y = layers.dropout(tf.ones([400, 400]), 0.3, tf.constant([1, 2], tf.int64), 0).numpy()
  assert sorted(set(y.ravel().tolist())) == pytest.approx([0.0, 1 / 0.7])
  assert abs(np.mean(y == 0) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / y.size)


def test_half_precision_computes_and_keeps_weights_in_the_types_of_the_policy():
  for policy, kept in (('mixed_bfloat16', tf.float32), ('bfloat16', tf.bfloat16)):
    model = decoder.LanguageModel(CONFIG, dtype=policy)
    assert {variable.dtype for variable in model.variables} == {kept}
    assert model.decoder(IDS)[0].dtype == tf.bfloat16
    assert model(IDS).dtype == tf.float32


def test_names_of_variables_contain_their_place():
  names = [variable.name for variable in made().variables]
  assert len(set(names)) == len(names)
  assert 'decoder/blocks/2/self_attn/q_proj/kernel:0' in names and 'lm_head/kernel:0' in names
  stacked = {variable.name: variable.shape for variable in made(scan_layers=True).variables}
  assert stacked['decoder/blocks/mlp/up_proj/kernel:0'] == (3, 16, 24)


@pytest.mark.parametrize(
  'fields, message',
  [
    (
      dict(num_attention_heads=3, num_key_value_heads=3),
      'num_attention_heads: 3 does not divide hidden_size 16; set head_dim',
    ),
    (dict(num_key_value_heads=3), 'num_key_value_heads: 3 does not divide 4 heads'),
    (dict(head_dim=3), 'head_dim: 3 is odd'),
    (dict(layer_types=('full_attention',)), 'layer_types: 1 types for 3 layers'),
    (dict(sliding_window=0), 'sliding_window: 0 must be above 0'),
    (dict(remat='blok'), "remat: 'blok' is not known; known are none, block, attention, mlp"),
    (dict(hidden_act='relu2'), "hidden_act: 'relu2' is not known"),
    (dict(vocab_size=0), 'vocab_size: 0 must be above 0'),
    (
      dict(attn_implementation='cudnn', position_embedding_type='alibi'),
      'attn_implementation: cudnn adds no ALiBi to scores; set attn_implementation=eager',
    ),
  ],
)
def test_a_decoder_that_cannot_be_built_is_refused_by_the_field(fields, message):
  with pytest.raises(errors.UserError, match=message):
    decoder.Decoder(CONFIG.replace(**fields))


def test_soft_caps_bound_and_keep_the_sign():
  scores = tf.constant([-1e4, -0.01, 0.0, 0.01, 1e4])
  np.testing.assert_allclose(attention.softcapped(scores, 30.0), [-30, -0.01, 0, 0.01, 30], rtol=1e-5)
  assert attention.softcapped(scores, 0.0) is scores


def test_a_mistake_in_a_larger_configuration_is_named_by_its_path():
  config = decoder_config.DecoderConfig(
    hidden_size=0, remat='blok', attention_dropout=1.0, num_key_value_heads=3, num_experts=2, moe_intermediate_size=4
  )
  config.rope_parameters = position_encodings.RopeParameters(rope_type='yarm', rope_theta=0.0)
  with pytest.raises(errors.UserErrors) as raised:
    checks.check_values(config, 'task.model')
  lines = {line.partition(': ')[0]: line.partition(': ')[2] for line in raised.value.lines}
  assert len(lines) == len(raised.value.lines)
  assert lines['task.model.hidden_size'] == 'expected at least 1, got 0'
  assert lines['task.model.attention_dropout'] == 'expected at least 0 and less than 1, got 1.0'
  assert 'none, block, attention, mlp' in lines['task.model.remat']
  assert lines['task.model.num_key_value_heads'] == '3 does not divide 4 heads'
  assert lines['task.model.num_experts_per_tok'] == '8 of 2 experts (num_experts)'
  assert 'longrope' in lines['task.model.rope_parameters.rope_type']
  assert 'task.model.rope_parameters.rope_theta' in lines
  with pytest.raises(errors.UserError, match="^remat: 'blok' is not known.*\nhidden_size: 0 must be above 0\n"):
    config.check_values('')
  checks.check_values(decoder_config.DecoderConfig(), 'task.model')


def test_neftune_noise_has_the_papers_scale_and_is_a_function_of_the_step():
  """Uniform in +- alpha / sqrt(L d), L the tokens of each text; the same again in the same step of a replica."""
  segments = tf.constant([[1] * 100 + [2] * 28, [1] * 16 + [0] * 112])
  x = tf.zeros([2, 128, 32])

  def noise(step=3, replica=0, seed=0, segments=segments):
    key = step_random.StepKey(seed=seed, step=tf.constant(step, tf.int64), replica=replica, num_replicas=2)
    with step_random.step_key(key):
      return layers.neftune_noise(x, segments, 5.0).numpy()

  found = noise()
  np.testing.assert_array_equal(noise(), found)
  for other in (noise(step=4), noise(replica=1), noise(seed=1)):
    assert np.abs(other - found).max() > 0.01
  for values in (found[0, :100], found[0, 100:], found[1, :16]):
    bound = 5.0 / np.sqrt(len(values) * 32)
    assert 0.99 * bound < np.abs(values).max() <= bound
    assert abs(values.mean()) < 4 * bound / np.sqrt(3 * values.size)
    np.testing.assert_allclose(values.std(), bound / np.sqrt(3), rtol=0.06)  # Of a uniform distribution.
  assert not found[1, 16:].any()
  whole = noise(segments=None)
  assert 0.99 * 5.0 / np.sqrt(128 * 32) < np.abs(whole).max() <= 5.0 / np.sqrt(128 * 32)


def test_a_row_without_padding_has_the_noise_of_transformers_hook():
  """Its bound is that of the hook which TRL's trainers use, whose length is that of the row."""
  transformers = pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
  import torch

  module = torch.nn.Embedding(8, 64)
  module.neftune_noise_alpha = 5.0
  output = torch.zeros(2, 32, 64)
  theirs = transformers.integrations.neftune.neftune_post_forward_hook(module, None, output).numpy()
  ours = layers.neftune_noise(tf.zeros([2, 32, 64]), tf.ones([2, 32], tf.int32), 5.0).numpy()
  np.testing.assert_allclose(np.abs(ours).max(), np.abs(theirs).max(), rtol=0.01)
  np.testing.assert_allclose(ours.std(), theirs.std(), rtol=0.05)


@pytest.mark.parametrize('name', ['gemma', 'granite'])
def test_the_noise_is_added_to_the_output_of_transformers_embedding(name, tmp_path, monkeypatch):
  """Gemma's embedding multiplies inside, Granite's model behind it."""
  transformers = pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
  from tests.language.modeling import checkpoints

  theirs = checkpoints.random_model(checkpoints.config(name))
  theirs.save_pretrained(tmp_path)
  found = []

  def hook(module, inputs, output):
    noisy = transformers.integrations.neftune.neftune_post_forward_hook(module, inputs, output)
    found.append((noisy - output).detach().numpy())
    return noisy

  embedding = theirs.get_input_embeddings()
  embedding.neftune_noise_alpha = 20.0
  embedding.register_forward_hook(hook)
  ids = np.random.default_rng(0).integers(3, theirs.config.vocab_size, (2, 7)).astype(np.int32)
  expected = checkpoints.logits(theirs.train(), ids)
  model = pretrained.load(str(tmp_path))
  monkeypatch.setattr(layers, 'neftune_noise', lambda x, segments, alpha: tf.constant(found[0]))
  model.decoder.neftune_noise_alpha = 20.0
  assert np.abs(expected - model(ids).numpy()).max() > 0.1
  np.testing.assert_allclose(model(ids, training=True).numpy(), expected, atol=1e-4)
