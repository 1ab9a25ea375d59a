"""Steps per second of this library's trainer and of Model Garden's, on the same task: digits_mlp, batch 64.

usage: python benchmarks/trainer_overhead.py [--rounds=10] [--steps=1000]

Both trainers live in one process and take turns, so that a machine that grows slower slows both. What is compared is
the ratio, round by round; absolute numbers drift from run to run. Training alone is timed, after both are compiled.
"""

import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import official_ext  # noqa: F401  Before tensorflow.

import tensorflow as tf

from experiments.digits_mlp import configs
from official.core import base_trainer as official_base_trainer
from official.core import task_factory, train_utils
from official_ext.core import base_trainer, config_definitions, distribute

STEPS_PER_LOOP = 500
GOAL = 1.8


def _trainer(trainer_cls):
  """A trainer of digits_mlp on one CPU, as train.py would make it."""
  params = config_definitions.upgrade(configs.digits_mlp())
  params.trainer.steps_per_loop = STEPS_PER_LOOP
  if trainer_cls is official_base_trainer.Trainer:
    params.runtime.enable_xla = False  # Model Garden's default; its trainer reads no 'auto'.
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  with strategy.scope():
    task = task_factory.get_task(params.task)
    return strategy, train_utils.create_trainer(params, task, train=True, evaluate=False, trainer_cls=trainer_cls)


def _steps_per_second(strategy, trainer, steps):
  start = time.perf_counter()
  with strategy.scope():
    for _ in range(steps // STEPS_PER_LOOP):
      trainer.train(tf.constant(STEPS_PER_LOOP))
  return steps / (time.perf_counter() - start)


def main() -> None:
  """Prints one line for each trainer, and the ratio."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=10)
  parser.add_argument('--steps', type=int, default=1000, help='steps of each trainer in a round')
  arguments = parser.parse_args()
  trainers = {
    'official': _trainer(official_base_trainer.Trainer),
    'official_ext': _trainer(base_trainer.Trainer),
  }
  rates = {name: [] for name in trainers}
  for round_number in range(arguments.rounds + 1):
    for name, (strategy, trainer) in trainers.items():
      rate = _steps_per_second(strategy, trainer, arguments.steps)
      if round_number:  # The first round compiles.
        rates[name].append(rate)
  for name, values in rates.items():
    print(f'{name:<14} {statistics.median(values):8.0f} steps/s  (median of {len(values)}; '
          f'{min(values):.0f} to {max(values):.0f})')
  print(f'step           {trainers["official_ext"][1].plan}')
  pairs = [ours / theirs for ours, theirs in zip(rates['official_ext'], rates['official'])]
  print(f'ratio          {statistics.median(pairs):8.2f}  (median of the rounds; {min(pairs):.2f} to {max(pairs):.2f}; '
        f'goal {GOAL})')


if __name__ == '__main__':
  main()
