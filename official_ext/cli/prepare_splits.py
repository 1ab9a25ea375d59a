"""The flags of official-ext prepare --for=TARGET that images and texts share. No TensorFlow."""

import argparse
from collections.abc import Mapping
import os
import shlex
from typing import Any

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.data.prepare import preparing
from official_ext.data.prepare import splits

FLAGS = ('validation_input', 'test_input', 'validation_share', 'test_share', 'seed', 'labels')


def add_arguments(group: Any) -> None:
  """Adds the flags; without --for they are refused."""
  group.add_argument('--validation_input', metavar='PATH', help='validation examples, in the same format as INPUT')
  group.add_argument('--test_input', metavar='PATH', help='test examples, in the same format')
  share = 'of examples for validation, chosen by a hash; default: 0.1, unless the input has splits'
  group.add_argument('--validation_share', type=_share, metavar='SHARE', help=share)
  group.add_argument('--test_share', type=_share, metavar='SHARE', help='the same for test; default: 0')
  group.add_argument('--seed', type=arguments_lib.at_least(0), metavar='N', help='of splits and order; default: 0')
  labels = 'the names of the classes, one on each line, in the order of their numbers; other classes are dropped'
  group.add_argument('--labels', metavar='FILE', help=labels)


def given(known: argparse.Namespace, names: tuple[str, ...], others: tuple[str, ...]) -> dict[str, Any]:
  """The flags that were given, by name.

  Args:
    known: the parsed arguments.
    names: of the flags of this target.
    others: those of other targets, which are refused.

  Raises:
    UserError: it names the first wrong flag.
  """
  for name in others:
    if getattr(known, name) is not None:
      raise errors.UserError(f'--{name}: has no meaning for --for={known.target}')
  if known.split:
    raise errors.UserError('--split: with --for all splits are converted; name one by INPUT and --validation_input')
  return {name: getattr(known, name) for name in (*FLAGS, *names) if getattr(known, name) is not None}


def inputs_of(flags: dict[str, Any], inputs: list[str]) -> dict[str, list[str]]:
  """The paths by split; '' for INPUT. Takes the flags that name paths out of `flags`.

  Raises:
    UserError: the flags contradict each other.
  """
  found = {'': inputs}
  for split in (splits.VALIDATION, splits.TEST):
    path = flags.pop(f'{split}_input', None)
    if path:
      found[split] = [path]
  if splits.VALIDATION in found and 'validation_share' in flags:
    raise errors.UserError('--validation_share: --validation_input names the validation examples; give one of them')
  if flags.get('validation_share', 0.1) + flags.get('test_share', 0.0) >= 1:
    raise errors.UserError('--validation_share: no example is left for training; the shares must sum to less than 1')
  return found


def counted(count: int, noun: str, nouns: str = '') -> str:
  """A number and its noun: '1 image', '2 images'; `nouns` is an irregular plural."""
  return f'{count} {noun if count == 1 else nouns or noun + "s"}'


def print_summary(
  done: preparing.Prepared,
  output: str,
  noun: str,
  counts: Mapping[str, int],
  experiment: str,
  *more: str,
  hint: str = '',
) -> None:
  """Prints the counts of a conversion, and the command that trains on it.

  Args:
    done: the conversion's result.
    output: its folder.
    noun: 'image' or 'example'.
    counts: their number by split.
    experiment: the name of Model Garden's experiment.
    *more: further words of the command.
    hint: follows "To train on them".
  """
  there = f', {done.num_there} of which existed' if done.num_there else ''
  of_splits = ', '.join(f'{count} {split}' for split, count in counts.items())
  shards = f'{done.num_bytes} bytes in {counted(len(done.plan.shards), "shard")}{there}'
  print(f'{output}: {counted(sum(counts.values()), noun)} ({of_splits}), {shards}')
  words = [
    'official-ext train',
    f'--experiment={experiment}',
    shlex.quote(f'--config_file={done.config_path}'),
    f'--mode={"train_and_eval" if splits.VALIDATION in counts else "train"}',
    shlex.quote(f'--model_dir=runs/{os.path.basename(os.path.abspath(output))}'),
    *more,
  ]
  print(f'To train on them{hint}:')
  print(f'  {" ".join(words)}')


def _share(text: str) -> float:
  value = float(text)
  if not 0 <= value < 1:
    raise argparse.ArgumentTypeError(f'{text}: expected a number from 0 to below 1')
  return value
