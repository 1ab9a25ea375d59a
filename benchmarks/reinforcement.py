"""How fast CartPole-v1 is played to learn from: in TensorFlow ops under XLA, and by gymnasium on the host.

usage: python benchmarks/reinforcement.py [--games=16,128] [--pairs=7]

Both play the same rollouts of the experiment `reinforcement`, with the same network, which draws the actions and values
the states. They take turns in one process; a figure is the median over its turns, a speed-up that over the pairs.
"""

import argparse
from collections.abc import Callable
import pathlib
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import official_ext  # noqa: F401  Before tensorflow.

# isort: split
import numpy as np
import tensorflow as tf

from experiments.reinforcement import cart_pole
from experiments.reinforcement import configs
from experiments.reinforcement import gym_environments
from experiments.reinforcement import ppo
from experiments.reinforcement import rollouts

KINDS = {
  'tensorflow, XLA': (cart_pole.CartPole, True),
  'tensorflow, graph': (cart_pole.CartPole, False),
  'gymnasium': (lambda: gym_environments.GymEnvironments('CartPole-v1'), False),
}


def player(environments: Any, model: Any, use_xla: bool, num_games: int, num_steps: int) -> Callable[[], None]:
  """A function that plays `num_steps` steps of `num_games` games, and continues where it stopped."""
  state = {name: tf.constant(value) for name, value in environments.begin(range(num_games)).items()}
  held = {'state': state, 'running_return': tf.zeros([num_games]), 'seed': 0}

  @tf.function(jit_compile=use_xla, autograph=False)
  def play(state, running_return, seed):
    policy = lambda observation: model(observation, training=False)
    out = rollouts.roll_out(environments, policy, state, running_return, num_steps, tf.stack([seed, seed]))
    return out['state'], out['running_return'], tf.reduce_sum(out['steps']['value'])

  def run():
    held['state'], held['running_return'], total = play(
      held['state'], held['running_return'], tf.constant(held['seed'], tf.int64)
    )
    held['seed'] += 1
    total.numpy()  # Waits.

  return run


def measure(num_games: int, num_steps: int, pairs: int) -> dict[str, list[float]]:
  """Steps of one game per second, of each kind, once for each of `pairs` turns."""
  config = configs.ActorCriticConfig()
  model = ppo.build_actor_critic(cart_pole.CartPole.observation_size, 2, config.hidden_sizes)
  players = {name: player(make(), model, use_xla, num_games, num_steps) for name, (make, use_xla) in KINDS.items()}
  rates: dict[str, list[float]] = {name: [] for name in players}
  for turn in range(pairs + 1):
    for name, play in players.items():
      start, repeats = time.perf_counter(), 0
      while not repeats or time.perf_counter() - start < 0.5:
        play()
        repeats += 1
      if turn:  # The first compiles.
        rates[name].append(repeats * num_games * num_steps / (time.perf_counter() - start))
  return rates


def main() -> None:
  """Measures, prints a table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--games', default='16,128')
  parser.add_argument('--pairs', default=7, type=int)
  arguments = parser.parse_args()
  num_steps = configs.PpoConfig().rollout_steps
  print(f'{"games":>6}  {"environment":<18}{"steps/s":>12}  {"times gymnasium":>16}')
  for num_games in map(int, arguments.games.split(',')):
    rates = measure(num_games, num_steps, arguments.pairs)
    for name, values in rates.items():
      speed_up = np.median(np.divide(values, rates['gymnasium']))
      print(f'{num_games:>6}  {name:<18}{np.median(values):>12,.0f}  {speed_up:>16.1f}', flush=True)


if __name__ == '__main__':
  main()
