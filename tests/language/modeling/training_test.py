"""The Trainer trains a decoder as it trains any model: compiled or not, on replicas, from a checkpoint on."""

import numpy as np
import pytest
import tf_keras

from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.training.devices import device_types
from official_ext.training.step import step_plan
from official_ext.training.step import task_step
from tests import tiers
from tests.training.loop import harness

CONFIG = decoder_config.DecoderConfig(
  vocab_size=19,
  hidden_size=8,
  intermediate_size=12,
  num_hidden_layers=2,
  num_attention_heads=2,
  num_key_value_heads=1,
  layer_types=('sliding_attention', 'full_attention'),
  sliding_window=3,
  residual_dropout=0.2,
  initializer_range=0.3,
)
DATA = tuple(np.random.default_rng(0).integers(0, 19, (2, 64, 6)).astype(np.int32))


def task(**fields):
  """A task class: the decoder learns arbitrary labels."""

  class Task(harness.LinearTask):
    def build_model(self):
      tf_keras.utils.set_random_seed(1)
      return decoder.LanguageModel(CONFIG.replace(**fields))

  return Task


def trained(num_steps=3, fields=None, **options):
  trainer = harness.make_trainer(task(**(fields or {})), data=DATA, **options)
  harness.train(trainer, num_steps)
  return trainer


def weights(trainer):
  return {variable.name: variable.numpy() for variable in trainer.model.variables}


def assert_same(first, second):
  assert set(first) == set(second)
  for name, value in first.items():
    np.testing.assert_allclose(second[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields',
  [
    pytest.param(dict(remat='block'), id='remat', marks=pytest.mark.soak),
    pytest.param(dict(scan_layers=True), id='scan'),
  ],
)
def test_a_compiled_step_does_what_a_graph_does_dropout_included(fields):
  plain = trained(fields=fields, enable_xla=False)
  before = weights(harness.make_trainer(task(**fields), data=DATA, enable_xla=False))
  assert all(np.any(before[name] != value) for name, value in weights(plain).items())
  assert_same(weights(plain), weights(trained(fields=fields, steps_per_execution=3)))


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields',
  [
    pytest.param(dict(remat='block'), id='remat'),
    pytest.param(dict(scan_layers=True), id='scan', marks=pytest.mark.soak),
  ],
)
def test_in_float32_the_rule_of_a_cpu_with_amx_does_what_a_graph_does_dropout_included(fields, monkeypatch):
  monkeypatch.setattr(step_plan, '_MANY_WEIGHTS', 1)
  mixed = trained(fields=fields, enable_xla='auto')
  assert (
    mixed.plan.clusters == ('float32' in device_types.fast_products()) and mixed.plan.jit_compile != mixed.plan.clusters
  )
  assert_same(weights(trained(fields=fields, enable_xla=False)), weights(mixed))


@pytest.mark.slow
@tiers.parametrize('products, num_traces', [({'float32'}, 1), ({'bfloat16'}, 2)], ids=['right', 'wrong'], fast=1)
def test_a_step_is_traced_as_its_plan_is_expected_to_be_and_once_more_after_a_wrong_guess(
  products, num_traces, monkeypatch
):
  traces = []

  class Task(task()):
    def forward(self, inputs, model, training):
      traces.append(training)
      return super().forward(inputs, model, training)

  monkeypatch.setattr(step_plan, '_MANY_WEIGHTS', 1)
  monkeypatch.setattr(device_types, 'fast_products', lambda: products)
  trainer = harness.make_trainer(Task, data=DATA, enable_xla='auto')
  is_mixed = num_traces == 1
  with monkeypatch.context() as patch:
    if is_mixed:  # XLA is not asked about a step that it is not to compile.
      patch.setattr(task_step, 'compiler_error', None)
    harness.train(trainer, 2)
  assert (trainer.plan.clusters, trainer.plan.jit_compile) == (is_mixed, not is_mixed)
  assert len(traces) == num_traces
  assert_same(weights(trained(2, enable_xla=False)), weights(trainer))


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields',
  [
    pytest.param({}, id='unrolled'),
    pytest.param(dict(scan_layers=True), id='scan'),
    pytest.param(dict(remat='block'), id='remat', marks=pytest.mark.soak),
  ],
)
def test_in_bfloat16_the_rule_of_a_cpu_with_amx_gives_the_weights_of_a_step_that_xla_compiles(fields, monkeypatch):
  """Both round the same numbers to bfloat16, by 2^-8 at most, if elsewhere: from the step in float32, the one is about
  as far away as the other."""
  monkeypatch.setattr(step_plan, '_MANY_WEIGHTS', 1)
  updates = []
  for policy, enable_xla in (('mixed_bfloat16', 'auto'), ('mixed_bfloat16', True), ('float32', True)):
    tf_keras.mixed_precision.set_global_policy(policy)
    try:
      before = weights(harness.make_trainer(task(**fields), data=DATA))
      trainer = trained(fields=fields, num_steps=1, enable_xla=enable_xla)
    finally:
      tf_keras.mixed_precision.set_global_policy('float32')
    assert trainer.plan.clusters == (enable_xla == 'auto' and 'bfloat16' in device_types.fast_products())
    assert trainer.plan.jit_compile == (not trainer.plan.clusters)
    after = weights(trainer)
    updates.append({name: after[name] - value for name, value in before.items()})
  mixed, compiled, exact = updates
  for name, update in mixed.items():
    error, error_of_compiled = (np.linalg.norm(other - exact[name]) for other in (update, compiled[name]))
    assert error <= 2 * error_of_compiled + 2.0**-8 * np.linalg.norm(exact[name]), name
    assert error <= 0.1 * np.linalg.norm(exact[name]), name


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields',
  [
    pytest.param(dict(remat='mlp'), id='remat'),
    pytest.param(dict(scan_layers=True), id='scan', marks=pytest.mark.soak),
  ],
)
def test_two_replicas_and_accumulation_do_what_one_does(fields):
  fields = {**fields, 'residual_dropout': 0.0}
  one = weights(trained(fields=fields, enable_xla=False))
  assert_same(one, weights(trained(fields=fields, replicas='two')))
  assert_same(one, weights(trained(fields=fields, batch_size=4, accumulation=2, enable_xla=False)))


@pytest.mark.soak  # The quick tests of experiments with a decoder hold the same.
def test_a_checkpoint_resumes_to_the_same_bits(tmp_path):
  whole = weights(trained(4, enable_xla=False))
  first = trained(2, enable_xla=False)
  path = first.checkpoint.write(str(tmp_path / 'ckpt'))
  second = harness.make_trainer(task(), data=DATA, enable_xla=False)
  with second.strategy.scope():
    second.checkpoint.read(path).expect_partial()
  second.checkpoint_restored()
  harness.train(second, 2)
  for name, value in whole.items():
    np.testing.assert_array_equal(weights(second)[name], value, err_msg=name)
