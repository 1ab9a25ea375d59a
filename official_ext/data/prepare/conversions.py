"""The common part of conversions to Model Garden's records: splits, names of classes, and settings of the trainer.

Splits are named by the input, or drawn by shares. The settings suit data sets of hundreds or thousands of examples.
"""

from collections.abc import Sequence
import dataclasses
import glob
import hashlib
import os
from typing import Any, Self

from official_ext.base import errors
from official_ext.base import json_values

TRAIN, VALIDATION, TEST = 'train', 'validation', 'test'
SPLITS = (TRAIN, VALIDATION, TEST)
_NAMES = {
  'train': TRAIN,
  'training': TRAIN,
  'validation': VALIDATION,
  'valid': VALIDATION,
  'val': VALIDATION,
  'dev': VALIDATION,
  'test': TEST,
}

WITHOUT_SPLIT = 'they are for training if the input names validation examples, else divided by shares'


@dataclasses.dataclass(frozen=True)
class Conversion:
  """The settings that all conversions have.

  Attributes:
    target: the task, by the name of --for.
    validation_share: the share of examples for validation, if the input does not name splits.
    test_share: the same for test.
    seed: of the splits and of the order.
  """

  target: str
  validation_share: float = 0.1
  test_share: float = 0.0
  seed: int = 0

  def values(self) -> json_values.JsonObject:
    """The settings as JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

  @classmethod
  def of(cls, values: json_values.JsonMapping) -> Self:
    """The settings of JSON values, which may hold others."""
    given = {field.name: values[field.name] for field in dataclasses.fields(cls)}
    found: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return cls(**found)


def split_of(name: str) -> str:
  """The split that a file, folder or column is named after; '' for none."""
  return _NAMES.get(name.lower(), '')


def divide(
  keys: Sequence[str],
  named: Sequence[str],
  validation_share: float,
  test_share: float,
  seed: int,
  noun: str,
) -> dict[str, list[int]]:
  """The examples of each split, in their order.

  The split of an example, and its place in it, follow from its key and the seed alone: other examples do not matter.

  Args:
    keys: of the examples. Equal keys have the same split.
    named: the split that the input names for each; '' if shares decide it. If any is for validation, the others are
      for training.
    validation_share: the share of examples for validation.
    test_share: the same for test.
    seed: of splits and order.
    noun: of the examples, for messages.

  Returns:
    Indices of examples, for each split that has any.

  Raises:
    UserError: a split that training needs has no example.
  """
  by_split: dict[str, list[int]] = {split: [] for split in SPLITS}
  names = set(named)
  for index, (key, given) in enumerate(zip(keys, named)):
    split = given if VALIDATION in names or given == TEST else ''
    if not split and VALIDATION in names:
      split = TRAIN
    elif not split:
      share = draw_number(key, seed, 'split')
      is_test = TEST not in names and share >= 1 - test_share
      split = VALIDATION if share < validation_share else TEST if is_test else TRAIN
    by_split[split].append(index)
  if not by_split[TRAIN]:
    raise errors.UserError(f'INPUT: no {noun} is left for training; lower --validation_share and --test_share')
  if not by_split[VALIDATION] and validation_share:
    raise errors.UserError(
      f'--validation_share: {validation_share}: none of {len(keys)} {noun}s is for validation; raise it, or set '
      'another --seed'
    )
  return {
    split: sorted(found, key=lambda index: (draw_number(keys[index], seed, 'order'), keys[index]))
    for split, found in by_split.items()
    if found
  }


def draw_number(name: str, seed: int, purpose: str) -> float:
  """A number from 0 to below 1 that follows from a name."""
  digest = hashlib.sha256(f'{purpose}\0{seed}\0{name}'.encode('utf-8', 'surrogateescape')).digest()
  return int.from_bytes(digest[:7], 'big') / 2**56


def read_labels(path: str) -> list[str]:
  """The names in a file, one on each line.

  Raises:
    UserError: it cannot be read, is empty, or has a name twice.
  """
  try:
    with open(os.path.expanduser(path), encoding='utf-8-sig') as f:
      names = [line.strip() for line in f if line.strip()]
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(f'--labels: {path}: cannot be read: {errors.reason_of(error)}') from error
  if not names or len(set(names)) < len(names):
    raise errors.UserError(f'--labels: {path}: expected a name on each line, each once')
  return names


def matching_paths(paths: Sequence[str]) -> list[str]:
  """The paths that words of the command line name: a pattern names several, unless a file has its name."""
  found: list[str] = []
  for path in map(os.path.expanduser, paths):
    found += [path] if os.path.exists(path) else sorted(glob.glob(path)) or [path]
  return found


_EPOCHS = 50
_EVALUATIONS = 20
_LEARNING_RATE = 0.001
BERT_RATE = 5e-5  # Of a BERT from a checkpoint: Devlin et al. 2019, arXiv:1810.04805, appendix A.3.
SMALL_ENCODER_RATE = 5e-4  # Of a small BERT from random weights.
FEW_STEPS = 5000


def trainer_settings(
  steps_per_epoch: int,
  learning_rate: float = _LEARNING_RATE,
  epochs: int = _EPOCHS,
  least_steps: int = 0,
) -> json_values.JsonObject:
  """A cosine schedule with a warm-up over a number of epochs, and 20 evaluations.

  Args:
    steps_per_epoch: the number of batches of the training data.
    learning_rate: at the end of the warm-up.
    epochs: how often each example is seen.
    least_steps: the least number of updates, for very small data.
  """
  interval = max(1, max(epochs * steps_per_epoch, least_steps) // _EVALUATIONS)
  train_steps = interval * _EVALUATIONS
  cosine = {'initial_learning_rate': learning_rate, 'decay_steps': train_steps}
  return {
    'train_steps': train_steps,
    'steps_per_loop': interval,
    'summary_interval': interval,
    'validation_interval': interval,
    'checkpoint_interval': interval,
    'optimizer_config': {
      'optimizer': {'type': 'adamw_experimental'},
      'learning_rate': {'type': 'cosine', 'cosine': cosine},
      'warmup': {'type': 'linear', 'linear': {'warmup_steps': max(1, train_steps // 20), 'warmup_learning_rate': 0.0}},
    },
  }


def norm_momentum(train_steps: int) -> float:
  """The momentum of batch normalisation: its statistics must follow within a short training."""
  return 0.9 if train_steps < FEW_STEPS else 0.99


def add_best_checkpoint(trainer_values: json_values.JsonObject, num_steps: int, metric: str) -> None:
  """Adds the number of evaluation steps, and the metric whose highest value selects the best checkpoint."""
  trainer_values['validation_steps'] = num_steps
  trainer_values['best_checkpoint_export_subdir'] = 'best_ckpt'
  trainer_values['best_checkpoint_eval_metric'] = metric
  trainer_values['best_checkpoint_metric_comp'] = 'higher'
