"""The result of a table of token pairs on the built-in answers: the reference of `sft`.

usage: python benchmarks/sft.py

The table has how often which token follows which among the tokens that training learns, smoothed by the frequency of
each: p(b | a) = (count(a, b) + k p(b)) / (count(a) + k), with the k that is best for the validation answers.
"""

import pathlib
import sys
import types
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from official.core import task_factory

import official_ext as ext
import registry_imports  # noqa: F401

_SMOOTHINGS = (1, 3, 10, 30)


def pairs(source: Any) -> np.ndarray:
  """Each learned token with the one before it: integers [n, 2]."""
  found = []
  for row in source.fetch(range(len(source))):
    labels = row['labels'][1:]
    is_learned = labels >= 0
    found.append(np.stack([row['input_ids'][:-1][is_learned], labels[is_learned]], axis=1))
  return np.concatenate(found)


def reference(train: np.ndarray, validation: np.ndarray, vocab_size: int) -> tuple[float, float]:
  """(nats a token, share of tokens that are the likeliest) of the best table, both of the validation's pairs."""
  alone = np.bincount(train[:, 1], minlength=vocab_size) + 1.0
  alone /= alone.sum()
  counts = np.zeros((vocab_size, vocab_size))
  np.add.at(counts, (train[:, 0], train[:, 1]), 1)
  found = []
  for smoothing in _SMOOTHINGS:
    table = (counts + smoothing * alone) / (counts.sum(axis=1, keepdims=True) + smoothing)
    nats = -np.log(table[validation[:, 0], validation[:, 1]]).mean()
    found.append((nats, (table[validation[:, 0]].argmax(axis=1) == validation[:, 1]).mean()))
  return min(found)


def main() -> None:
  """Prints both figures."""
  params = ext.parse_configuration(types.SimpleNamespace(experiment='sft', set=[]), print_return=False)
  task = task_factory.get_task(params.task)
  data = params.task.train_data, params.task.validation_data
  train, validation = (pairs(task.source(each)) for each in data)
  nats, accuracy = reference(train, validation, params.task.model.vocab_size)
  print(
    f'{len(train)} tokens to learn, {len(validation)} for validation: {nats:.3f} nats a token, {accuracy:.1%} right'
  )


if __name__ == '__main__':
  main()
