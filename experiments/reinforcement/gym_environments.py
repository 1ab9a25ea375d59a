"""Environments of gymnasium, which run in Python on the host."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import official_ext as ext

State = dict[str, tf.Tensor]


class GymEnvironments:
  """Copies of one gymnasium environment with discrete actions, in a `SyncVectorEnv`.

  Their Python state is in no checkpoint. A state is {'observation': float32 [n, size]}: the agent's input.
  """

  reset_size = 0  # The environments draw their random numbers themselves.
  is_tensorflow = False

  def __init__(self, environment_id: str):
    """Makes no environment yet but one, to look at it.

    Args:
      environment_id: as `gymnasium.make` takes it.

    Raises:
      UserError: gymnasium is not installed, does not know the environment, or its actions are not discrete.
    """
    try:
      import gymnasium  # pylint: disable=g-import-not-at-top
    except ImportError as error:
      raise ext.UserError(
        "task.environment: gymnasium is not installed; pip install 'official-ext[reinforcement]', or set "
        'task.environment=tensorflow'
      ) from error
    self._id = environment_id
    try:
      environment = gymnasium.make(environment_id)
    except gymnasium.error.Error as error:
      message = ' '.join(str(error).split())
      raise ext.UserError(f'task.environment_id: {environment_id}: gymnasium says: {message}') from error
    actions, observations = environment.action_space, environment.observation_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or not isinstance(observations, gymnasium.spaces.Box):
      raise ext.UserError(
        f'task.environment_id: {environment_id}: expected discrete actions and observations that are arrays, it has '
        f'{actions} and {observations}'
      )
    self.num_actions = int(actions.n)
    self.observation_size = int(np.prod(observations.shape))
    self._environments: Any | None = None

  def state_specs(self) -> dict[str, tf.TensorSpec]:
    """The parts of the state of one environment."""
    return {'observation': tf.TensorSpec([self.observation_size], tf.float32)}

  def begin(self, seeds: Sequence[int]) -> State:
    """Begins an episode with each of the seeds; running episodes are given up. The state as numpy arrays."""
    import gymnasium  # pylint: disable=g-import-not-at-top

    numbers: list[int | None] = [int(seed) for seed in seeds]
    if not numbers:  # A replica for which no episode is left.
      return {'observation': np.zeros([0, self.observation_size], np.float32)}
    if self._environments is None or self._environments.num_envs != len(numbers):
      self._environments = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make(self._id)] * len(numbers),
        copy=False,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
      )
    observation, _ = self._environments.reset(seed=numbers)
    return {'observation': observation.reshape(len(numbers), -1).astype(np.float32)}

  def step(self, state: State, action: tf.Tensor, uniform: tf.Tensor) -> tuple[State, dict[str, tf.Tensor]]:
    """One step of every environment, called from a graph: see `cart_pole.CartPole.step`."""
    del uniform
    names = ('observation', 'reward', 'next_observation', 'terminated', 'truncated')
    types = (tf.float32, tf.float32, tf.float32, tf.bool, tf.bool)
    outcome = dict(zip(names, tf.numpy_function(self._step, [action], types)))
    for name, value in outcome.items():
      like = state['observation']
      value.set_shape(like.shape if name.endswith('observation') else like.shape[:1])
    return {'observation': outcome.pop('observation')}, outcome

  def _step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
    assert self._environments is not None
    observation, reward, terminated, truncated, info = self._environments.step(action)
    observation = observation.reshape(len(action), -1).astype(np.float32)
    last = observation
    if 'final_obs' in info:
      last = observation.copy()
      for index in np.flatnonzero(info['_final_obs']):
        last[index] = np.ravel(info['final_obs'][index])
    return observation, reward.astype(np.float32), last, terminated, truncated
