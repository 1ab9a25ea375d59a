"""The experiment meta_learning: meta-gradients against numpy in float64, the tasks, training and its continuation."""

import math
import shutil

import numpy as np
from official.core import exp_factory
from official.core import task_factory
import pytest
import tensorflow as tf
import tf_keras

from experiments import meta_learning
from experiments.meta_learning import maml
from experiments.meta_learning import sinusoids
from official_ext.base import errors
from official_ext.data import pipelines
from official_ext.training.loop import train_lib
from tests import tiers
from tests.experiments import shrunk_run
from tests.training.loop import harness
from tests.training.loop import small_run

NUM_TASKS, NUM_SHOTS, NUM_QUERIES, RATE = 3, 4, 5, 0.05
SIZES = (1, 6, 5, 1)


def numpy_weights(seed=0):
  rng = np.random.default_rng(seed)
  return [0.7 * rng.normal(size=shape) for n, m in zip(SIZES, SIZES[1:]) for shape in ((n, m), (m,))]


def numpy_tasks(seed=1):
  rng = np.random.default_rng(seed)
  return [
    tuple(rng.uniform(-3, 3, (n, 1)) for n in (NUM_SHOTS, NUM_SHOTS, NUM_QUERIES, NUM_QUERIES))
    for _ in range(NUM_TASKS)
  ]


def loss_and_gradients(weights, x, y):
  """The perceptron's mean squared error and its gradients, by the chain rule."""
  inputs = [x]
  for kernel, bias in zip(weights[:-2:2], weights[1:-2:2]):
    inputs.append(np.maximum(inputs[-1] @ kernel + bias, 0))
  error = inputs[-1] @ weights[-2] + weights[-1] - y
  delta, gradients = 2 * error / error.size, []
  for layer in reversed(range(len(inputs))):
    gradients = [inputs[layer].T @ delta, delta.sum(0), *gradients]
    delta = delta @ weights[2 * layer].T * (inputs[layer] > 0)
  return np.mean(error**2), gradients


def adapted(weights, x, y, num_steps=1):
  for _ in range(num_steps):
    weights = [w - RATE * g for w, g in zip(weights, loss_and_gradients(weights, x, y)[1])]
  return weights


def meta_loss(weights, tasks, num_steps=1):
  losses = [loss_and_gradients(adapted(weights, x, y, num_steps), *query)[0] for x, y, *query in tasks]
  return np.mean(losses)


def finite_differences(weights, function, step=1e-6):
  """Central differences of a function of all weights."""
  gradients = [np.zeros_like(weight) for weight in weights]
  for weight, gradient in zip(weights, gradients):
    for index in np.ndindex(weight.shape):
      kept, values = weight[index], []
      for sign in (1, -1):
        weight[index] = kept + sign * step
        values.append(function(weights))
      weight[index] = kept
      gradient[index] = (values[0] - values[1]) / (2 * step)
  return gradients


def as_batch(tasks, dtype):
  names = ('support_x', 'support_y', 'query_x', 'query_y')
  return {name: tf.constant(np.stack(part), dtype) for name, part in zip(names, zip(*tasks))}


@pytest.mark.parametrize('num_steps', [1, 2])
def test_the_gradient_through_the_inner_steps_is_that_of_finite_differences(num_steps):
  weights, tasks = numpy_weights(), numpy_tasks()
  variables, batch = [tf.Variable(weight) for weight in weights], as_batch(tasks, tf.float64)
  with tf.GradientTape() as tape:
    inner = maml.for_each_task(variables, NUM_TASKS)
    for _ in range(num_steps):
      inner = maml.adapt(inner, batch['support_x'], batch['support_y'], RATE)
    loss = tf.reduce_mean(maml.squared_error(inner, batch['query_x'], batch['query_y']))
  np.testing.assert_allclose(loss, meta_loss(weights, tasks, num_steps), rtol=1e-12)
  expected = finite_differences(weights, lambda w: meta_loss(w, tasks, num_steps))
  harness.assert_close(tape.gradient(loss, variables), expected, rtol=1e-6, atol=1e-8)


def first_order_gradients(weights, tasks):
  """The gradients at the adapted weights, which is where FOMAML takes them."""
  gradients = [loss_and_gradients(adapted(weights, x, y), *query)[1] for x, y, *query in tasks]
  return [np.mean(parts, 0) for parts in zip(*gradients)]


def joint_gradients(weights, tasks):
  points = [(np.concatenate([x, query_x]), np.concatenate([y, query_y])) for x, y, query_x, query_y in tasks]
  return [np.mean(parts, 0) for parts in zip(*(loss_and_gradients(weights, *part)[1] for part in points))]


REFERENCES = {
  'maml': lambda weights, tasks: finite_differences(weights, lambda w: meta_loss(w, tasks)),
  'fomaml': first_order_gradients,
  'joint': joint_gradients,
}


@tiers.parametrize('algorithm', REFERENCES, fast=1)
def test_a_step_goes_along_the_gradient_of_its_algorithm(algorithm):
  config = meta_learning.meta_learning().task
  config.override({'algorithm': algorithm, 'inner_learning_rate': RATE, 'model': {'hidden_sizes': SIZES[1:-1]}})
  task = task_factory.get_task(config)
  model, weights, tasks = task.build_model(), numpy_weights(), numpy_tasks()
  model.set_weights(weights)
  x, y, *_ = tasks[0]
  np.testing.assert_allclose(np.mean((model(x) - y) ** 2), loss_and_gradients(weights, x, y)[0], rtol=1e-5)

  optimizer = tf_keras.optimizers.legacy.SGD(1.0)
  tf.function(task.train_step)(as_batch(tasks, tf.float32), model, optimizer)
  found = [before - after for before, after in zip(weights, model.get_weights())]
  expected = REFERENCES[algorithm](weights, tasks)
  harness.assert_close(found, expected, rtol=1e-4, atol=1e-5)
  others = [REFERENCES[name](weights, tasks) for name in REFERENCES if name != algorithm]
  for other in others:  # The three can be distinguished here.
    assert max(np.abs(a - b).max() for a, b in zip(other, expected)) > 0.01


def test_an_evaluation_reports_the_error_after_each_number_of_steps():
  config = meta_learning.meta_learning().task
  config.override({'inner_learning_rate': RATE, 'model': {'hidden_sizes': SIZES[1:-1]}, 'eval_inner_steps': (0, 2, 3)})
  task = task_factory.get_task(config)
  model, weights, tasks = task.build_model(), numpy_weights(), numpy_tasks()
  model.set_weights(weights)
  loss, logs = task.forward(as_batch(tasks, tf.float32), model, training=False)
  assert {name: float(value) for name, value in logs.items()} == pytest.approx(
    {f'mse_after_{steps}': meta_loss(weights, tasks, steps) for steps in (0, 2, 3)}, rel=1e-4
  )
  assert float(loss) == float(logs['mse_after_3'])


# The tasks.


def training_config(**changes):
  config = meta_learning.meta_learning().task.train_data
  config.override({'global_batch_size': 4, 'seed': 3, **changes})
  return config


def batches(config, num, context=None):
  return [{k: v.numpy() for k, v in b.items()} for b in sinusoids.build_training_data(config, context).take(num)]


def test_the_points_lie_on_the_sinusoids_of_the_paper():
  tasks = sinusoids.draw(tf.constant([1, 2], tf.int64), 300, 6, 4)
  assert tasks['support_x'].shape == (300, 6, 1) and tasks['query_y'].shape == (300, 4, 1)
  found = []
  for task in range(300):
    x, y = (
      np.concatenate([tasks[f'{part}_{name}'][task, :, 0] for part in ('support', 'query')]).astype(np.float64)
      for name in 'xy'
    )
    assert np.abs(x).max() <= 5 and len(set(x)) == 10
    # amplitude * sin(x - phase) = a * sin(x) + b * cos(x).
    (a, b), *_ = np.linalg.lstsq(np.stack([np.sin(x), np.cos(x)], 1), y, rcond=None)
    np.testing.assert_allclose(a * np.sin(x) + b * np.cos(x), y, atol=1e-5)
    found.append((math.hypot(a, b), math.atan2(-b, a)))
  amplitudes, phases = np.transpose(found)
  # Uniform over the whole ranges: of 300 draws some are within 2 % of either end.
  for values, (low, high) in ((amplitudes, (0.1, 5.0)), (phases, (0.0, math.pi))):
    margin = 0.02 * (high - low)
    assert low - 1e-3 <= values.min() < low + margin and high - margin < values.max() <= high + 1e-3


def test_the_tasks_of_a_step_are_a_function_of_seed_and_step():
  straight = batches(training_config(), 5)
  with pipelines.starting_at(3) as start:
    resumed = batches(training_config(), 2)
  assert start.honoured
  np.testing.assert_equal(resumed, straight[3:])
  firsts = [b['support_x'].tobytes() for b in [*straight, *batches(training_config(seed=4), 5)]]
  assert len(set(firsts)) == 10


def test_replicas_share_a_batch():
  whole = batches(training_config(), 2)
  parts = [batches(training_config(), 2, tf.distribute.InputContext(2, pipeline, 2)) for pipeline in (0, 1)]
  both = batches(training_config(), 4, tf.distribute.InputContext(1, 0, 2))
  for step in (0, 1):
    for name, values in whole[step].items():
      np.testing.assert_array_equal(np.concatenate([parts[0][step][name], parts[1][step][name]]), values)
      np.testing.assert_array_equal(np.concatenate([both[2 * step][name], both[2 * step + 1][name]]), values)
  with pytest.raises(errors.UserError, match='task.train_data.global_batch_size: 4 tasks cannot be divided'):
    sinusoids.build_training_data(training_config(), tf.distribute.InputContext(1, 0, 3))


def test_the_tasks_of_evaluation_are_fixed_and_all_seen():
  config = meta_learning.meta_learning().task.validation_data
  assert config.num_tasks >= 600
  config.override({'num_tasks': 10, 'global_batch_size': 4})
  task = task_factory.get_task(meta_learning.meta_learning().task)
  seen = [np.concatenate([b['query_x'] for b in task.build_inputs(config)]) for _ in range(2)]
  assert seen[0].shape == (10, config.num_queries, 1) and len(np.unique(seen[0])) == seen[0].size
  np.testing.assert_array_equal(*seen)


def test_an_unknown_algorithm_is_refused():
  config = meta_learning.meta_learning().task
  config.override({'algorithm': 'reptile'})
  with pytest.raises(errors.UserError, match='task.algorithm: expected one of maml, fomaml, joint, got .reptile.'):
    task_factory.get_task(config)


# The whole, shrunk.


SMALL_EVALUATION = {'num_tasks': 100, 'global_batch_size': 100}


def run(folder, train_steps):
  params = exp_factory.get_exp_config('meta_learning')
  params.override(
    {
      'task': {'validation_data': SMALL_EVALUATION, 'train_data': {'seed': 0}, 'eval_inner_steps': [0, 1, 2]},
      'runtime': {'enable_xla': False},
      'trainer': {
        'train_steps': train_steps,
        'steps_per_loop': 50,
        'checkpoint_interval': 150,
        'validation_interval': 1000,
        'progress_bar': False,
      },
    }
  )
  tf_keras.utils.set_random_seed(0)
  strategy = harness.strategy('one')
  with strategy.scope():
    built = task_factory.get_task(params.task)
  model, logs = train_lib.run_experiment(strategy, built, 'train_and_eval', params, str(folder))
  return model.get_weights(), {key: float(value) for key, value in logs.items()}


@pytest.mark.slow
def test_training_learns_to_adapt_and_resumes_bit_for_bit(tmp_path):
  """XLA takes longer to compile than these steps to run; the fused shape is tested with the loop."""
  weights, logs = run(tmp_path / 'straight', 250)
  assert set(logs) == {'validation_loss', 'mse_after_0', 'mse_after_1', 'mse_after_2'}
  assert logs['validation_loss'] == pytest.approx(logs['mse_after_2'])
  config = meta_learning.meta_learning().task.validation_data
  config.override(SMALL_EVALUATION)
  mse_of_zero = np.mean(sinusoids.test_tasks(config)['query_y'] ** 2)
  assert logs['mse_after_1'] < 0.8 * mse_of_zero and logs['mse_after_1'] < logs['mse_after_0']
  (tmp_path / 'resumed').mkdir()
  for path in (tmp_path / 'straight').glob('ckpt-150*'):
    shutil.copy(path, tmp_path / 'resumed')
  resumed, resumed_logs = run(tmp_path / 'resumed', 250)
  for found, expected in zip(resumed, weights):
    np.testing.assert_array_equal(found, expected)
  assert resumed_logs == logs
  assert [event['step'] for event in small_run.events(tmp_path / 'resumed', 'restored')] == [150]


@pytest.mark.soak
@pytest.mark.parametrize('replicas, enable_xla', [('one', True), ('two', False)])
def test_a_compiled_step_and_one_on_two_replicas_resume_bit_for_bit(replicas, enable_xla, tmp_path):
  small = {'task': {'train_data': {'global_batch_size': 4}}}
  shrunk_run.assert_resumes_bit_for_bit(
    shrunk_run.make_params('meta_learning', small, enable_xla=enable_xla), tmp_path, replicas
  )
