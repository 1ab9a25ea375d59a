"""GRPO: a completion that no reward function scores neither teaches nor moves its group's mean: TRL's formula."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.grpo import rollouts
from official_ext.language.modeling import losses

NAN = float('nan')


def expected(rewards, scale):
  """TRL 1.16's advantages of [groups, generations], NaN for unscored ones."""
  with np.errstate(all='ignore'):
    mean = np.array([[np.nanmean(group) if np.isfinite(group).any() else NAN] for group in rewards])
    known = rewards if scale == 'group' else [rewards.reshape(-1)] * len(rewards)
    deviation = np.array([[np.nanstd(group, ddof=1) if np.isfinite(group).sum() > 1 else NAN] for group in known])
  found = rewards - mean
  return np.nan_to_num(found if scale == 'none' else found / (deviation + 1e-4), nan=0.0)


@pytest.mark.parametrize('scale', ['group', 'batch', 'none'])
def test_advantages_are_those_of_trl(scale):
  rewards = np.array([[5, NAN, 6, NAN], [NAN] * 4, [1, 2, 3, 5], [NAN, 2, NAN, NAN]], np.float32)
  found = losses.group_advantages(tf.constant(rewards.reshape(-1)), 4, scale)
  np.testing.assert_allclose(tf.reshape(found, [4, 4]), expected(rewards, scale), atol=1e-4)


def test_an_absent_reward_is_not_zero_in_logs_and_weights():
  rewards = tf.constant([[1.0, NAN], [NAN, NAN], [2.0, 4.0], [NAN, 3.0]])
  total = rollouts.weighted(rewards, (1.0, 0.5))
  np.testing.assert_allclose(total, [1.0, NAN, 4.0, 1.5])
  rollout = {'rewards': rewards, 'completion_mask': tf.ones([4, 2]), 'is_truncated': tf.zeros([4], tf.bool)}
  logs = rollouts.logs_of(rollout, total, ('a', 'b'), 2)
  np.testing.assert_allclose(logs['reward'], np.mean([1.0, 4.0, 1.5]), rtol=1e-6)
  np.testing.assert_allclose([logs['rewards/a'], logs['rewards/b']], [1.5, 3.5])
  np.testing.assert_allclose(logs['reward_std'], np.mean([0.0, np.std([4.0, 1.5], ddof=1)]), rtol=1e-6)
