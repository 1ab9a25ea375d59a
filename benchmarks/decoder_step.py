"""Milliseconds a training step of a small decoder takes, under this library's Trainer and in PyTorch.

usage: python benchmarks/decoder_step.py [--rounds=7] [--steps=5] [--cores=2]

4 layers of 256, 4 heads, vocabulary 512, batches of 16 rows of 128 tokens, AdamW, float32. Both are the same function:
LayerNorm, learned positions, GELU, a separate head. The Trainer runs the step in the shape that its rule picks;
PyTorch runs eagerly, with fused query, key and value, its own fused attention and its own AdamW. Each has a separate
process and waits for its turn, so that a machine that grows slower slows both: the ratio counts,
round by round. On a machine that others use too, only the time that the processor has worked is worth something, and
only of one core (--cores=1): threads that wait for each other wait for others as well. PyTorch comes with the test
extra.
"""

import argparse
from collections.abc import Callable
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 512, 256, 4, 4, 128, 16
LEARNING_RATE = 1e-3
_ROWS = np.random.default_rng(0).integers(0, VOCABULARY, [BATCH, LENGTH + 1])


def of_trainer() -> Callable[[int], float]:
  """A function: number of steps -> the loss of the last one."""
  import official_ext as ext  # Before tensorflow.

  # isort: split
  from official.core import train_utils
  import tensorflow as tf

  class Task(ext.Task):
    """Next tokens of the same rows, again and again."""

    def build_model(self):
      return ext.LanguageModel(
        ext.DecoderConfig(
          vocab_size=VOCABULARY,
          hidden_size=WIDTH,
          intermediate_size=4 * WIDTH,
          num_hidden_layers=LAYERS,
          num_attention_heads=HEADS,
          num_key_value_heads=HEADS,
          max_position_embeddings=LENGTH,
          position_embedding_type='learned',
          norm_type='layer_norm',
          hidden_act='gelu',
          gated_mlp=False,
          mlp_bias=True,
        )
      )

    def build_inputs(self, params, input_context=None):
      return ext.build_dataset(ext.ArraySource({'ids': _ROWS.astype(np.int32)}), params, input_context)

    def build_metrics(self, training=True):
      return []

    def forward(self, inputs, model, training):
      logits = model(inputs['ids'][:, :-1], training=training)
      return ext.losses.label(logits, inputs['ids'][:, 1:]), {}

  params = ext.ExperimentConfig(
    task=ext.TaskConfig(train_data=ext.InMemoryDataConfig(global_batch_size=BATCH, is_training=True)),
    trainer=ext.TrainerConfig(
      train_steps=10**6,
      steps_per_loop=100,
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {'type': 'adamw_experimental', 'adamw_experimental': {'weight_decay': 0.01}},
          'learning_rate': {'type': 'constant', 'constant': {'learning_rate': LEARNING_RATE}},
        }
      ),
    ),
  )
  from official_ext.training.devices import distribute
  from official_ext.training.loop import base_trainer

  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  with strategy.scope():
    task = Task(params.task)
    trainer = train_utils.create_trainer(params, task, train=True, evaluate=False, trainer_cls=base_trainer.Trainer)

  def run(num_steps):
    with strategy.scope():
      return float(trainer.train(tf.constant(num_steps))['training_loss'])

  run.note = lambda: str(trainer.plan)
  return run


def of_torch() -> Callable[[int], float]:
  """The same in PyTorch."""
  import torch
  from torch import nn
  from torch.nn import functional

  class Block(nn.Module):
    def __init__(self):
      super().__init__()
      self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
      self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
      self.out = nn.Linear(WIDTH, WIDTH, bias=False)
      self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
      q, k, v = self.qkv(self.norm_1(x)).view(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
      y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
      x = x + self.out(y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
      return x + self.down(functional.gelu(self.up(self.norm_2(x))))

  class Decoder(nn.Module):
    def __init__(self):
      super().__init__()
      self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
      self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
      self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
      return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions.weight)))

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  model = Decoder()
  optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
  rows = torch.as_tensor(_ROWS)
  ids, labels = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

  def run(num_steps):
    for _ in range(num_steps):
      optimizer.zero_grad()
      loss = functional.cross_entropy(model(ids).view(-1, VOCABULARY), labels.view(-1))
      loss.backward()
      optimizer.step()
    return float(loss.detach())

  run.note = lambda: f'{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.2f} million weights'
  return run


_KINDS = {'trainer': of_trainer, 'torch': of_torch}


def serve(kind: str, cores: int) -> None:
  """Runs as many steps as each line of stdin says, and answers with milliseconds a step, on the wall and of work."""
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])  # Before the libraries count them.
  run = _KINDS[kind]()
  for line in sys.stdin:
    steps = int(line)
    start, start_of_work = time.perf_counter(), time.process_time()
    loss = run(steps)
    times = [1e3 * (time.perf_counter() - start) / steps, 1e3 * (time.process_time() - start_of_work) / steps]
    print(f'answer {json.dumps([*times, loss, run.note()])}', flush=True)


class _Process:
  """One kind, in a separate process."""

  def __init__(self, kind, cores):
    command = [sys.executable, __file__, f'--serve={kind}', f'--cores={cores}']
    self._process = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )

  def run(self, steps):
    """[milliseconds a step, of them worked, loss, note]."""
    self._process.stdin.write(f'{steps}\n')
    self._process.stdin.flush()
    for line in self._process.stdout:
      if line.startswith('answer '):
        return json.loads(line.removeprefix('answer '))
    raise SystemExit('A process has ended: run this file with --serve=trainer or --serve=torch to see why.')

  def close(self):
    self._process.stdin.close()
    self._process.wait()


def main() -> None:
  """Prints a line for each, and the ratio."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--steps', type=int, default=5, help='steps of each in a round')
  parser.add_argument('--cores', type=int, default=2, help='that each has while it runs')
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.serve:
    serve(arguments.serve, arguments.cores)
    return
  processes = {kind: _Process(kind, arguments.cores) for kind in _KINDS}
  found = {kind: [] for kind in processes}
  for process in processes.values():  # Compiles, one after the other.
    process.run(2)
  for _ in range(arguments.rounds):
    for kind, process in processes.items():
      found[kind].append(process.run(arguments.steps))
  for kind, answers in found.items():
    wall, worked, losses, notes = zip(*answers)
    print(
      f'{kind:<8} {statistics.median(wall):7.0f} ms a step ({min(wall):.0f} to {max(wall):.0f}), '
      f'{statistics.median(worked):7.0f} ms worked ({min(worked):.0f} to {max(worked):.0f}); '
      f'loss {losses[-1]:.3f}; {notes[-1]}'
    )
  for number, name in enumerate(('ratio', 'ratio of work')):
    pairs = [ours[number] / theirs[number] for ours, theirs in zip(*found.values())]
    print(f'{name:<14}{statistics.median(pairs):5.2f}  (median of the rounds; {min(pairs):.2f} to {max(pairs):.2f})')
  for process in processes.values():
    process.close()


if __name__ == '__main__':
  main()
