"""Playing: rollouts to learn from, and whole episodes to evaluate a policy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

import official_ext as ext

from . import ppo

Policy = Callable[[tf.Tensor], dict[str, tf.Tensor]]  # From observations to the outputs of the model.


def roll_out(
  environments: Any,
  policy: Policy,
  state: Mapping[str, tf.Tensor],
  running_return: tf.Tensor,
  num_steps: int,
  seed: tf.Tensor,
) -> dict[str, tf.Tensor]:
  """Plays by drawing actions from the policy.

  Args:
    environments: a `cart_pole.CartPole` or a `gym_environments.GymEnvironments`, that plays n games.
    policy: chooses, and values.
    state: where the games stand.
    running_return: the rewards so far of the episodes that are being played: float32 [n].
    num_steps: steps of each game, t.
    seed: int64 tensor of shape [2]: of all draws.

  Returns:
    'state', 'running_return': after the last step. 'finished': the sum of the returns of the episodes that ended, and
    their number: float32 [2]. 'steps': the transitions: 'observation', 'next_observation' float32 [t, n, size], and of
    shape [t, n] 'action' int32, 'log_probability', 'value', 'next_value', 'reward' float32, 'terminated', 'truncated'.
  """
  num_games = state['observation'].shape[0]
  gumbel = _gumbel_noise([num_steps, num_games, environments.num_actions], seed)
  resets = ext.keyed_uniform([num_steps, num_games, environments.reset_size], tf.stack([seed[0] + 1, seed[1]]))

  def play_step(step, state):
    outputs = policy(state['observation'])
    # The largest of logits with Gumbel noise is a draw from their softmax.
    action = tf.argmax(outputs['logits'] + gumbel[step], axis=-1, output_type=tf.int32)
    next_state, outcome = environments.step(state, action, resets[step])
    return next_state, {
      'observation': state['observation'],
      'action': action,
      'log_probability': ppo.log_probability(outputs['logits'], action),
      'value': outputs['value'],
      **outcome,
    }

  arrays = _step_arrays(num_steps, num_games, environments.observation_size)

  def body(step, state, running_return, finished, arrays):
    state, values = play_step(step, state)
    running_return += values['reward']
    ended = tf.cast(tf.logical_or(values['terminated'], values['truncated']), tf.float32)
    finished += tf.stack([tf.reduce_sum(ended * running_return), tf.reduce_sum(ended)])
    arrays = {name: array.write(step, values[name]) for name, array in arrays.items()}
    return [step + 1, state, (1 - ended) * running_return, finished, arrays]

  _, state, running_return, finished, arrays = tf.while_loop(
    lambda step, *_: step < num_steps,
    body,
    [tf.constant(0), state, running_return, tf.zeros([2]), arrays],
    maximum_iterations=num_steps,
  )
  steps = {name: array.stack() for name, array in arrays.items()}
  flat = tf.reshape(steps['next_observation'], [num_steps * num_games, environments.observation_size])
  steps['next_value'] = tf.reshape(policy(flat)['value'], [num_steps, num_games])
  return {'state': state, 'running_return': running_return, 'finished': finished, 'steps': steps}


def _gumbel_noise(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
  # Numbers in (0, 1): the logarithms are finite.
  uniform = ext.keyed_uniform(shape, seed) + 2.0**-25
  uniform = tf.minimum(uniform, 1 - 2.0**-24)  # In float32 the largest is rounded to 1.
  return -tf.math.log(-tf.math.log(uniform))


def _step_arrays(num_steps: int, num_games: int, observation_size: int) -> dict[str, tf.TensorArray]:
  """Arrays for the results of each step of `num_games` games."""
  floats = dict.fromkeys(('log_probability', 'value', 'reward'), ([num_games], tf.float32))
  flags = dict.fromkeys(('terminated', 'truncated'), ([num_games], tf.bool))
  observations = dict.fromkeys(('observation', 'next_observation'), ([num_games, observation_size], tf.float32))
  specs = {**observations, 'action': ([num_games], tf.int32), **floats, **flags}
  return {name: tf.TensorArray(dtype, num_steps, element_shape=shape) for name, (shape, dtype) in specs.items()}


def play_episodes(environments: Any, policy: Policy, state: Mapping[str, tf.Tensor]) -> tf.Tensor:
  """Plays one episode of every game to its end, by the likeliest action.

  Args:
    environments: as in `roll_out`.
    policy: chooses.
    state: at the starts of n episodes.

  Returns:
    The sums of their rewards: float32 [n].
  """
  like = state['observation'][:, 0]
  no_resets = tf.zeros([tf.shape(like)[0], environments.reset_size])

  def body(state, returns, playing):
    action = tf.argmax(policy(state['observation'])['logits'], axis=-1, output_type=tf.int32)
    state, outcome = environments.step(state, action, no_resets)
    returns += tf.where(playing, outcome['reward'], 0.0)
    ended = tf.logical_or(outcome['terminated'], outcome['truncated'])
    return [state, returns, tf.logical_and(playing, tf.logical_not(ended))]

  return tf.while_loop(
    lambda *args: tf.reduce_any(args[-1]), body, [state, tf.zeros_like(like), tf.ones_like(like, tf.bool)]
  )[1]
