"""Steps per second of this library's trainer and of Model Garden's, on the same task: digits_mlp, batch 64.

usage: python benchmarks/trainer_overhead.py [--rounds=10] [--steps=1000]

Model Garden's trainer runs twice: on this library's input, and on a pipeline of the kind that Model Garden's tasks have
(tf.data: shuffle, repeat, batch, prefetch, from memory). All live in one process and take turns, so that a machine that
grows slower slows all. The ratio is compared, round by round; absolute numbers drift from run to run. Training
alone is timed, after all are compiled.
"""

import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import official_ext  # noqa: F401  Before tensorflow.

# isort: split
from official.core import base_trainer as official_base_trainer
from official.core import train_utils
import tensorflow as tf

from experiments.digits_mlp import configs
from experiments.digits_mlp import task as digits_mlp
from official_ext.training.config import definitions
from official_ext.training.devices import distribute
from official_ext.training.loop import base_trainer

STEPS_PER_LOOP = 500
GOAL = 1.8


class PipelineTask(digits_mlp.DigitsMlpTask):
  """The same task on a pipeline of Model Garden's kind."""

  def build_inputs(self, params, input_context=None):
    """Batches of shuffled examples, without end: see base class."""
    examples = digits_mlp.examples(is_training=True)
    dataset = tf.data.Dataset.from_tensor_slices(examples).shuffle(len(examples['label']), seed=params.seed)
    return dataset.repeat().batch(params.global_batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _trainer(trainer_cls, task_cls=digits_mlp.DigitsMlpTask):
  """A trainer of digits_mlp on one CPU, as train.py would make it."""
  params = definitions.upgrade(configs.digits_mlp())
  params.trainer.steps_per_loop = STEPS_PER_LOOP
  if trainer_cls is official_base_trainer.Trainer:
    params.runtime.enable_xla = False  # Model Garden's default; its trainer reads no 'auto'.
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  with strategy.scope():
    task = task_cls(params.task)
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
    'official, tf.data': _trainer(official_base_trainer.Trainer, PipelineTask),
    'official_ext': _trainer(base_trainer.Trainer),
  }
  rates = {name: [] for name in trainers}
  for round_number in range(arguments.rounds + 1):
    for name, (strategy, trainer) in trainers.items():
      rate = _steps_per_second(strategy, trainer, arguments.steps)
      if round_number:  # The first round compiles.
        rates[name].append(rate)
  for name, values in rates.items():
    print(
      f'{name:<22} {statistics.median(values):8.0f} steps/s  (median of {len(values)}; '
      f'{min(values):.0f} to {max(values):.0f})'
    )
  print(f'step                   {trainers["official_ext"][1].plan}')
  for name in ('official', 'official, tf.data'):
    pairs = [ours / theirs for ours, theirs in zip(rates['official_ext'], rates[name])]
    print(
      f'ratio to {name:<17}{statistics.median(pairs):5.2f}  (median of the rounds; {min(pairs):.2f} to '
      f'{max(pairs):.2f}; goal {GOAL})'
    )


if __name__ == '__main__':
  main()
