"""The features of models and optimizers on a mesh of four devices: each beside the same training on one device."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from experiments.digits_mlp import task as digits_task
import registry_imports  # noqa: F401
from tests.experiments import language_model_test
from tests.experiments import shrunk_run
from tests.training.loop import harness

SGD = {
  'optimizer': {'type': 'sgd_experimental', 'sgd_experimental': {'momentum': 0.9}},
  'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.05}},
  'warmup': {'type': None},
}
BY_COLUMNS = {'pattern': '(q_proj|k_proj|v_proj|gate_proj|up_proj|lm_head)/kernel', 'axes': ['', 'tensor']}
BY_ROWS = {'pattern': '(o_proj|down_proj)/kernel', 'axes': ['tensor']}
TENSOR = {'runtime': {'mesh': {'data': 2, 'tensor': 2}}, 'trainer': {'sharding': {'parameters': [BY_COLUMNS, BY_ROWS]}}}
STACKED = {
  **TENSOR,
  'trainer': {
    'sharding': {
      'parameters': [
        {'pattern': '(q|k|v|gate|up)_proj/kernel', 'axes': ['', '', 'tensor']},
        {'pattern': '(o|down)_proj/kernel', 'axes': ['', 'tensor']},
      ]
    }
  },
}
FSDP = {
  'runtime': {'mesh': {'fsdp': 2, 'tensor': 2}},
  'trainer': {
    'sharding': {
      'parameters': [
        {'pattern': '(q|k|v|gate|up)_proj/kernel', 'axes': ['fsdp', 'tensor']},
        {'pattern': '(o|down)_proj/kernel', 'axes': ['tensor', 'fsdp']},
      ]
    }
  },
}
EXPERTS = {'num_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 8, 'router_aux_loss_coef': 0.01}
EXPERT = {
  'runtime': {'mesh': {'data': 2, 'expert': 2}},
  'trainer': {'sharding': {'parameters': [{'pattern': 'experts/(gate|up|down)_proj', 'axes': ['expert']}]}},
}
CONTEXT = {
  'runtime': {'mesh': {'data': 2, 'context': 2}},
  'trainer': {'sharding': {'activations': [{'pattern': 'blocks/[0-9]+$', 'axes': ['data', 'context']}]}},
}


def make_trainer(*changes, model=(), **trainer):
  decoder = {'num_key_value_heads': 2, **dict(model)}
  task = {'task': {'model': decoder, 'train_data': {'global_batch_size': 8}}}
  trainer = {'optimizer_config': SGD, **trainer}
  params = shrunk_run.make_params('language_model', language_model_test.SMALL, task, *changes, **trainer)
  return shrunk_run.make_trainer(params)


def assert_same_losses(mesh, num_steps=3, rtol=1e-5, **options):
  expected, found = (
    [harness.train(trainer, 1)['training_loss'] for _ in range(num_steps)]
    for trainer in (make_trainer(**options), make_trainer(mesh, **options))
  )
  np.testing.assert_allclose(found, expected, rtol=rtol)


@pytest.mark.slow
def test_experts_dropout_averages_and_the_guard_at_once():
  """The second step is not finite, on all devices alike."""
  model = {**EXPERTS, 'residual_dropout': 0.2}
  ema = {'optimizer_config': {**SGD, 'ema': {'average_decay': 0.9}}}
  states = []
  for mesh in ((), (EXPERT,)):
    trainer = make_trainer(*mesh, model=model, **ema)
    forward = trainer.task.forward

    def forward_until_infinite(inputs, model, training, trainer=trainer, forward=forward):
      loss, logs = forward(inputs, model, training)
      return loss / tf.cast(trainer.global_step != 1, tf.float32), logs

    trainer.task.forward = forward_until_infinite
    losses = [harness.train(trainer, 1)['training_loss']]
    weights = harness.weights_of(trainer)
    harness.train(trainer, 1)
    assert trainer.num_skips == 1 and trainer.step_state.last_skips(1) == [2]
    for before, after in zip(weights, harness.weights_of(trainer)):
      np.testing.assert_array_equal(before, after)
    losses += [harness.train(trainer, 1)['training_loss'] for _ in range(2)]
    trainer.optimizer.assign_average_vars(trainer.model.trainable_variables)
    states.append((losses, harness.weights_of(trainer)))
  split = [name for name, axes in trainer.training_step.on_mesh().axes_by_name().items() if 'expert' in axes]
  assert len(split) == 3 * 3, split  # Each with its momentum and its average.
  np.testing.assert_allclose(states[1][0], states[0][0], rtol=1e-5)
  for found, expected in zip(states[1][1], states[0][1]):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def _keras_net(pixels):
  """Layers whose operations DTensor has a layout for, or that are made of others."""
  layers = tf_keras.layers
  images = layers.Reshape((8, 8, 1))(pixels)
  features = layers.MaxPool2D()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding='same')(images)))
  rows = layers.LayerNormalization()(layers.Reshape((4, 16))(features))
  rows = layers.MultiHeadAttention(2, 8)(rows, rows)
  return layers.Dense(10, name='logits')(layers.Dropout(0.2)(layers.Flatten()(rows)))


@pytest.mark.slow
def test_layers_of_keras_with_their_moving_averages(monkeypatch):
  def build_model(task):
    pixels = tf_keras.Input((64,), 32, name='pixels')
    return tf_keras.Model(pixels, _keras_net(pixels))

  monkeypatch.setattr(digits_task.DigitsMlpTask, 'build_model', build_model)
  batch = {'task': {'train_data': {'global_batch_size': 32}}}
  results = []
  for mesh in ({}, {'runtime': {'mesh': {'data': 2}}}):
    trainer = shrunk_run.make_trainer(shrunk_run.make_params('digits_mlp', batch, mesh, optimizer_config=SGD))
    losses = [harness.train(trainer, 1)['training_loss'] for _ in range(3)]
    results.append((losses, [variable.numpy() for variable in trainer.model.variables]))
  np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5)
  for found, expected in zip(results[1][1], results[0][1]):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.soak
@pytest.mark.parametrize(
  'mesh, options',
  [
    (EXPERT, {'model': EXPERTS}),
    (CONTEXT, {}),
    (TENSOR, {'model': {'attention_dropout': 0.2, 'residual_dropout': 0.2, 'embedding_dropout': 0.2}}),
    (TENSOR, {'gradient_accumulation_steps': 2}),
    (TENSOR, {'optimizer_config': {**SGD, 'ema': {'average_decay': 0.9}}}),
    (FSDP, {}),
    (TENSOR, {'model': {'remat': 'block'}}),
    (TENSOR, {'model': {'remat': 'attention'}}),
    (TENSOR, {'model': {'remat': 'mlp'}}),
    (STACKED, {'model': {'scan_layers': True, 'num_hidden_layers': 2}}),
  ],
)
def test_losses_are_those_of_one_device(mesh, options):
  assert_same_losses(mesh, **options)


@pytest.mark.soak
def test_losses_in_bfloat16_are_those_of_one_device_but_for_its_rounding():
  tf_keras.mixed_precision.set_global_policy('mixed_bfloat16')
  try:
    assert_same_losses(TENSOR, rtol=2**-8)
  finally:
    tf_keras.mixed_precision.set_global_policy('float32')
