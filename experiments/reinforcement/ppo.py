"""Proximal policy optimization: the network, the advantages, the loss.

J. Schulman et al.: Proximal Policy Optimization Algorithms, 2017, https://arxiv.org/abs/1707.06347; with the details of
S. Huang et al.: The 37 Implementation Details of Proximal Policy Optimization, ICLR blog track, 2022.
"""

from collections.abc import Mapping, Sequence
import math

import tensorflow as tf
import tf_keras

from . import configs


def build_actor_critic(observation_size: int, num_actions: int, hidden_sizes: Sequence[int]) -> tf_keras.Model:
  """Two perceptrons, one for the policy and one for the value, with orthogonal initial weights.

  Returns:
    A model from observations, [b, observation_size], to {'logits': float32 [b, num_actions], 'value': float32 [b]}.
  """

  def dense(size, gain, **kwargs):
    return tf_keras.layers.Dense(size, kernel_initializer=tf_keras.initializers.Orthogonal(gain), **kwargs)

  observation = tf_keras.Input((observation_size,), name='observation')
  outputs = {}
  # A policy that begins near to uniform explores.
  for name, size, gain in (('logits', num_actions, 0.01), ('value', 1, 1.0)):
    features = observation
    for hidden_size in hidden_sizes:
      features = dense(hidden_size, math.sqrt(2), activation='tanh')(features)
    outputs[name] = dense(size, gain, dtype='float32', name=name)(features)
  outputs['value'] = tf.squeeze(outputs['value'], -1)
  return tf_keras.Model(observation, outputs, name='actor_critic')


def advantages_of(
  reward: tf.Tensor,
  value: tf.Tensor,
  next_value: tf.Tensor,
  terminated: tf.Tensor,
  truncated: tf.Tensor,
  discount: float,
  gae_lambda: float,
) -> tf.Tensor:
  """Generalized advantage estimation (https://arxiv.org/abs/1506.02438).

  Args:
    reward: float32 [t, n], like all that follows: steps, environments.
    value: of the state in which each step began.
    next_value: of the state to which it led, in the same episode.
    terminated: whether that was the end of the game, after which there is nothing to gain.
    truncated: whether the time was over: the game had continued.
    discount: of a reward that is one step away.
    gae_lambda: how much later steps count.

  Returns:
    float32 [t, n].
  """
  delta = reward + discount * tf.where(terminated, 0.0, next_value) - value
  carries_on = tf.where(tf.logical_or(terminated, truncated), 0.0, discount * gae_lambda)
  num_steps = delta.shape[0]

  def body(i, after, advantages):
    step = num_steps - 1 - i
    advantage = delta[step] + carries_on[step] * after
    return [i + 1, advantage, advantages.write(step, advantage)]

  advantages = tf.TensorArray(delta.dtype, num_steps, element_shape=delta.shape[1:])
  return tf.while_loop(
    lambda i, *_: i < num_steps, body, [0, tf.zeros_like(delta[0]), advantages], maximum_iterations=num_steps
  )[2].stack()


def log_probability(logits: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
  """The logarithm of the probability of actions: from [..., num_actions] and integers [...] to [...]."""
  return -tf.nn.sparse_softmax_cross_entropy_with_logits(action, logits)


def ppo_loss(
  outputs: Mapping[str, tf.Tensor], batch: Mapping[str, tf.Tensor], config: configs.PpoConfig
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
  """The clipped objective, the error of the values and the bonus for entropy.

  Args:
    outputs: of the model of `build_actor_critic`.
    batch: 'action': int32 [b]; 'log_probability': of the action when it was chosen, 'advantage', and 'target', the
      target of the value: float32 [b].
    config: a `PpoConfig`.

  Returns:
    (loss, logs): scalars.
  """
  log_ratio = log_probability(outputs['logits'], batch['action']) - batch['log_probability']
  ratio, advantage = tf.exp(log_ratio), batch['advantage']
  clipped = tf.clip_by_value(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
  policy_loss = -tf.reduce_mean(tf.minimum(ratio * advantage, clipped * advantage))
  value_loss = 0.5 * tf.reduce_mean(tf.square(outputs['value'] - batch['target']))
  probability, log_p = tf.nn.softmax(outputs['logits']), tf.nn.log_softmax(outputs['logits'])
  entropy = -tf.reduce_mean(tf.reduce_sum(probability * log_p, axis=-1))
  loss = policy_loss + config.value_loss_weight * value_loss - config.entropy_weight * entropy
  return loss, {
    'policy_loss': policy_loss,
    'value_loss': value_loss,
    'entropy': entropy,
    'approximate_kl': tf.reduce_mean(ratio - 1 - log_ratio),
    'clip_fraction': tf.reduce_mean(tf.cast(tf.abs(ratio - 1) > config.clip_ratio, tf.float32)),
  }
