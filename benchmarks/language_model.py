"""A decoder here and the same one in PyTorch: the results of both in the experiment `language_model`, in bits per byte.

usage: python benchmarks/language_model.py [--steps=800] [--folder=runs/language_model_benchmark] [--set=FIELD=VALUE]

Both begin with the same weights: transformers loads the run's first model, written by `pretrained.save`. Both
see the same rows of tokens in the same order, and take the same steps: AdamW, its schedule, clipping. PyTorch computes
eagerly, as it comes. Our run is kept in FOLDER/run, and is not trained again if it exists. Needs the extra `test`.

Beside them what is known without a network: 6-grams of bytes, each interpolated with the shorter one (Witten and Bell,
1991), and xz -9e, which has packed the training text first: it finds what topics have word by word from each other.
"""

import argparse
import collections
from collections.abc import Iterator, Mapping
import lzma
import math
import pathlib
import sys
import time
import types
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import official_ext as ext  # Before tensorflow.

# isort: split
import numpy as np
from official.modeling import optimization
import torch
import transformers

from experiments.language_model import configs
from experiments.language_model import task as task_lib
from official_ext.training.writers import writers

_REPORTED = 50  # Steps.


def parameters(steps: int, settings: list[str]) -> ext.ExperimentConfig:
  """The experiment's configuration for a training of so many steps: its schedule is as much shorter."""
  whole = configs.language_model().trainer.train_steps
  shorter = [
    f'train_steps={steps}',
    f'decay_steps={steps}',
    f'warmup_steps={max(1, 40 * steps // whole)}',
    f'validation_interval={steps}',
    f'checkpoint_interval={steps}',
    f'summary_interval={min(_REPORTED, steps)}',
    f'steps_per_loop={min(_REPORTED, steps)}',
  ]
  flags = types.SimpleNamespace(experiment='language_model', set=[*(shorter if steps != whole else ()), *settings])
  return ext.parse_configuration(flags, print_return=False)


def train_ours(params: ext.ExperimentConfig, folder: pathlib.Path) -> dict[str, float]:
  """Trains by the library; writes the first weights to FOLDER/initial."""

  class Task(task_lib.LanguageModelTask):
    def initialize(self, model):
      super().initialize(model)
      ext.pretrained.save(model, str(folder / 'initial'))

  strategy = ext.get_strategy(params.runtime)
  with strategy.scope():
    task = Task(params.task)
  run = folder / 'run'
  ext.run_experiment(strategy, task, 'train_and_eval', params, str(run))
  events = writers.read_events(str(run / 'events.jsonl'))
  trained = [event for event in events if event['event'] == 'train']
  evaluated = [event for event in events if event['event'] == 'eval']
  return {
    'seconds a step': 1 / float(np.median([event['steps_per_second'] for event in trained])),
    'training loss': trained[-1]['training_loss'],
    'bits per byte': evaluated[-1]['bits_per_byte'],
  }


class Reference:
  """The same decoder in PyTorch, and the same steps."""

  def __init__(self, params: ext.ExperimentConfig, folder: pathlib.Path):
    self._task = task_lib.LanguageModelTask(params.task)
    self._params = params
    self.model = transformers.AutoModelForCausalLM.from_pretrained(
      folder / 'initial', dtype=torch.float32, attn_implementation='eager'
    )
    optimizer = params.trainer.optimizer_config.optimizer.get()
    self._clip = optimizer.global_clipnorm
    self._optimizer = torch.optim.AdamW(
      self.model.parameters(),
      betas=(optimizer.beta_1, optimizer.beta_2),
      eps=optimizer.epsilon,
      weight_decay=optimizer.weight_decay,
    )
    self._learning_rate = optimization.OptimizerFactory(params.trainer.optimizer_config).build_learning_rate()

  def _losses(self, batch: Mapping[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """(-log of the probability of each token that counts, how many there are)."""
    arrays = {name: torch.from_numpy(array.astype(np.int64)) for name, array in batch.items()}
    segments = arrays['segment_ids']
    length = segments.shape[1]
    sees = (segments[:, :, None] == segments[:, None]) & torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.where(sees, 0.0, torch.finfo(torch.float32).min)[:, None]
    logits = self.model(arrays['input_ids'], attention_mask=mask, position_ids=arrays['position_ids']).logits[:, :-1]
    labels = arrays['labels'][:, 1:]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction='sum')
    return losses, (labels >= 0).sum()

  def train(self, steps: int) -> dict[str, float]:
    """Takes the steps, then evaluates."""
    seconds, losses = [], []
    for step, batch in zip(range(steps), self._batches(self._params.task.train_data)):
      start = time.perf_counter()
      for group in self._optimizer.param_groups:
        group['lr'] = float(self._learning_rate(step))
      total, count = self._losses(batch)
      loss = total / count
      self._optimizer.zero_grad()
      loss.backward()
      torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
      self._optimizer.step()
      losses.append(loss.item())
      seconds.append(time.perf_counter() - start)
      if (step + 1) % _REPORTED == 0:
        print(f'PyTorch {step + 1}/{steps}  training_loss {np.mean(losses[-_REPORTED:]):.4g}', flush=True)
    return {
      'seconds a step': float(np.median(seconds)),
      'training loss': float(np.mean(losses[-_REPORTED:])),
      'bits per byte': self.bits_per_byte(),
    }

  @torch.no_grad()
  def bits_per_byte(self) -> float:
    """Of the validation data."""
    found = [self._losses(batch) for batch in self._batches(self._params.task.validation_data)]
    mean = sum(float(total) for total, _ in found) / sum(int(count) for _, count in found)
    return mean / math.log(2) * self._task.tokens_per_byte(self._params.task.validation_data)

  def _batches(self, params: Any) -> Iterator[Mapping[str, np.ndarray]]:
    return self._task.build_inputs(params).as_numpy_iterator()


def bits_of_n_grams(train: bytes, text: bytes, order: int = 6) -> float:
  """Bits per byte of a text, by the `order` - 1 bytes before each and their successors in the training text."""
  followers: dict[bytes, collections.Counter[int]] = collections.defaultdict(collections.Counter)
  for end in range(len(train)):
    for length in range(min(order, end + 1)):
      followers[train[end - length : end]][train[end]] += 1
  bits = 0.0
  for end in range(len(text)):
    probability = 1 / 256
    for length in range(min(order, end + 1)):
      counts = followers.get(text[end - length : end])
      if counts:
        probability = (counts[text[end]] + len(counts) * probability) / (counts.total() + len(counts))
    bits -= math.log2(probability)
  return bits / len(text)


def bits_of_xz(train: bytes, text: bytes) -> float:
  """Bits per byte that a text adds to the packed training text."""
  size = lambda data: len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
  return 8 * (size(train + text) - size(train)) / len(text)


def main() -> None:
  """Trains both, prints a table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--steps', default=configs.language_model().trainer.train_steps, type=int)
  parser.add_argument('--folder', default='runs/language_model_benchmark', type=pathlib.Path)
  parser.add_argument('--set', default=[], action='append')
  arguments = parser.parse_args()
  params = parameters(arguments.steps, arguments.set)
  rows = {
    'official_ext': train_ours(params, arguments.folder),
    'PyTorch': Reference(params, arguments.folder).train(arguments.steps),
  }
  print(f'\n{arguments.steps} steps   {"seconds a step":>16}{"training loss":>16}{"bits per byte":>16}')
  for name, values in rows.items():
    print(f'{name:<12}' + ''.join(f'{value:>16.4g}' for value in values.values()), flush=True)
  texts = [''.join(part['text'] for part in ext.python_topics.documents(split)) for split in ('train', 'validation')]
  for name, bits_of in (('6-grams', bits_of_n_grams), ('xz -9e', bits_of_xz)):
    print(f'{name:<12}{bits_of(*(text.encode() for text in texts)):>48.4g}', flush=True)


if __name__ == '__main__':
  main()
