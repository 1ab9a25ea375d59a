"""Mixtures of experts: the routers' loss and its gradient are transformers', however layers are run; or a refusal."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import lora
from official_ext.language.modeling import mlp
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import quantized_linear
from official_ext.training.model_parts import grouped

pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
from tests import tiers
from tests.language.modeling import checkpoints

IDS = np.random.default_rng(0).integers(3, 67, (2, 21)).astype(np.int32)
SEGMENTS = np.ones((2, 21), np.int32)
SEGMENTS[0, 15:] = 0
COEFFICIENT = 0.7
MOE = dict(vocab_size=31, hidden_size=16, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A function: name of a case -> (folder, transformers' model), made once."""
  found = {}

  def make(name):
    if name not in found:
      folder = tmp_path_factory.mktemp(name)
      found[name] = str(folder), checkpoints.random_model(checkpoints.config(name))
      found[name][1].save_pretrained(folder)
    return found[name]

  return make


def losses_and_gradients(model, jit_compile):
  """(the model's loss of routers, gradients of it and the logits' squares by the name of the weight)."""

  @tf.function(autograph=False, jit_compile=jit_compile)
  def run():
    with tf.GradientTape() as tape:
      logits = model(tf.constant(IDS), training=True)
      loss = tf.add_n(model.losses)
      total = tf.reduce_mean(logits**2) + 3 * loss
    return loss, tape.gradient(total, model.trainable_variables)

  loss, gradients = run()
  return loss.numpy(), {variable.name: value for variable, value in zip(model.trainable_variables, gradients)}


def routers_gradient(gradients, number):
  stacked = gradients.get('decoder/blocks/mlp/gate/kernel:0')
  return gradients[f'decoder/blocks/{number}/mlp/gate/kernel:0'] if stacked is None else stacked[number]


@tiers.parametrize(
  'name, padded', [('qwen3_moe', False), ('qwen3_moe_mixed', True), ('mixtral', False), ('qwen2_moe', True)], fast=1
)
def test_the_loss_of_the_routers_is_that_of_transformers(made, name, padded):
  folder, theirs = made(name)
  mask = checkpoints.torch.tensor(SEGMENTS) if padded else None
  ids = checkpoints.torch.tensor(IDS).long()
  outputs = theirs(ids, attention_mask=mask, output_router_logits=True)
  model = pretrained.load(folder)
  model(tf.constant(IDS), segments=tf.constant(SEGMENTS) if padded else None, training=True)
  assert model.losses[0].numpy() / COEFFICIENT == pytest.approx(outputs.aux_loss.item(), abs=1e-6)
  assert outputs.aux_loss.item() > 2.01  # 2 experts of each token, if all are used alike.
  model(tf.constant(IDS))
  assert not model.losses  # Of training alone.
  model = pretrained.load(folder, router_aux_loss_coef=0.0)
  model(tf.constant(IDS), training=True)
  assert not model.losses


@pytest.mark.soak
def test_the_gradient_is_that_of_transformers_however_layers_are_run(made):
  folder, theirs = made('qwen3_moe')
  outputs = theirs(checkpoints.torch.tensor(IDS).long(), output_router_logits=True)
  theirs.zero_grad()
  ((outputs.logits**2).mean() + 3 * COEFFICIENT * outputs.aux_loss).backward()
  for options in ({'remat': 'mlp'}, {'remat': 'block'}, {'scan_layers': True}):
    loss, gradients = losses_and_gradients(pretrained.load(folder, **options), 'mlp' not in options.values())
    assert loss / COEFFICIENT == pytest.approx(outputs.aux_loss.item(), abs=1e-6), options
    for number in range(3):
      expected = theirs.model.layers[number].mlp.gate.weight.grad.numpy().T
      np.testing.assert_allclose(
        routers_gradient(gradients, number), expected, rtol=1e-4, atol=3e-6, err_msg=str(options)
      )
      assert np.abs(expected).max() > 1e-2
  np.testing.assert_allclose(
    gradients['decoder/blocks/mlp/experts/down_proj:0'][1],
    np.swapaxes(theirs.model.layers[1].mlp.experts.down_proj.grad.numpy(), 1, 2),
    rtol=1e-4,
    atol=3e-6,
  )


def test_stacked_layers_of_experts_are_saved_as_others_are(made, tmp_path):
  folder, theirs = made('qwen3_moe')
  model = pretrained.load(folder, scan_layers=True)
  assert np.abs(model(tf.constant(IDS)) - checkpoints.logits(theirs, IDS)).max() < 1e-5
  pretrained.save(model, str(tmp_path))
  again = checkpoints.reloaded(str(tmp_path))
  np.testing.assert_array_equal(checkpoints.logits(again, IDS), checkpoints.logits(theirs, IDS))


def test_a_few_tokens_take_the_weights_of_their_experts_alone():
  config = decoder_config.DecoderConfig(**{**MOE, 'num_experts': 9}, moe_intermediate_size=5)
  layer = mlp.SparseMLP(config, lambda: tf_keras.initializers.RandomNormal(stddev=0.5), name='mlp')
  x = tf.random.stateless_normal([1, 12, 16], [0, 1])
  together = layer(x)
  one_by_one = tf.concat([layer(x[:, n : n + 1]) for n in range(12)], axis=1)
  np.testing.assert_allclose(together, one_by_one, atol=1e-5)
  traced = tf.function(layer.__call__).get_concrete_function(tf.TensorSpec([1, 1, 16]))
  assert (
    max(np.prod(op.outputs[0].shape) for op in traced.graph.get_operations() if op.type == 'GatherV2') == 2 * 16 * 5
  )


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(scan_layers=True, mlp_only_layers=(1,)), 'scan_layers: stacks layers of one kind alone'),
    (dict(num_experts_per_tok=5), 'num_experts_per_tok: 5 of 4 experts'),
    (dict(moe_intermediate_size=0), 'moe_intermediate_size: must be above 0'),
    (dict(decoder_sparse_step=3), 'num_experts: 4, but decoder_sparse_step and mlp_only_layers leave no sparse layer'),
    (dict(gated_mlp=False), 'gated_mlp: experts have gates'),
    (dict(mlp_bias=True), 'mlp_bias: experts have none'),
  ],
)
def test_what_experts_cannot_be_is_refused_by_name(fields, message):
  with pytest.raises(errors.UserError, match=f'^{message}'):
    decoder.LanguageModel(decoder_config.DecoderConfig(**{**MOE, 'moe_intermediate_size': 8, **fields}))


def test_adapters_stand_beside_attention_and_experts_are_neither_packed_nor_adapted(made, tmp_path):
  folder, _ = made('qwen3_moe')
  model = pretrained.load(folder)
  with pytest.raises(errors.UserError, match=re.escape('quantization.method: nf4: decoder/blocks/0/mlp/experts: ')):
    lora.attach(model, lora.LoraConfig(), quantized_linear.QuantizationConfig(method='nf4'))
  for pattern in ('up_proj', 'experts.down_proj', 'mlp.gate', r'model\.layers\.\d\.mlp\.experts\.gate_proj'):
    with pytest.raises(errors.UserError, match='the linear layers of experts, and their router, have no adapters'):
      lora.attach(model, lora.LoraConfig(target_modules=(pattern,)))
  lora.attach(model, lora.LoraConfig(r=2))
  assert {adapter.name.rpartition('/')[2] for adapter in lora.adapters(model)} == {
    'q_proj',
    'k_proj',
    'v_proj',
    'o_proj',
  }
  assert not any('experts' in variable.name or 'gate' in variable.name for variable in model.trainable_variables)
  for adapter in lora.adapters(model):
    adapter.lora_b.assign(tf.random.stateless_normal(adapter.lora_b.shape, [0, 1]))
  peft_folders.save(model, str(tmp_path / 'adapter'))
  peft = pytest.importorskip('peft')
  theirs = peft.PeftModel.from_pretrained(checkpoints.reloaded(folder), str(tmp_path / 'adapter'))
  assert np.abs(model(tf.constant(IDS)) - checkpoints.logits(theirs, IDS)).max() < 1e-4
  lora.merge(model)
  pretrained.save(model, str(tmp_path / 'merged'))


@pytest.mark.parametrize('options', [{}, {'remat': 'mlp'}, {'scan_layers': True}], ids=['plain', 'remat', 'stacked'])
@pytest.mark.parametrize('jit_compile', [False, True], ids=['graph', 'XLA'])
def test_tokens_in_blocks_have_the_outputs_and_gradients_of_all_experts(monkeypatch, options, jit_compile):
  """2 x 128 tokens with 2 of 4 experts have blocks of 32 rows; on a mesh there are none."""
  config = decoder_config.DecoderConfig(**MOE, intermediate_size=12, moe_intermediate_size=5, **options)
  model = decoder.LanguageModel(config)
  ids = tf.constant(np.random.default_rng(1).integers(0, 31, [2, 128]), tf.int32)
  model(ids)

  def run():
    @tf.function(jit_compile=jit_compile, autograph=False)
    def step():
      with tf.GradientTape() as tape:
        logits = model(ids, training=True)
        loss = tf.reduce_mean(logits**2)
      return logits, tape.gradient(loss, model.trainable_variables)

    logits, gradients = step()
    return [logits.numpy(), *(tf.convert_to_tensor(gradient).numpy() for gradient in gradients)]

  assert grouped.rows_of_block(256, 2, 4) == 32
  in_blocks = run()
  monkeypatch.setattr(grouped, 'rows_of_block', lambda *arguments: 0)
  for found, expected in zip(in_blocks, run()):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
