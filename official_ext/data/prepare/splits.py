"""Splits of examples, by their names or by shares. No TensorFlow."""

from collections.abc import Sequence
import dataclasses
import hashlib
from typing import Any, Self

from official_ext.base import errors
from official_ext.base import json_types

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


@dataclasses.dataclass(frozen=True)
class Conversion:
  """The settings of a conversion, whatever it converts.

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

  def values(self) -> json_types.JsonObject:
    """The settings as JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

  @classmethod
  def of(cls, values: json_types.JsonMapping) -> Self:
    """The settings of JSON values, which may hold others."""
    given = {field.name: values[field.name] for field in dataclasses.fields(cls)}
    found: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return cls(**found)


def split_of(name: str) -> str:
  """The split that a file, folder or column is named after; '' if there is none."""
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
      share = draw(key, seed, 'split')
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
    split: sorted(found, key=lambda index: (draw(keys[index], seed, 'order'), keys[index]))
    for split, found in by_split.items()
    if found
  }


def draw(name: str, seed: int, purpose: str) -> float:
  """A number from 0 to below 1 that follows from a name."""
  digest = hashlib.sha256(f'{purpose}\0{seed}\0{name}'.encode('utf-8', 'surrogateescape')).digest()
  return int.from_bytes(digest[:7], 'big') / 2**56
