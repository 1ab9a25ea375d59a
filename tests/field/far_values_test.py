"""Losses of preferences and rewards at values that float32 rounds: those of float64, with their gradients."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.grpo import rollouts
from official_ext.language.modeling import losses


def value_and_gradients(function, *values):
  variables = [tf.Variable(value, dtype=tf.float32) for value in values]
  with tf.GradientTape() as tape:
    found = function(*variables)
  return [float(found), *(float(gradient[0]) for gradient in tape.gradient(found, variables))]


@pytest.mark.parametrize('scale_rewards', ['group', 'batch'])
@pytest.mark.parametrize('jit_compile', [False, True])
@pytest.mark.parametrize('count', [3, 7, 8])
def test_equal_rewards_have_no_advantage(count, scale_rewards, jit_compile):
  advantages = tf.function(losses.group_advantages, jit_compile=jit_compile)
  for reward in (0.95, 0.1, -3.3, 1000.1, 1e6 + 0.1):
    rewards = np.full([2 * count], reward, np.float32)
    assert not np.any(advantages(rewards, count, scale_rewards))
    rollout = {'rewards': rewards[:, None], 'completion_mask': tf.ones([2 * count, 1]), 'is_truncated': rewards > 2e6}
    logs = rollouts.logs_of(rollout, tf.constant(rewards), ('a',), count)
    assert (logs['reward_std'], logs['frac_reward_zero_std']) == (0, 1) and logs['reward'] == rewards[0]
    rewards[1] += 1
    groups = rewards.astype(np.float64).reshape(2, count)
    deviation = groups.std(axis=1, ddof=1, keepdims=True) if scale_rewards == 'group' else groups.std(ddof=1)
    expected = (groups - groups.mean(axis=1, keepdims=True)) / (deviation + 1e-4)
    np.testing.assert_allclose(advantages(rewards, count, scale_rewards), expected.ravel(), rtol=1e-5)


@pytest.mark.parametrize('difference', [-30.0, -1.0, 1e-3, 0.999, 1.0, 5.0, 60.0, 88.0, 100.0, 150.0])
def test_a_far_reference(difference):
  """Of tokens that were sampled as the reference has them, or as the model does."""
  policy = [float(np.float32(-200 - difference))]
  difference = -200 - policy[0]
  exact = lambda old: np.exp(-200.0 - old) - (difference + 1) * np.exp(policy[0] - old)
  for old in (-200.0, policy[0]):
    found = value_and_gradients(lambda x, old=old: losses.kl_estimate(x, [-200.0], [old])[0], policy)
    expected = [exact(old), -difference * np.exp(policy[0] - old)]
    with np.errstate(over='ignore'):  # Beyond float32 the value is infinite; the gradient is not.
      np.testing.assert_allclose(found, np.float32(expected), rtol=2e-4, atol=1e-7)
  if difference < 88.5:
    found = value_and_gradients(lambda x: losses.kl_estimate(x, [-200.0])[0], policy)
    expected = [np.exp(difference) - difference - 1, 1 - np.exp(difference)]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize('chosen', [-30.0, -1.0, -0.69, -1e-3, -1e-6, -1e-8, -1e-11])
@pytest.mark.parametrize('rejected', [-2.0, -1e-3, -1e-8, -1e-11])
def test_an_answer_that_is_almost_certain(chosen, rejected):
  found = value_and_gradients(lambda *x: losses.orpo(*x, 1.0), [chosen], [rejected])
  log_odds = [x - np.log(-np.expm1(x)) for x in (chosen, rejected)]
  margin = log_odds[0] - log_odds[1]
  gradients = [-1 / -np.expm1(chosen), 1 / -np.expm1(rejected)]
  expected = [np.logaddexp(0, -margin), *(gradient / (1 + np.exp(margin)) for gradient in gradients)]
  np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_a_certain_answer_has_a_finite_loss_and_no_gradient():
  for chosen, rejected in ((0.0, -1.0), (-1.0, 0.0), (0.0, 0.0)):
    found = value_and_gradients(lambda *x: losses.orpo(*x, 1.0), [chosen], [rejected])
    assert np.isfinite(found).all()
    assert [gradient for gradient, x in zip(found[1:], (chosen, rejected)) if x == 0] == [0.0] * (
      chosen,
      rejected,
    ).count(0)
