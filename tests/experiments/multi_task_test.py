"""The experiment multi_task: losses and their weights by the formulas, gradient surgery, replicas, and resuming."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from experiments.multi_task import data
from experiments.multi_task import model as model_lib
from experiments.multi_task import weighting
from official_ext.base import errors
from tests.experiments import shrunk_run
from tests.training.loop import harness
from tests.training.loop import small_run

HEADS = list(model_lib.HEADS)
SMALL = {
  'task': {'model': {'trunk_sizes': [12], 'head_size': 6, 'dropout_rate': 0.0}, 'train_data': {'global_batch_size': 8}}
}
SGD = {
  'trainer': {
    'optimizer_config': {
      'optimizer': {'type': 'sgd', 'sgd': {'momentum': 0.0}},
      'warmup': {'type': None},
      'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.5}},
    }
  }
}


def losses_of(batch, outputs):
  """The three losses in float64."""
  logits, rows = np.asarray(outputs['classification'], np.float64), np.arange(len(batch['label']))
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  return {
    'classification': -log_p[rows, batch['label']].mean(),
    'reconstruction': np.mean((outputs['reconstruction'] - batch['pixels']) ** 2),
    'ink': np.mean((outputs['ink'] - batch['ink']) ** 2),
  }


@pytest.mark.parametrize('how', ['fixed', 'uncertainty'])
def test_the_loss_is_the_weighed_sum_of_the_logged(how):
  weights = {'classification': 2.0, 'reconstruction': 0.5, 'ink': 3.0}
  task = shrunk_run.make_task(
    shrunk_run.make_params('multi_task', SMALL, {'task': {'weighting': how, 'weights': weights}})
  )
  model = task.build_model()
  (batch,) = task.build_inputs(task.config.train_data).take(1)
  s = dict(zip(HEADS, [0.3, -1.0, 2.0]))
  if how == 'uncertainty':
    model.weights_of_losses.log_variances.assign(list(s.values()))
  loss, logs = task.forward(batch, model, training=True)
  expected = losses_of(batch, {name: value.numpy() for name, value in model(batch['damaged']).items()})
  for name in HEADS:
    assert float(logs[f'{name}_loss']) == pytest.approx(expected[name], rel=1e-5)
  of = lambda name: np.exp(-s[name]) * expected[name] + s[name] / 2 if how == 'uncertainty' else expected[name]
  assert float(loss) == pytest.approx(sum(weights[name] * of(name) for name in HEADS), rel=1e-5)
  if how == 'uncertainty':
    assert float(logs['ink_weight']) == pytest.approx(np.exp(-2.0))


def test_learned_weights_settle_where_the_formula_has_its_minimum():
  """d/ds (exp(-s) L + s / 2) = 0 at exp(s) = 2 L."""
  layer = weighting.UncertaintyWeights(['a', 'b'])
  layer.build(())
  losses = {'a': tf.constant(3.0), 'b': tf.constant(0.02)}
  for _ in range(300):
    with tf.GradientTape() as tape:
      total = tf.add_n(list(layer(losses).values()))
    (gradient,) = tape.gradient(total, layer.trainable_variables)
    layer.log_variances.assign_sub(0.3 * gradient)
  np.testing.assert_allclose(np.exp(layer.log_variances), [6.0, 0.04], rtol=1e-3)


def surgery(gradients, orders):
  """Algorithm 1 of the paper, on vectors."""
  result = []
  for i, order in enumerate(orders):
    g = gradients[i].copy()
    for j in order:
      if g @ gradients[j] < 0:
        g -= g @ gradients[j] / (gradients[j] @ gradients[j]) * gradients[j]
    result.append(g)
  return result


def test_two_conflicting_gradients_lose_what_is_against_the_other():
  a, b = np.array([2.0, 0.0, 1.0]), np.array([-1.0, 1.0, 0.5])
  assert a @ b < 0
  split = lambda g: [tf.constant(g[:1], tf.float32), tf.constant(g[1:].reshape(2, 1), tf.float32)]
  found = tf.function(weighting.without_conflicts, jit_compile=True)(
    [split(a), split(b)], tf.constant([0, 0], tf.int64)
  )
  vectors = [np.concatenate([part.numpy().ravel() for part in parts]) for parts in found]
  expected = surgery([a, b], [[1], [0]])
  np.testing.assert_allclose(vectors, expected, rtol=1e-6)
  assert vectors[0] @ b == pytest.approx(0, abs=1e-6) and vectors[1] @ a == pytest.approx(0, abs=1e-6)
  # Those that agree are unchanged; a variable that one loss has no gradient for counts as zeros.
  kept = weighting.without_conflicts([split(a), [tf.constant([1.0]), None]], tf.constant([0, 0], tf.int64))
  np.testing.assert_array_equal(np.concatenate([part.numpy().ravel() for part in kept[0]]), a)
  np.testing.assert_array_equal(np.concatenate([part.numpy().ravel() for part in kept[1]]), [1, 0, 0])


def test_three_gradients_meet_the_others_in_any_order():
  rng = np.random.default_rng(3)
  gradients = list(rng.normal(size=(3, 4)))
  assert sum(a @ b < 0 for a, b in itertools.combinations(gradients, 2)) >= 2
  possible = [
    np.concatenate(surgery(gradients, orders))
    for orders in itertools.product(*(itertools.permutations([j for j in range(3) if j != i]) for i in range(3)))
  ]
  seen = set()
  for seed in range(12):
    tensors = [[tf.constant(g, tf.float32)] for g in gradients]
    found = weighting.without_conflicts(tensors, tf.constant([seed, 0], tf.int64))
    vector = np.concatenate([parts[0].numpy() for parts in found])
    seen.add(int(np.argmin([np.abs(vector - p).max() for p in possible])))
    assert min(np.abs(vector - p).max() for p in possible) < 1e-5
  assert len(seen) > 1


def test_a_step_with_surgery_goes_along_the_repaired_gradients():
  """With the losses' gradients taken one by one; and without conflicts it is the step without surgery."""
  for weights, conflicts in (({}, True), ({'reconstruction': 0.0, 'ink': 0.0}, False)):
    changes = {'task': {'weighting': 'fixed', 'weights': weights, 'gradient_surgery': True}}
    task = shrunk_run.make_task(shrunk_run.make_params('multi_task', SMALL, changes))
    task.make_seed = lambda salt: tf.constant([1, 2], tf.int64)  # Outside of a trainer's step there is none.
    tf_keras.utils.set_random_seed(7)
    model = task.build_model()
    (batch,) = task.build_inputs(task.config.train_data).take(1)
    with tf.GradientTape(persistent=True) as tape:
      terms = task.weighed(task.losses_of(batch, model(batch['damaged'])), model)
    flat = lambda parts: np.concatenate([np.ravel(p) for p in parts]).astype(np.float64)
    of_losses = [
      flat(
        [
          np.zeros(v.shape) if g is None else g
          for g, v in zip(tape.gradient(term, model.trainable_variables), model.trainable_variables)
        ]
      )
      for term in terms.values()
    ]
    if conflicts:
      assert any(a @ b < 0 for a, b in itertools.combinations(of_losses, 2))
    before = flat(model.trainable_variables)
    task.train_step(batch, model, tf_keras.optimizers.legacy.SGD(1.0), task.build_metrics())
    moved = before - flat(model.trainable_variables)
    possible = [
      sum(surgery(of_losses, orders))
      for orders in itertools.product(*(itertools.permutations([j for j in range(3) if j != i]) for i in range(3)))
    ]
    assert min(np.abs(moved - p).max() for p in possible) < 1e-5
    assert (np.abs(moved - sum(of_losses)).max() > 1e-3) == conflicts


@pytest.mark.soak
def test_two_replicas_learn_what_one_does():
  results = []
  for replicas in ('one', 'two'):
    trainer = shrunk_run.make_trainer(shrunk_run.make_params('multi_task', SMALL, SGD), replicas)
    logs = harness.train(trainer, 2)
    results.append([logs[f'{name}_loss'] for name in HEADS] + harness.weights_of(trainer))
  harness.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


def test_examples_are_damaged_as_configured():
  params = shrunk_run.make_params('multi_task')
  params.task.train_data.global_batch_size = 500
  (batch,) = shrunk_run.make_task(params).build_inputs(params.task.train_data).take(1)
  damaged, pixels = batch['damaged'].numpy(), batch['pixels'].numpy()
  changed = damaged != pixels
  assert (damaged[changed] == 0).all()
  num_inked = (pixels > 0).sum()
  assert changed.sum() / num_inked == pytest.approx(0.25, abs=5 * np.sqrt(0.25 * 0.75 / num_inked))
  images = data.examples(is_training=False)
  np.testing.assert_allclose(images['ink'][7, 1], images['pixels'][7].reshape(8, 8)[:4, 4:].mean(), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('replicas, enable_xla', shrunk_run.CONTINUATIONS)
def test_a_restored_run_resumes_bit_for_bit(replicas, enable_xla, tmp_path):
  surgical = {'task': {'gradient_surgery': True, 'model': {'dropout_rate': 0.2}}}
  params = shrunk_run.make_params('multi_task', SMALL, surgical, enable_xla=enable_xla)
  held = shrunk_run.assert_resumes_bit_for_bit(params, tmp_path, replicas)
  learned = held['model/weights_of_losses/log_variances/.ATTRIBUTES/VARIABLE_VALUE']
  assert (learned != 0).all()


@pytest.mark.soak
def test_a_run_logs_every_loss(tmp_path):
  shrunk_run.run(tmp_path, shrunk_run.make_params('multi_task', SMALL))
  for event in ('train', 'eval'):
    (last,) = [line for line in small_run.events(tmp_path, event) if line['step'] == 4]
    assert all(last[f'{name}_loss'] > 0 and last[f'{name}_weight'] > 0 for name in HEADS) and 'accuracy' in last


def test_an_unknown_weighting_is_refused():
  with pytest.raises(errors.UserError, match="task.weighting: 'learned' is not one of fixed, uncertainty"):
    shrunk_run.make_task(shrunk_run.make_params('multi_task', {'task': {'weighting': 'learned'}}))
