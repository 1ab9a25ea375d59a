"""The optimizers, against the papers' formulas in float64, in every shape of the step, and with their wrappers."""

import ml_dtypes
import numpy as np
from official.core import base_task
import pytest
import tensorflow as tf
import tf_keras
import torch

from official_ext.training.config import definitions
from official_ext.training.optimization import ema_optimizer
from official_ext.training.optimization import muon
from official_ext.training.optimization import optimizers
from official_ext.training.step import gradient_tap
from tests import tiers
from tests.training.loop import harness

SHAPES = {
  'plain': dict(enable_xla=False),
  'fused': dict(steps_per_execution=2),
  'split': dict(replicas='two'),
  'plain_two': dict(enable_xla=False, replicas='two'),
}
LR, DECAY = 0.05, 0.1
NAMES = ('encoder/kernel', 'encoder/bias', 'embedding/table', 'conv/kernel')
SIZES = ((6, 4), (4,), (5, 3), (2, 2, 3, 4))


def make(kind, schedule=None, runtime=None, ema=None, **fields):
  """The optimizer that a Model Garden task makes from the configuration."""
  rate = {'type': 'constant', 'constant': {'learning_rate': LR}}
  config = definitions.OptimizationConfig(
    {'optimizer': {'type': kind, kind: fields}, 'learning_rate': schedule or rate, 'ema': ema}
  )
  return base_task.Task.create_optimizer(config, definitions.RuntimeConfig(**(runtime or {})))


def random_arrays(seed, scale=1.0):
  rng = np.random.default_rng(seed)
  return [(scale * rng.normal(size=size)).astype(np.float32) for size in SIZES]


def gradients_at(step):
  """Gradients of every scale; those of step 3 are sudden."""
  return random_arrays(100 + step, 0.1 * (10.0 if step == 3 else 1.0))


def run(optimizer, num_steps=6, variables=None):
  variables = variables or [tf.Variable(value, name=name) for value, name in zip(random_arrays(0), NAMES)]
  for step in range(num_steps):
    optimizer.apply_gradients(list(zip(map(tf.constant, gradients_at(step)), variables)))
  return variables


# The formulas. Each yields, after every step, the weights and the logs.


def adam_moments(m, v, g, t, b1, b2):
  m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
  return m, v, m / (1 - b1**t), v / (1 - b2**t)


def lion(num_steps, b1=0.9, b2=0.99):
  """Chen et al. 2023, algorithm 2."""
  weights = [w.astype(np.float64) for w in random_arrays(0)]
  momentum = [np.zeros_like(w) for w in weights]
  for step in range(num_steps):
    for i, g in enumerate(gradients_at(step)):
      c = b1 * momentum[i] + (1 - b1) * g
      weights[i] -= LR * (np.sign(c) + DECAY * weights[i])
      momentum[i] = b2 * momentum[i] + (1 - b2) * g
  return weights


def stable_adamw(num_steps, b1=0.9, b2=0.95, epsilon=1e-6, threshold=1.0, store=lambda x: x):
  """Wortsman et al. 2023, algorithm 2. (weights, slots, logs of the last step)."""
  weights = [w.astype(np.float64) for w in random_arrays(0)]
  slots = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
  logs = {}
  for step in range(num_steps):
    squares, clipped = 0.0, 0
    for i, g in enumerate(gradients_at(step)):
      m, v, m_hat, v_hat = adam_moments(*slots[i], g.astype(np.float64), step + 1, b1, b2)
      slots[i] = store(m), store(v)
      rms = np.sqrt(np.mean(g.astype(np.float64) ** 2 / np.maximum(v_hat, epsilon**2)))
      factor = 1 / max(1, rms / threshold) if threshold else 1.0
      update = m_hat / (np.sqrt(v_hat) + epsilon)
      weights[i] -= LR * factor * (update + DECAY * weights[i])
      squares, clipped = squares + np.sum((factor * update) ** 2), clipped + (factor < 1)
    logs = {'update_rms': np.sqrt(squares / sum(w.size for w in weights)), 'clipped_fraction': clipped / len(weights)}
  return weights, slots, logs


def newton_schulz(g, steps=5):
  """Jordan et al. 2024, zeropower_via_newtonschulz5, in float64."""
  a, b, c = 3.4445, -4.7750, 2.0315
  x = g / (np.linalg.norm(g) + 1e-7)
  x = x.T if g.shape[0] > g.shape[1] else x
  for _ in range(steps):
    s = x @ x.T
    x = a * x + (b * s + c * s @ s) @ x
  return x.T if g.shape[0] > g.shape[1] else x


def muon_formula(num_steps, mu=0.95, nesterov=True, b1=0.9, b2=0.95, epsilon=1e-8, matrices=(0, 3)):
  weights = [w.astype(np.float64) for w in random_arrays(0)]
  slots = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
  squares = 0.0
  for step in range(num_steps):
    squares = 0.0
    for i, g in enumerate(gradients_at(step)):
      g = g.astype(np.float64)
      if i in matrices:
        buffer = mu * slots[i][0] + g
        slots[i] = buffer, None
        matrix = (g + mu * buffer if nesterov else buffer).reshape([-1, g.shape[-1]])
        update = 0.2 * np.sqrt(max(matrix.shape)) * newton_schulz(matrix).reshape(g.shape)
      else:
        m, v, m_hat, v_hat = adam_moments(*slots[i], g, step + 1, b1, b2)
        slots[i] = m, v
        update = m_hat / (np.sqrt(v_hat) + epsilon)
      weights[i] -= LR * (update + DECAY * weights[i])
      squares += np.sum(update**2)
  return weights, np.sqrt(squares / sum(w.size for w in weights))


def values_of(variables):
  return [variable.numpy() for variable in variables]


def test_lion_follows_the_paper():
  harness.assert_close(values_of(run(make('lion', weight_decay=DECAY))), lion(6))


def test_adamw_torch_is_that_of_pytorch():
  found = run(make('adamw_torch', weight_decay=DECAY, beta_2=0.95, epsilon=1e-3))
  weights = [torch.nn.Parameter(torch.tensor(value)) for value in random_arrays(0)]
  optimizer = torch.optim.AdamW(weights, LR, (0.9, 0.95), 1e-3, DECAY)
  for step in range(6):
    for weight, gradient in zip(weights, gradients_at(step)):
      weight.grad = torch.tensor(gradient)
    optimizer.step()
  for variable, weight in zip(found, weights):
    np.testing.assert_allclose(variable.numpy(), weight.detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('threshold', [1.0, 0.7, 0.0])
def test_stable_adamw_follows_the_paper(threshold):
  optimizer = make(
    'stable_adamw', weight_decay=DECAY, beta_2=0.95, epsilon=1e-6, clip_threshold=threshold, slot_dtype='float32'
  )
  variables = run(optimizer, 4)  # The last gradients are ten times as large.
  weights, _, logs = stable_adamw(4, threshold=threshold)
  harness.assert_close(values_of(variables), weights)
  assert set(optimizer.logs()) == set(logs)
  for name, value in optimizer.logs().items():
    np.testing.assert_allclose(value, logs[name], rtol=1e-5)
  assert logs['clipped_fraction'] == (1.0 if threshold else 0.0)


def test_stable_adamw_with_slots_rounded_to_the_nearest_bfloat16():
  to_nearest = lambda x: x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
  optimizer = make('stable_adamw', weight_decay=DECAY, beta_2=0.95, epsilon=1e-6, slot_rounding='nearest')
  variables = run(optimizer)
  weights, slots, _ = stable_adamw(6, store=to_nearest)
  slot_variables = [v for v in optimizer.variables if v.dtype == tf.bfloat16]
  assert len(slot_variables) == 2 * len(variables)
  harness.assert_close(values_of(variables), weights, rtol=1e-4, atol=1e-4)
  for found, expected in zip(slot_variables, [*(m for m, _ in slots), *(v for _, v in slots)]):
    # A last bit of float32 may decide between two neighbours.
    np.testing.assert_allclose(found.numpy().astype(np.float64), expected, rtol=2**-7, atol=1e-6)
  exact, _, _ = stable_adamw(6)
  assert max(np.abs(e - w).max() for e, w in zip(exact, weights)) > 1e-4  # The rounding made a difference.


def test_rounding_at_random_is_right_in_the_mean():
  # 1 + x, x in units of the distance of two neighbours in bfloat16: up with probability x.
  shares = np.array([0.0, 0.125, 0.5, 0.9], np.float64)
  number = 40_000
  values = tf.constant(
    np.repeat((1 + shares * 2**-7).astype(np.float32)[:, None], number, 1) * [[1], [1], [-1], [1]], tf.float32
  )
  bits = optimizers.halves(optimizers.random_bits(values.shape, 0, tf.constant(7, tf.int64)))
  for half in bits:
    rounded = np.abs(optimizers.to_bfloat16(values, half).numpy().astype(np.float64))
    assert set(np.unique(rounded)) == {1.0, 1 + 2**-7}
    ups = (rounded > 1).mean(1)
    tolerance = 5 * np.sqrt(shares * (1 - shares) / number)
    assert (np.abs(ups - shares) <= tolerance).all(), ups
  # Numbers that bfloat16 holds stay, for any bits.
  exact = tf.cast(tf.constant([0.0, 1.5, -3e38, 2.0**-120]), tf.bfloat16)
  all_ones = tf.fill([4], tf.constant(0xFFFF, tf.uint32))
  np.testing.assert_array_equal(optimizers.to_bfloat16(tf.cast(exact, tf.float32), all_ones), exact)


def test_a_second_moment_in_bfloat16_stagnates_unless_it_is_rounded_at_random():
  # Gradients of 1, then of 0: the second moment decays by 0.1 % a step. Its mean over 4096 numbers is exact to 1e-3.
  found = {}
  for how in optimizers.ROUNDINGS:
    optimizer = make('stable_adamw', slot_rounding=how)
    variable = tf.Variable(tf.zeros([4096]), name='w')
    optimizer.build([variable])
    velocity = [v for v in optimizer.variables if v.dtype == tf.bfloat16][1]
    velocity.assign(tf.ones_like(velocity))
    for _ in range(50):
      optimizer.apply_gradients([(tf.zeros([4096]), variable)])
    found[how] = tf.cast(velocity, tf.float32).numpy().mean()
  np.testing.assert_allclose(found['stochastic'], 0.999**50, rtol=2e-3)
  assert found['nearest'] == 1.0


@pytest.mark.parametrize('nesterov', [True, False])
def test_muon_follows_the_paper(nesterov):
  optimizer = make('muon', weight_decay=DECAY, nesterov=nesterov)
  weights, rms = muon_formula(6, nesterov=nesterov)
  harness.assert_close(values_of(run(optimizer)), weights, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(optimizer.logs()['update_rms'], rms, rtol=1e-4)


def test_muon_leaves_what_the_patterns_name_to_adamw():
  optimizer = make('muon', weight_decay=DECAY, adamw_patterns=['^conv/'])
  harness.assert_close(values_of(run(optimizer)), muon_formula(6, matrices=(0, 2))[0], rtol=1e-4, atol=1e-5)


def test_muon_knows_matrices():
  assert muon.matrix_shape([7]) is None
  assert muon.matrix_shape([1, 7]) is None
  assert muon.matrix_shape([]) is None
  assert muon.matrix_shape([5, 7]) == (5, 7)
  assert muon.matrix_shape([3, 3, 64, 128]) == (576, 128)
  assert muon.matrix_shape([512, 8, 64]) == (512, 512)
  assert muon.matrix_shape([8, 64, 512]) == (512, 512)
  optimizer = make('muon')
  named = lambda name: optimizer.is_matrix(tf.Variable(tf.zeros([4, 4]), name=name))
  assert named('encoder/multi_head_attention/query/kernel') and named('dense/kernel')
  assert not any(map(named, ('word_embeddings/embeddings', 'logits/kernel', 'lm_head/kernel', 'classifier/kernel')))


def test_an_orthogonalized_matrix_has_equal_singular_values():
  matrix = np.random.default_rng(0).normal(size=(20, 12)).astype(np.float32)
  u, _, v = np.linalg.svd(matrix, full_matrices=False)
  found = muon.orthogonalize(tf.constant(matrix)).numpy()
  np.testing.assert_allclose(found, newton_schulz(matrix.astype(np.float64)), atol=1e-5)
  along = np.diag(u.T @ found @ v.T)
  assert (along > 0.6).all() and (along < 1.3).all()


@pytest.mark.parametrize('kind', ['adamw_torch', 'lion', 'muon', 'stable_adamw'])
def test_a_sparse_gradient_counts_as_a_dense_one(kind):
  fields = dict(slot_dtype='float32') if kind == 'stable_adamw' else {}
  sparse = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([0, 2, 0]), tf.constant([4, 2]))
  found = []
  for gradient in (sparse, tf.convert_to_tensor(sparse)):
    optimizer, variable = make(kind, **fields), tf.Variable(tf.ones([4, 2]), name='embedding')
    for _ in range(3):
      optimizer.apply_gradients([(gradient, variable)])
    found.append(variable.numpy())
  np.testing.assert_allclose(*found, rtol=1e-6)


KINDS = {
  'adamw_torch': dict(weight_decay=DECAY),
  'lion': dict(weight_decay=DECAY),
  'muon': dict(weight_decay=DECAY),
  'stable_adamw': dict(weight_decay=DECAY, clip_threshold=0.5),
}


def trained(kind, num_steps, ema=None, runtime=None, schedule=None, fields=None, **shape):
  trainer = harness.make_trainer(
    optimizer=lambda: make(kind, schedule, runtime, ema, **{**KINDS[kind], **(fields or {})}), **shape
  )
  return trainer, harness.train(trainer, num_steps)


def reference(kind, num_steps, batch_size=8):
  """Weights, and the logs of every update, by the same optimizer run eagerly: the tests above show that it is right."""
  optimizer = make(kind, **KINDS[kind])
  run_eagerly = harness.Reference(optimizer, harness.make_data(64), batch_size, dtype=np.float32)
  logs = []
  for _ in range(num_steps):
    run_eagerly.train(1)
    logs.append({name: float(value) for name, value in getattr(optimizer, 'logs', dict)().items()})
  return run_eagerly.weights, {f'optimizer/{name}': np.mean([line[name] for line in logs]) for name in logs[0]}


@tiers.parametrize(
  ('kind', 'shape'),
  [
    ('lion', 'plain'),
    ('muon', 'fused'),
    ('adamw_torch', 'fused'),
    ('stable_adamw', 'split'),
    pytest.param('muon', 'plain_two', marks=pytest.mark.soak),
    pytest.param('stable_adamw', 'fused', marks=pytest.mark.soak),
  ],
  fast=1,
)
def test_an_optimizer_in_every_shape_of_the_step(kind, shape):
  trainer, logs = trained(kind, 5, accumulation=2, **SHAPES[shape])
  weights, expected_logs = reference(kind, 5, batch_size=16)
  # A sign that flips, or a slot that is rounded to its other neighbour, shows.
  harness.assert_close(harness.weights_of(trainer), weights, rtol=2e-3, atol=2e-3)
  assert {name for name in logs if name.startswith('optimizer/')} == set(expected_logs)
  for name, value in expected_logs.items():
    np.testing.assert_allclose(logs[name], value, rtol=1e-3)


@pytest.mark.slow
@tiers.parametrize('shape', [SHAPES['fused'], SHAPES['plain_two']], ids=['fused', 'plain_two'], fast=1)
def test_a_skipped_step_has_no_part_in_an_optimizers_logs(shape):
  x, y = harness.make_data(64)
  x[17] = np.nan  # Batch 2.
  trainer = harness.make_trainer(optimizer=lambda: make('stable_adamw', **KINDS['stable_adamw']), data=(x, y), **shape)
  harness.train(trainer, 2)
  before = values_of(gradient_tap.variables_of(trainer.optimizer))
  logs = harness.train(trainer, 1)
  for a, b in zip(before, values_of(gradient_tap.variables_of(trainer.optimizer))):
    np.testing.assert_array_equal(a, b)
  assert trainer.step_state.num_skips == 1
  assert not [name for name in logs if name.startswith('optimizer/')]
  assert harness.train(trainer, 1)['optimizer/update_rms'] > 0


@pytest.mark.slow
@pytest.mark.parametrize('replicas', [pytest.param('one', marks=pytest.mark.soak), 'two'])
def test_a_manual_task_logs_the_values_of_its_optimizer(replicas):
  class Twice(harness.LinearTask):
    def train_step(self, inputs, model, optimizer, metrics=None):
      super().train_step(inputs, model, optimizer, metrics)
      return super().train_step(inputs, model, optimizer, metrics)

  trainer = harness.make_trainer(Twice, optimizer=lambda: make('muon'), enable_xla=False, replicas=replicas)
  assert 0 < harness.train(trainer, 2)['optimizer/update_rms'] < 5


class Sgd(tf_keras.optimizers.legacy.SGD):
  """A legacy optimizer that logs, as docs/how_to/optimization.md shows."""

  def logs(self):
    return {'iterations': self.iterations}


@pytest.mark.slow
def test_any_optimizer_may_have_values_to_log():
  for wrap in (lambda optimizer: optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
    trainer = harness.make_trainer(optimizer=lambda wrap=wrap: wrap(Sgd(0.1)), enable_xla=False)
    assert harness.train(trainer, 3)['optimizer/iterations'] == 2  # The mean of 1, 2, 3.
  assert gradient_tap.logs_of(harness.sgd()) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'shape'),
  [
    ('muon', 'split'),
    pytest.param('stable_adamw', 'plain', marks=pytest.mark.soak),
  ],
)
def test_the_moving_average_around_a_new_optimizer(kind, shape):
  ema = dict(average_decay=0.5, dynamic_decay=False)
  trainer, logs = trained(kind, 4, ema=ema, **SHAPES[shape])
  average = harness.initial_weights()
  for step in range(1, 5):
    weights, _ = reference(kind, step)
    average = [0.5 * a + 0.5 * w for a, w in zip(average, weights)]
  harness.assert_close(harness.weights_of(trainer), weights, rtol=2e-3, atol=2e-3)
  found = ema_optimizer.find(trainer.optimizer)
  harness.assert_close(
    [found.get_slot(v, 'average').numpy() for v in trainer.model.trainable_variables], average, rtol=2e-3, atol=2e-3
  )
  np.testing.assert_allclose(logs['learning_rate'], LR)


@pytest.mark.slow
def test_loss_scaling_around_a_new_optimizer_waits_at_an_overflow():
  x, y = harness.make_data(64)
  x[24] *= 500  # Batch 3 overflows in float16, scaled.

  class Task(harness.LinearTask):
    model_fn = staticmethod(lambda: harness.linear_model('mixed_float16'))

  for kind, ema in (('muon', None), ('stable_adamw', dict(average_decay=0.5))):
    trainer = harness.make_trainer(
      Task,
      (x, y),
      optimizer=lambda kind=kind, ema=ema: make(kind, None, dict(mixed_precision_dtype='float16'), ema, **KINDS[kind]),
      enable_xla=False,
    )
    assert isinstance(trainer.optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
    harness.train(trainer, 3)
    before = harness.weights_of(trainer)
    logs = harness.train(trainer, 1)
    harness.assert_close(harness.weights_of(trainer), before, rtol=0, atol=0)
    assert trainer.step_state.num_skips == 0
    assert not [name for name in logs if name.startswith('optimizer/')]
    assert harness.train(trainer, 1)['optimizer/update_rms'] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'shape'),
  [
    ('stable_adamw', 'plain'),
    pytest.param('stable_adamw', 'fused', marks=pytest.mark.soak),
    pytest.param('muon', 'plain_two', marks=pytest.mark.soak),
  ],
)
def test_a_checkpoint_resumes_every_bit(kind, shape, tmp_path):
  schedule = {'type': 'one_cycle', 'one_cycle': {'maximal_learning_rate': 0.1, 'total_decay_steps': 10}}
  straight, _ = trained(kind, 7, schedule=schedule, **SHAPES[shape])
  first, _ = trained(kind, 4, schedule=schedule, **SHAPES[shape])
  path = first.checkpoint.write(str(tmp_path / 'checkpoint'))
  second = harness.make_trainer(optimizer=lambda: make(kind, schedule, **KINDS[kind]), **SHAPES[shape])
  with second.strategy.scope():
    second.checkpoint.read(path).assert_consumed()
  second.checkpoint_restored()
  harness.train(second, 3)
  everything = [values_of([*t.model.variables, *gradient_tap.variables_of(t.optimizer)]) for t in (straight, second)]
  for a, b in zip(*everything):
    assert a.tobytes() == b.tobytes()


@pytest.mark.slow
def test_an_update_that_is_compiled_by_itself():
  # jit_compile: for steps that are not compiled. The copies of weights and sums must be those of the replica.
  for kind in ('muon', 'stable_adamw'):
    trainer, logs = trained(kind, 3, fields=dict(jit_compile=True), enable_xla=False)
    weights, expected = reference(kind, 3)
    harness.assert_close(harness.weights_of(trainer), weights, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(logs['optimizer/update_rms'], expected['optimizer/update_rms'], rtol=1e-3)


def test_configurations_come_back():
  for kind, fields in KINDS.items():
    optimizer = make(kind, **fields)
    again = type(optimizer).from_config(optimizer.get_config())
    harness.assert_close(values_of(run(again, 3)), values_of(run(make(kind, **fields), 3)), rtol=0, atol=0)
