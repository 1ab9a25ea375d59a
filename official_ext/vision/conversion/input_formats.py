"""Finds the format of an input, and reads its annotations."""

import dataclasses
import os

from official_ext.base import errors
from official_ext.vision.conversion import class_images
from official_ext.vision.conversion import coco_annotations
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import mask_images
from official_ext.vision.conversion import object_records
from official_ext.vision.conversion import voc_annotations
from official_ext.vision.conversion import yolo_annotations

_EXPECTED = {
  image_set.CLASSIFICATION: 'a folder with a subfolder for each class, or a CSV file with the columns path and label',
  image_set.SEGMENTATION: 'a folder with the subfolders images and masks',
}
_EXPECTED_BOXES = (
  'COCO JSON, a folder of Pascal VOC or YOLO, or records with the column objects (metadata.jsonl, Parquet)'
)


@dataclasses.dataclass(frozen=True)
class Reading:
  """How annotations are read.

  Attributes:
    images: the folder of the images of COCO JSON or Pascal VOC; '': it is found.
    box_format: of records with `objects`: 'xywh' or 'xyxy'.
  """

  images: str = ''
  box_format: str = 'xywh'


def read_inputs(inputs: dict[str, list[str]], target: str, reading: Reading) -> image_set.ImageSet:
  """The images of all inputs.

  Args:
    inputs: the paths by split; '' for paths whose split is decided by their folders or by shares.
    target: one of `image_set.TARGETS`.
    reading: how annotations are read.

  Raises:
    UserError: there are no images, or an input is damaged.
  """
  sets = []
  for split, paths in inputs.items():
    for path in paths:
      found = read(os.path.abspath(os.path.expanduser(path)), path, target, reading)
      prefix = f'{split}/' if split else f'{os.path.basename(path)}/' if len(paths) > 1 else ''
      sets.append(found.in_split(split, prefix) if split else _prefixed(found, prefix))
  merged = image_set.merged(sets)
  _drop_missing(merged)
  if not merged.images:
    reason = f'; for example {": ".join(merged.dropped[0])}' if merged.dropped else ''
    raise errors.UserError(f'INPUT: holds no annotated image{reason}; expected {expected(target)}')
  return merged


def expected(target: str) -> str:
  """The inputs that a target has, in words."""
  return _EXPECTED.get(target, _EXPECTED_BOXES)


def read(path: str, given: str, target: str, reading: Reading) -> image_set.ImageSet:
  """The images of one path; `given` is its name in messages.

  Raises:
    UserError: it is not an input for this target.
  """
  if not os.path.exists(path):
    raise errors.UserError(f'INPUT: {given}: No such file or directory')
  found = _read_folder(path, target, reading) if os.path.isdir(path) else _read_file(path, target, reading)
  if found is None:
    raise errors.UserError(f'INPUT: {given}: holds no images for --for={target}; expected {expected(target)}')
  return found


def _read_file(path: str, target: str, reading: Reading) -> image_set.ImageSet | None:
  ending = os.path.splitext(path)[1].lower()
  if target == image_set.CLASSIFICATION:
    return class_images.read_csv(path) if ending in ('.csv', '.txt') else None
  if target in image_set.WITH_BOXES:
    if ending in ('.yaml', '.yml'):
      return yolo_annotations.read_file(path)
    if ending == '.json':
      return coco_annotations.read(path, reading.images)
    if ending in ('.jsonl', '.ndjson', '.parquet', '.arrow'):
      return object_records.read(path, reading.box_format)
  return None


def _read_folder(folder: str, target: str, reading: Reading) -> image_set.ImageSet | None:
  if target == image_set.SEGMENTATION:
    return mask_images.read_folder(folder)
  if target in image_set.WITH_BOXES:
    found = _read_boxes(folder, reading)
    if found is not None:
      return found
  splits = image_set.split_folders(folder)
  if splits:
    parts = {split: _read_folder(path, target, reading) for split, path in splits.items()}
    if all(part is not None for part in parts.values()):
      merged = image_set.merged(part.in_split(split, f'{split}/') for split, part in parts.items() if part is not None)
      merged.notes += image_set.unread_folders(folder, splits)
      return merged
  return class_images.read_folder(folder) if target == image_set.CLASSIFICATION else None


def _read_boxes(folder: str, reading: Reading) -> image_set.ImageSet | None:
  coco = coco_annotations.files_in(folder)
  if len(coco) > 1 and not any(split == image_set.TRAIN for _, split in coco):
    named = ', '.join(os.path.basename(path) for path, _ in coco)
    raise errors.UserError(f'{folder}: has several files of annotations: {named}; name one as INPUT')
  if coco:
    parts = [(coco_annotations.read(path, reading.images), split) for path, split in coco if split or len(coco) == 1]
    merged = image_set.merged(part.in_split(split, f'{split}/') if split else part for part, split in parts)
    merged.notes += [
      f'{path}: its name has no split, as those beside it have: it is not read'
      for path, split in coco
      if not split and len(coco) > 1
    ]
    return merged
  tables = object_records.files_in(folder)
  if tables:
    parts = [(object_records.read(path, reading.box_format), split) for path, split in tables]
    return image_set.merged(part.in_split(split, f'{split}/') if split else part for part, split in parts)
  return voc_annotations.read_folder(folder, reading.images) or yolo_annotations.read_folder(folder)


def _prefixed(found: image_set.ImageSet, prefix: str) -> image_set.ImageSet:
  images = [dataclasses.replace(image, name=prefix + image.name) for image in found.images]
  return dataclasses.replace(found, images=images)


def _drop_missing(found: image_set.ImageSet) -> None:
  """Drops images without a file, and a second image of one name."""
  kept, names = [], set[str]()
  for given in found.images:
    image = dataclasses.replace(
      given, file=os.path.abspath(given.file), mask=given.mask and os.path.abspath(given.mask)
    )
    missing = next((file for file in (image.file, image.mask) if file and not os.path.isfile(file)), '')
    if missing:
      found.dropped.append((image.name, f'{missing}: No such file'))
    elif image.name in names:
      found.dropped.append((image.name, 'is listed twice; the first one counts'))
    else:
      kept.append(image)
      names.add(image.name)
  found.images = kept
