"""The game CartPole-v1 in TensorFlow ops, many games at a time, for XLA.

A. Barto, R. Sutton, C. Anderson: Neuronlike adaptive elements that can solve difficult learning control problems, 1983.
Dynamics, limits and rewards are as in gymnasium's `CartPole-v1`, in float32 instead of float64.
"""

from collections.abc import Sequence
import math

import numpy as np
import tensorflow as tf

_GRAVITY, _CART_MASS, _POLE_MASS, _HALF_POLE_LENGTH = 9.8, 1.0, 0.1, 0.5
_FORCE, _SECONDS_PER_STEP = 10.0, 0.02
_MAX_POSITION, _MAX_ANGLE = 2.4, 12 * math.pi / 180
_INITIAL_RANGE = 0.05
MAX_EPISODE_STEPS = 500

State = dict[str, tf.Tensor]


class CartPole:
  """Games without an internal state: it is handed in and out.

  A state is {'observation': float32 [n, 4] (position, velocity, angle, angular velocity), 'elapsed': int32 [n]}.
  """

  observation_size = 4
  num_actions = 2
  reset_size = 4  # Random numbers that the start of an episode needs.
  is_tensorflow = True

  def state_specs(self) -> dict[str, tf.TensorSpec]:
    """The parts of the state of one game."""
    return {
      'observation': tf.TensorSpec([self.observation_size], tf.float32),
      'elapsed': tf.TensorSpec([], tf.int32),
    }

  def begin(self, seeds: Sequence[int]) -> State:
    """The state at the start of the episodes that gymnasium's `reset(seed=...)` begins, as numpy arrays."""
    starts = [
      np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))).uniform(
        -_INITIAL_RANGE, _INITIAL_RANGE, self.observation_size
      )
      for seed in seeds
    ]
    return {'observation': np.array(starts, np.float32), 'elapsed': np.zeros(len(seeds), np.int32)}

  def step(self, state: State, action: tf.Tensor, uniform: tf.Tensor) -> tuple[State, dict[str, tf.Tensor]]:
    """One step of every game; after the end of an episode the next one begins.

    Args:
      state: see the class.
      action: integers of shape [n]: 0 pushes the cart to the left, 1 to the right.
      uniform: float32 [n, 4] in [0, 1): where the next episode begins.

    Returns:
      (state, outcome): the next state, and {'reward': float32 [n], 'next_observation': float32 [n, 4], of the old
      episode still, 'terminated': bool [n], whether the pole fell or the cart left, 'truncated': bool [n], whether the
      time is over}.
    """
    observation = move(state['observation'], action)
    position, angle = observation[:, 0], observation[:, 2]
    terminated = tf.logical_or(tf.abs(position) > _MAX_POSITION, tf.abs(angle) > _MAX_ANGLE)
    elapsed = state['elapsed'] + 1
    truncated = elapsed >= MAX_EPISODE_STEPS
    ended = tf.logical_or(terminated, truncated)
    start = (2 * uniform - 1) * _INITIAL_RANGE
    next_state = {
      'observation': tf.where(ended[:, tf.newaxis], start, observation),
      'elapsed': tf.where(ended, 0, elapsed),
    }
    outcome = {
      'reward': tf.ones_like(position),
      'next_observation': observation,
      'terminated': terminated,
      'truncated': truncated,
    }
    return next_state, outcome


def move(observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
  """The equations of motion, by Euler's method: from [n, 4] and actions of shape [n] to [n, 4]."""
  x, x_dot, theta, theta_dot = tf.unstack(observation, axis=1)
  force = tf.where(action == 1, _FORCE, -_FORCE)
  cos, sin = tf.cos(theta), tf.sin(theta)
  total_mass, pole_moment = _CART_MASS + _POLE_MASS, _POLE_MASS * _HALF_POLE_LENGTH
  pushed = (force + pole_moment * tf.square(theta_dot) * sin) / total_mass
  theta_acceleration = (_GRAVITY * sin - cos * pushed) / (
    _HALF_POLE_LENGTH * (4 / 3 - _POLE_MASS * tf.square(cos) / total_mass)
  )
  x_acceleration = pushed - pole_moment * theta_acceleration * cos / total_mass
  change = tf.stack([x_dot, x_acceleration, theta_dot, theta_acceleration], axis=1)
  return observation + _SECONDS_PER_STEP * change
