"""The report of a conversion: counts by split and class, and every loss. No TensorFlow."""

import collections
from collections.abc import Iterator, Mapping, Sequence

from official_ext.base import json_types
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import shard_notes
from official_ext.vision.conversion import targets

_MAX_NAMED = 5


def make(
  target: str,
  images: image_set.ImageSet,
  notes: Mapping[str, shard_notes.ShardNotes],
  labels: Sequence[str],
) -> json_types.JsonObject:
  """The report as JSON values.

  Args:
    target: one of `targets.TARGETS`.
    images: that were read.
    notes: of the shards, by split.
    labels: the names of the classes, without the background of boxes.
  """
  first = 1 if target in targets.WITH_BOXES else 0
  of_splits: dict[str, json_types.JsonObject] = {}
  for split, each in notes.items():
    counts = {name: each.classes.get(number, 0) for number, name in enumerate(labels, first)}
    of_splits[split] = {'images': len(each.images), 'classes': counts}
  return {
    'splits': of_splits,
    'classes_without_examples': {
      split: [name for name, count in values['classes'].items() if not count] for split, values in of_splits.items()
    },
    'dropped_images': [[*pair] for pair in images.dropped] + [pair for each in notes.values() for pair in each.dropped],
    'changed_objects': dict(sum((each.counts for each in notes.values()), collections.Counter(images.problems))),
    'duplicates': _duplicates(notes),
  }


def _duplicates(notes: Mapping[str, shard_notes.ShardNotes]) -> list[list[str]]:
  """Images with equal files, as `SPLIT: NAME`, those of several splits first."""
  by_digest: dict[str, list[tuple[str, str]]] = {}
  for split, each in notes.items():
    for name, digest, *_ in each.images:
      by_digest.setdefault(digest, []).append((split, name))
  repeated = [found for found in by_digest.values() if len(found) > 1]
  repeated.sort(key=lambda found: (-len({split for split, _ in found}), found))
  return [[f'{split}: {name}' for split, name in found] for found in repeated]


def lines(report: json_types.JsonMapping) -> Iterator[str]:
  """The warnings of a report, for people."""
  dropped = report['dropped_images']
  for name, reason in dropped[:_MAX_NAMED]:
    yield f'{name}: dropped: {reason}'
  if len(dropped) > _MAX_NAMED:
    yield f'{len(dropped)} images are dropped; report.json lists all'
  for reason, count in report['changed_objects'].items():
    yield f'{count} {reason}'
  for split, names in report['classes_without_examples'].items():
    if names and split != image_set.TEST:
      more = f' and {len(names) - _MAX_NAMED} more' if len(names) > _MAX_NAMED else ''
      yield f'{split}: no example of {", ".join(names[:_MAX_NAMED])}{more}'
  across = [found for found in report['duplicates'] if len({each.split(': ')[0] for each in found}) > 1]
  if across:
    yield (
      f'{len(across)} images are in several splits, such as {" = ".join(across[0])}: results on them mean little; '
      'remove the copies'
    )
  within = len(report['duplicates']) - len(across)
  if within:
    yield f'{within} images are there more than once; report.json lists them'
