"""The plan of a conversion: which images are in which split, and in which shard. No TensorFlow."""

from collections.abc import Callable, Sequence
import dataclasses
import os

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.data import record_files
from official_ext.data import tf_records
from official_ext.data.prepare import input_content
from official_ext.data.prepare import pieces as pieces_lib
from official_ext.data.prepare import planning
from official_ext.data.prepare import settings as settings_lib
from official_ext.data.prepare import splits
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import targets

MODULE = 'official_ext.vision.conversion.example_rows'


def make(
  images: image_set.ImageSet,
  labels: Sequence[str],
  conversion: targets.Conversion,
  settings: settings_lib.Settings,
  check: Callable[[], None] = lambda: None,
) -> planning.Plan:
  """Divides images into splits, and splits into shards.

  The split of an image, and its place in it, follow from its name and the seed alone: other images do not matter.

  Args:
    images: all of them.
    labels: the names of the classes, without the background of boxes.
    conversion: the settings of the conversion.
    settings: of the shards.
    check: called while the input is read for its digests; its exceptions end the planning.

  Raises:
    UserError: a split that training needs has no image.
  """
  by_split = in_splits(images, conversion)
  files = [file for image in images.images for file in (image.file, image.mask) if file]
  folder = os.path.commonpath([os.path.dirname(file) for file in files])
  sizes, numbers = _sizes(images.images), {name: number for number, name in enumerate(labels)}
  shards: list[planning.Shard] = []
  next_id = 1
  for split, chosen in by_split.items():
    pieces = [pieces_lib.Piece(image.name, 'annotated', 0, 1, sizes[image.name]) for image in chosen]
    start, of_split = 0, list[planning.Shard]()
    for group in planning.grouped(pieces, settings.shard_bytes):
      part = chosen[start : start + len(group)]
      records = [_record(image, next_id + number, folder, numbers, conversion) for number, image in enumerate(part)]
      below = [os.path.relpath(file, folder) for image in part for file in (image.file, image.mask) if file]
      piece = pieces_lib.Piece(folder, 'annotated', start, start + len(part), sum(each.size for each in group))
      of_split.append(planning.Shard('', (piece,), tuple(dict.fromkeys(below)), tuple(records)))
      start, next_id = start + len(part), next_id + len(part)
    shards += planning.named(of_split, split, tf_records.ENDING)
  files = list(dict.fromkeys([*images.files, *files]))
  contents = input_content.read(files, check)
  return planning.Plan(
    kind=conversion.target,
    settings={**dataclasses.asdict(settings), **conversion.values()},
    inputs=planning.identity_of(
      [os.path.relpath(file, folder) for file in files],
      [contents[file].num_bytes for file in files],
      [contents[file].sha256 for file in files],
    ),
    labels=tuple(labels),
    columns=(),
    shards=tuple(shards),
    contents=contents,
    row_format=MODULE,
  )


def in_splits(images: image_set.ImageSet, conversion: targets.Conversion) -> dict[str, list[image_set.AnnotatedImage]]:
  """The images of each split, in their order.

  Raises:
    UserError: a split that training needs has no image.
  """
  found = splits.divide(
    [image.name for image in images.images],
    [image.split for image in images.images],
    conversion.validation_share,
    conversion.test_share,
    conversion.seed,
    'image',
  )
  return {split: [images.images[index] for index in indices] for split, indices in found.items()}


def _sizes(images: Sequence[image_set.AnnotatedImage]) -> dict[str, int]:
  """The size in bytes of each image, by name: of an image in a table, its mean share."""
  tables: dict[str, int] = {}
  found = {}
  for image in images:
    try:
      size = os.path.getsize(image.file)
    except OSError as error:
      raise errors.UserError(f'{image.file}: cannot be read: {error.strerror}') from error
    if image.row >= 0:
      if image.file not in tables:
        tables[image.file] = max(1, len(record_files.read_file(image.file)))
      size //= tables[image.file]
    found[image.name] = max(1, size)
  return found


def _record(
  image: image_set.AnnotatedImage,
  number: int,
  folder: str,
  numbers: dict[str, int],
  conversion: targets.Conversion,
) -> json_types.JsonObject:
  """The record of an image, as JSON values: paths are below the folder, classes are numbers."""
  found: json_types.JsonObject = {
    'name': image.name,
    'id': number,
    'file': os.path.relpath(image.file, folder),
    'row': image.row,
  }
  if conversion.target == targets.CLASSIFICATION:
    assert image.label is not None
    return {**found, 'label': numbers[image.label]}
  if conversion.target == targets.SEGMENTATION:
    return {**found, 'mask': os.path.relpath(image.mask, folder)}
  objects = [{**each, 'category': numbers[each['category']] + 1} for each in image.objects]
  if conversion.target == targets.DETECTION:
    objects = [{name: value for name, value in each.items() if name != 'segmentation'} for each in objects]
  return {**found, 'objects': objects, 'unit': image.unit, 'size': list(image.size)}
