"""The experiment reinforcement: the game against gymnasium's, PPO against numpy, rollouts, resuming, learning."""

import sys

import gymnasium
import numpy as np
from official.core import exp_factory
from official.core import task_factory
import pytest
import tensorflow as tf
import tf_keras

from experiments.reinforcement import cart_pole
from experiments.reinforcement import configs
from experiments.reinforcement import gym_environments
from experiments.reinforcement import ppo
from experiments.reinforcement import rollouts
from experiments.reinforcement import trainer as trainer_lib
from official_ext.base import errors
from official_ext.training.loop import train_lib
from tests import tiers
from tests.training.loop import harness

NUM_GAMES, NUM_STEPS = 4, 32


def tensors(state):
  return {name: tf.constant(value) for name, value in state.items()}


# The game.


def test_episodes_begin_as_those_of_gymnasium():
  environment = gymnasium.make('CartPole-v1')
  state = cart_pole.CartPole().begin(range(5))
  expected = [environment.reset(seed=seed)[0] for seed in range(5)]
  np.testing.assert_array_equal(state['observation'], np.array(expected))
  assert state['elapsed'].tolist() == [0] * 5


@pytest.mark.slow
def test_the_game_is_that_of_gymnasium_step_by_step():
  """800 random steps; every episode is followed from its start to its end, in float32 here and float64 there."""
  game, rng = cart_pole.CartPole(), np.random.default_rng(0)
  theirs = [gymnasium.make('CartPole-v1') for _ in range(NUM_GAMES)]
  for seed, environment in enumerate(theirs):
    environment.reset(seed=seed)
  state, step, num_ends = tensors(game.begin(range(NUM_GAMES))), tf.function(game.step), 0
  for _ in range(200):
    action, uniform = rng.integers(0, 2, NUM_GAMES), rng.random((NUM_GAMES, 4), np.float32)
    state, outcome = step(state, tf.constant(action), tf.constant(uniform))
    for index, environment in enumerate(theirs):
      observation, reward, terminated, truncated, _ = environment.step(action[index])
      np.testing.assert_allclose(outcome['next_observation'][index], observation, rtol=1e-5, atol=1e-5)
      found = [outcome[name][index].numpy() for name in ('reward', 'terminated', 'truncated')]
      assert found == [reward, terminated, truncated]
      if terminated:
        num_ends += 1
        start = state['observation'][index].numpy()
        np.testing.assert_allclose(start, 0.1 * uniform[index] - 0.05, atol=1e-7)
        environment.reset()
        environment.unwrapped.state = start.astype(np.float64)
      else:
        np.testing.assert_array_equal(state['observation'][index], outcome['next_observation'][index])
  assert num_ends > 10


def test_time_is_over_after_500_steps():
  game, environment = cart_pole.CartPole(), gymnasium.make('CartPole-v1')
  environment.reset(seed=0)
  environment._elapsed_steps = 498
  state = tensors(game.begin([0]))
  state['elapsed'] += 498
  for expected in (False, True):
    state, outcome = game.step(state, tf.constant([1]), tf.zeros([1, 4]))
    assert environment.step(1)[2:4] == (False, expected)
    assert (bool(outcome['terminated'][0]), bool(outcome['truncated'][0])) == (False, expected)
  assert state['elapsed'].numpy().tolist() == [0]
  np.testing.assert_allclose(state['observation'], -0.05 * np.ones((1, 4)))


# PPO.


def test_advantages_are_the_discounted_sums_of_errors():
  rng, discount, gae_lambda = np.random.default_rng(1), 0.9, 0.8
  reward, value, next_value = rng.normal(size=(3, 12, 5))
  terminated, truncated = rng.random((2, 12, 5)) < 0.15
  assert (terminated & ~truncated).any() and (truncated & ~terminated).any()
  expected = np.zeros((12, 5))
  for t, n in np.ndindex(12, 5):
    factor = 1.0
    for later in range(t, 12):
      after = 0.0 if terminated[later, n] else next_value[later, n]
      expected[t, n] += factor * (reward[later, n] + discount * after - value[later, n])
      factor *= discount * gae_lambda
      if terminated[later, n] or truncated[later, n]:
        break
  floats = [tf.constant(x, tf.float32) for x in (reward, value, next_value)]
  found = ppo.advantages_of(*floats, tf.constant(terminated), tf.constant(truncated), discount, gae_lambda)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def loss_case():
  rng = np.random.default_rng(2)
  logits, old_logits = rng.normal(size=(2, 40, 3))
  return logits, old_logits, rng.integers(0, 3, 40), *rng.normal(size=(3, 40))


def log_softmax(logits):
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_the_loss_is_that_of_the_paper():
  logits, old_logits, action, value, advantage, target = loss_case()
  config = configs.PpoConfig(clip_ratio=0.3, value_loss_weight=0.7, entropy_weight=0.02)
  chosen = lambda x: log_softmax(x)[np.arange(40), action]
  old = chosen(old_logits)
  outputs = {'logits': tf.Variable(logits), 'value': tf.Variable(value)}
  batch = dict(action=action.astype(np.int32), log_probability=old, advantage=advantage, target=target)
  with tf.GradientTape() as tape:
    loss, logs = ppo.ppo_loss(outputs, tensors(batch), config)
  ratio = np.exp(chosen(logits) - old)
  objective = np.minimum(ratio * advantage, np.clip(ratio, 0.7, 1.3) * advantage)
  p = np.exp(log_softmax(logits))
  expected = {
    'policy_loss': -objective.mean(),
    'value_loss': 0.5 * ((value - target) ** 2).mean(),
    'entropy': -(p * np.log(p)).sum(-1).mean(),
    'approximate_kl': (ratio - 1 - np.log(ratio)).mean(),
    'clip_fraction': (np.abs(ratio - 1) > 0.3).mean(),
  }
  assert {name: float(x) for name, x in logs.items()} == pytest.approx(expected, rel=1e-6)
  total = expected['policy_loss'] + 0.7 * expected['value_loss'] - 0.02 * expected['entropy']
  assert float(loss) == pytest.approx(total, rel=1e-6)

  # Of an action that has moved far enough, only the entropy is left in the gradient.
  gradient = tape.gradient(loss, outputs['logits']).numpy()
  done = np.where(advantage > 0, ratio > 1.3, ratio < 0.7)
  entropies = -(p * np.log(p)).sum(-1, keepdims=True)
  of_entropy = 0.02 * p * (np.log(p) + entropies) / 40
  one_hot = np.eye(3)[action]
  of_policy = -(advantage * ratio)[:, None] * (one_hot - p) / 40
  np.testing.assert_allclose(gradient, of_entropy + np.where(done[:, None], 0, of_policy), rtol=1e-6, atol=1e-9)
  assert 0 < done.sum() < 40


# Playing.


def make_environments(kind):
  return cart_pole.CartPole() if kind == 'tensorflow' else gym_environments.GymEnvironments('CartPole-v1')


def lively_policy():
  """Random weights, large enough that the policy is far from uniform."""
  tf_keras.utils.set_random_seed(3)
  model = ppo.build_actor_critic(4, 2, (8,))
  model.get_layer('logits').kernel.assign(500 * model.get_layer('logits').kernel)
  return model


@pytest.mark.slow
@tiers.parametrize('kind', ['tensorflow', 'gymnasium'], fast=['tensorflow'])
def test_a_rollout_records_what_happened(kind):
  environments, policy = make_environments(kind), lively_policy()
  state = tensors(environments.begin(range(NUM_GAMES)))
  running = tf.constant([7.0, 0.0, 0.0, 0.0])
  play = tf.function(
    lambda state: rollouts.roll_out(environments, policy, state, running, NUM_STEPS, tf.constant([5, 6], tf.int64))
  )
  out = tf.nest.map_structure(lambda x: x.numpy(), play(state))
  steps = out['steps']
  assert steps['observation'].shape == (NUM_STEPS, NUM_GAMES, 4) and steps['action'].shape == (NUM_STEPS, NUM_GAMES)
  np.testing.assert_array_equal(steps['observation'][0], state['observation'])
  flat = lambda name: steps[name].reshape(NUM_STEPS * NUM_GAMES, *steps[name].shape[2:])

  # The result of a step belongs to its own episode, even at its end.
  moved = cart_pole.move(flat('observation'), flat('action'))
  np.testing.assert_allclose(flat('next_observation'), moved, atol=1e-5)
  ended = steps['terminated'] | steps['truncated']
  assert ended.any()
  following = np.concatenate([steps['observation'][1:], out['state']['observation'][None]])
  np.testing.assert_array_equal((following == steps['next_observation']).all(-1), ~ended)
  assert np.abs(following[ended]).max() <= 0.05 + 1e-6

  outputs, after = policy(flat('observation')), policy(flat('next_observation'))
  logs = log_softmax(outputs['logits'].numpy())[np.arange(NUM_STEPS * NUM_GAMES), flat('action')]
  np.testing.assert_allclose(flat('log_probability'), logs, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(flat('value'), outputs['value'], rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(flat('next_value'), after['value'], rtol=1e-4, atol=1e-4)

  expected, finished = running.numpy().copy(), []
  for t in range(NUM_STEPS):
    expected += steps['reward'][t]
    finished += expected[ended[t]].tolist()
    expected[ended[t]] = 0
  np.testing.assert_array_equal(out['running_return'], expected)
  assert out['finished'].tolist() == [sum(finished), len(finished)]


def test_actions_are_drawn_with_their_probabilities():
  """1,280 draws: sums of (action - its probability), also weighted, are within 4 standard deviations of 0."""
  environments, policy = cart_pole.CartPole(), lively_policy()
  out = rollouts.roll_out(
    environments,
    policy,
    tensors(environments.begin(range(40))),
    tf.zeros([40]),
    NUM_STEPS,
    tf.constant([8, 9], tf.int64),
  )
  logits = policy(tf.reshape(out['steps']['observation'], [-1, 4]))['logits']
  p = np.exp(log_softmax(logits.numpy().astype(np.float64)))[:, 1]
  action = out['steps']['action'].numpy().ravel()
  assert p.std() > 0.1  # Not a fair coin.
  for weight in (np.ones_like(p), p - 0.5):  # The latter finds a policy that is sharper or flatter than it should be.
    assert abs((weight * (action - p)).sum()) < 4 * np.sqrt((weight**2 * p * (1 - p)).sum())


def always_right(observation):
  return {'logits': tf.tile([[0.0, 1.0]], [tf.shape(observation)[0], 1])}


@pytest.mark.parametrize('kind', ['tensorflow', 'gymnasium'])
def test_an_episode_of_the_evaluation_is_that_of_gymnasium(kind):
  environments, seeds = make_environments(kind), [3, 0, 11]
  environment, expected = gymnasium.make('CartPole-v1'), []
  for seed in seeds:
    environment.reset(seed=seed)
    length = 1
    while not environment.step(1)[2]:
      length += 1
    expected.append(length)
  play = tf.function(lambda state: rollouts.play_episodes(environments, always_right, state))
  assert play(tensors(environments.begin(seeds))).numpy().tolist() == expected


# The trainer.

SMALL = {
  'ppo': {'num_environments': NUM_GAMES, 'rollout_steps': 8, 'epochs': 2},  # 32 steps, 4 minibatches of an epoch's.
  'train_data': {'global_batch_size': 8, 'seed': 0},
  'model': {'hidden_sizes': [8]},
}
PER_ROLLOUT = 2 * 4


def small_params(kind='tensorflow', task=None, trainer=None, enable_xla=False):
  params = exp_factory.get_exp_config('reinforcement')
  params.override(
    {'task': {**SMALL, 'environment': kind}, 'trainer': trainer or {}, 'runtime': {'enable_xla': enable_xla}}
  )
  params.override({'task': task or {}})
  return params


def build(replicas='one', **changes):
  """A trainer, as a new process makes it."""
  params = small_params(**changes)
  tf_keras.utils.set_random_seed(0)
  strategy = harness.strategy(replicas)
  with strategy.scope():
    task = task_factory.get_task(params.task)
  return train_lib.build_trainer(strategy, task, params, None, train=True, evaluate=False)


def all_state(trainer, folder):
  path = trainer.checkpoint.write(str(folder / f'state-{int(trainer.global_step.numpy())}'))
  reader = tf.train.load_checkpoint(path)
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if not name.startswith('_')}


@pytest.mark.parametrize('enable_xla', [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_restored_trainer_resumes_bit_for_bit(enable_xla, tmp_path):
  straight = build(enable_xla=enable_xla)
  harness.train(straight, PER_ROLLOUT + 3)  # In the middle of a rollout's minibatches, games in the middle of episodes.
  path = straight.checkpoint.write(str(tmp_path / 'ckpt'))
  assert straight._memory.state['elapsed'].numpy().min() > 0
  logs = harness.train(straight, 2 * PER_ROLLOUT)
  expected = all_state(straight, tmp_path)
  assert any('memory/state/observation' in name for name in expected)

  resumed = build(enable_xla=enable_xla)
  with resumed.strategy.scope():
    resumed.checkpoint.read(path).expect_partial()
  resumed.checkpoint_restored()
  resumed_logs = harness.train(resumed, 2 * PER_ROLLOUT)
  found = all_state(resumed, tmp_path)
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes(), name
  assert {name: float(x) for name, x in resumed_logs.items()} == {name: float(x) for name, x in logs.items()}


@pytest.mark.soak
def test_environments_on_the_host_begin_anew_after_a_restore(tmp_path, capsys):
  first = build(kind='gymnasium')
  assert 'no checkpoint holds their state: a continued run begins new episodes' in capsys.readouterr().out
  harness.train(first, PER_ROLLOUT)
  path = first.checkpoint.write(str(tmp_path / 'ckpt'))
  harness.train(first, PER_ROLLOUT)
  straight, continued = harness.weights_of(first), []
  for trainer in (first, build(kind='gymnasium')):  # As a rollback does, and as a new process does.
    with trainer.strategy.scope():
      trainer.checkpoint.read(path).expect_partial()
    trainer.checkpoint_restored()
    assert trainer._memory.running_return.numpy().tolist() == [0] * NUM_GAMES
    observation = trainer._memory.state['observation'].numpy()
    assert 0 < np.abs(observation).max() <= 0.05 and len(np.unique(observation)) == observation.size
    harness.train(trainer, PER_ROLLOUT)
    continued.append(harness.weights_of(trainer))
  for a, b in zip(*continued):  # Two continuations agree with each other,
    np.testing.assert_array_equal(a, b)
  assert any((a != b).any() for a, b in zip(continued[0], straight))  # and not with the run that continued.


@pytest.mark.slow
def test_every_epoch_sees_every_step_once_and_then_the_policy_plays_again():
  trainer = build()
  trainer.prepare_training()
  take = tf.function(lambda: trainer.next_train_inputs(trainer._train_iter))
  rows = lambda array: sorted(map(tuple, np.asarray(array).tolist()))
  seen = []
  for _ in range(2):
    orders = []
    for _ in range(2):
      batches = [take() for _ in range(4)]
      advantage = [batch['advantage'].numpy() for batch in batches]
      np.testing.assert_allclose([(a.mean(), a.std()) for a in advantage], [(0, 1)] * 4, atol=1e-5)
      orders.append(np.concatenate([batch['observation'] for batch in batches]))
      assert rows(orders[-1]) == rows(trainer._memory.steps['observation'])
    assert (orders[0] != orders[1]).any()
    seen.append(rows(orders[0]))
  assert trainer._memory.iteration.numpy() == 1 and seen[0] != seen[1]


@pytest.mark.soak
def test_replicas_share_the_minibatches_of_one():
  trainers = [build(replicas) for replicas in ('one', 'two')]
  for trainer in trainers:
    harness.train(trainer, PER_ROLLOUT + 1)
  one, two = (trainer._memory for trainer in trainers)
  np.testing.assert_array_equal(one.steps['action'], two.steps['action'])
  np.testing.assert_allclose(one.state['observation'], two.state['observation'], rtol=1e-4, atol=1e-5)
  harness.assert_close(*map(harness.weights_of, trainers), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'task': {'train_data': {'global_batch_size': 5}}}, 'task.train_data.global_batch_size: 5 does not divide the 32'),
    ({'trainer': {'steps_per_execution': 0}}, 'trainer.steps_per_execution: 0: the policy plays between steps'),
    ({'trainer': {'gradient_accumulation_steps': 3}}, 'trainer.gradient_accumulation_steps: 3 does not divide the 8'),
    ({'kind': 'atari'}, "task.environment: expected 'tensorflow' or 'gymnasium', got 'atari'"),
    (
      {'task': {'environment_id': 'Acrobot-v1'}},
      'task.environment_id: Acrobot-v1: only CartPole-v1 has TensorFlow ops',
    ),
    ({'kind': 'gymnasium', 'task': {'environment_id': 'Cart-v1'}}, 'task.environment_id: Cart-v1: gymnasium says: '),
    ({'kind': 'gymnasium', 'task': {'environment_id': 'Pendulum-v1'}}, 'Pendulum-v1: expected discrete actions'),
  ],
)
def test_what_cannot_be_played_is_refused(changes, message):
  with pytest.raises(errors.UserError, match=message):
    build(**changes)


def test_where_gymnasium_is_missing_an_error_names_it(monkeypatch):
  monkeypatch.setitem(sys.modules, 'gymnasium', None)
  assert isinstance(build(), trainer_lib.PpoTrainer)
  with pytest.raises(errors.UserError, match=r'gymnasium is not installed; pip install .official-ext.reinforcement'):
    build(kind='gymnasium')


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind, train_steps, least', [('tensorflow', 448, 100), pytest.param('gymnasium', 448, 100, marks=pytest.mark.soak)]
)
def test_a_few_steps_teach_to_balance(kind, train_steps, least, tmp_path):
  """A policy that draws at random holds the pole for some 20 steps."""
  params = exp_factory.get_exp_config('reinforcement')
  params.override(
    {
      'task': {'environment': kind, 'train_data': {'seed': 0}, 'validation_data': {'global_batch_size': 30}},
      'trainer': {'train_steps': train_steps, 'steps_per_loop': 32, 'summary_interval': 1000, 'progress_bar': False},
      'runtime': {'enable_xla': False},
    }
  )
  tf_keras.utils.set_random_seed(0)
  strategy = harness.strategy('one')
  with strategy.scope():
    task = task_factory.get_task(params.task)
  _, logs = train_lib.run_experiment(strategy, task, 'train_and_eval', params, str(tmp_path))
  assert float(logs['num_episodes']) == 100
  assert float(logs['mean_return']) > least
  assert float(logs['best_mean_return']) == float(logs['mean_return']) == -float(logs['validation_loss'])


@pytest.mark.slow
def test_the_hosts_environments_feed_a_compiled_step():
  trainer = build(kind='gymnasium', enable_xla='auto')
  harness.train(trainer, PER_ROLLOUT + 1)
  assert trainer.plan.jit_compile and trainer._memory.iteration.numpy() == 1
