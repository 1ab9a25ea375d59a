"""Finds the format of an input, and reads its annotations."""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import os

from official_ext.base import errors
from official_ext.data import record_report
from official_ext.data.prepare import planning
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

OF_DROPPED = 'of images that are left out'
Reading = image_set.Reading


@dataclasses.dataclass
class Inputs(image_set.ImageSet):
  """The images of all inputs, with their accounts.

  Attributes:
    balances: of each input, the account of its images and of its objects; what is used is not known yet.
    owners: from the name of an image to the number of its input.
  """

  balances: list[tuple[record_report.Balance, record_report.Balance]] = dataclasses.field(default_factory=list)
  owners: dict[str, int] = dataclasses.field(default_factory=dict)


def read_inputs(inputs: dict[str, list[str]], target: str, reading: Reading) -> Inputs:
  """The images of all inputs.

  Args:
    inputs: the paths by split; '' for paths whose split is decided by their folders or by shares.
    target: one of `image_set.TARGETS`.
    reading: how annotations are read.

  Raises:
    UserError: there are no images, an input is damaged, or all of its objects are bad.
  """
  reading = dataclasses.replace(reading, with_masks=target == image_set.INSTANCES)
  pairs = [(split, path) for split, paths in inputs.items() for path in paths]
  prefixes = _prefixes(pairs)
  sets, balances = list[image_set.ImageSet](), list[tuple[record_report.Balance, record_report.Balance]]()
  for (split, path), prefix in zip(pairs, prefixes):
    absolute = os.path.abspath(os.path.expanduser(path))
    each = read(absolute, path, target, reading)
    _check_any_object(each)
    _count_unread_files(each, absolute)
    each = each.in_split(split, prefix) if split else each.prefixed(prefix)
    sets.append(dataclasses.replace(each, on_bad_example=reading.on_bad_example))
  names: dict[str, int] = {}
  files: dict[tuple[str, int], str] = {}
  # An image of several inputs belongs to the one for validation or test: it is not trained on.
  for number in sorted(range(len(pairs)), key=lambda number: not pairs[number][0]):
    _drop_missing(sets[number], names, files)
    names.update({image.name: number for image in sets[number].images})
  balances = [_balances_of(each, path) for each, (_, path) in zip(sets, pairs)]
  found = Inputs(**vars(image_set.merged(sets)), balances=balances, owners=names)
  if not found.images:
    reason = f'; for example {": ".join(found.dropped[0])}' if found.dropped else ''
    raise errors.UserError(f'INPUT: holds no annotated image{reason}; expected {expected(target)}')
  return found


def _prefixes(pairs: Sequence[tuple[str, str]]) -> list[str]:
  """What precedes the names of the images of each input, so that they differ: its split, or the end of its path."""
  parts = [[part for part in os.path.abspath(os.path.expanduser(path)).split(os.sep) if part] for _, path in pairs]
  found = []
  for index, (split, _) in enumerate(pairs):
    others = [each for number, each in enumerate(parts) if number != index and not pairs[number][0]]
    if split or not others:
      found.append(f'{split}/' if split else '')
      continue
    own, length = parts[index], 1
    while length < len(own) and any(each[-length:] == own[-length:] for each in others):
      length += 1
    found.append(f'{"/".join(own[-length:])}/')
  return found


def _check_any_object(found: image_set.ImageSet) -> None:
  """Refuses an input of which every object is bad: its format is another one than it seems."""
  if found.images and found.dropped_objects and not any(image.objects for image in found.images):
    place, reason = found.dropped_objects[0]
    more = f'; all {len(found.dropped_objects)} objects are bad' if found.dropped_objects[1:] else ''
    raise errors.UserError(f'{place}: {reason}{more}; repair or remove it')


def _count_unread_files(found: image_set.ImageSet, path: str) -> None:
  """Counts the files in the folders of an input that were not read, by their endings."""
  known = {*found.files, *found.known_files}
  known.update(file for image in found.images for file in (image.file, image.mask) if file)
  folders = [path] if os.path.isdir(path) else []
  for name, count in planning.unread_files([*folders, *found.folders], known).items():
    is_image = image_set.is_image(f'a{name.removesuffix(" files")}')
    found.ignored['images that no annotation names' if is_image else name] += count


def _balances_of(found: image_set.ImageSet, path: str) -> tuple[record_report.Balance, record_report.Balance]:
  """The accounts of images and objects, without what is used."""
  kinds = [
    collections.Counter(image_set.kind_of(reason) for _, reason in pairs)
    for pairs in (found.dropped, found.dropped_objects)
  ]
  kinds[1][OF_DROPPED] += found.objects_of_dropped
  images = record_report.Balance(path, 'images', found.num_images, 0, kinds[0], found.ignored.copy())
  return images, record_report.Balance(path, 'objects', found.num_objects, 0, kinds[1])


FIELDS = (
  *coco_annotations.FIELDS.values(),
  *voc_annotations.FIELDS.values(),
  yolo_annotations.FIELDS,
  yolo_annotations.DARKNET_FIELDS,
  *object_records.FIELDS.values(),
  class_images.FIELDS,
)  # Of all formats: the table of docs/how_to/annotations.md.


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
    return class_images.read_csv(path, reading) if ending in ('.csv', '.txt') else None
  if target in image_set.WITH_BOXES:
    if ending in ('.yaml', '.yml'):
      return yolo_annotations.read_file(path, reading)
    if ending == '.json':
      return coco_annotations.read(path, reading)
    if ending in ('.jsonl', '.ndjson', '.parquet', '.arrow'):
      return object_records.read(path, reading)
  return None


def _read_folder(folder: str, target: str, reading: Reading) -> image_set.ImageSet | None:
  if target == image_set.SEGMENTATION:
    return mask_images.read_folder(folder, reading)
  if target in image_set.WITH_BOXES:
    found = _read_boxes(folder, reading)
    if found is not None:
      return found
  splits = image_set.split_folders(folder)
  if splits:
    parts = {split: _read_folder(path, target, reading) for split, path in splits.items()}
    if all(part is not None for part in parts.values()):
      merged = image_set.merged(part.in_split(split, f'{split}/') for split, part in parts.items() if part is not None)
      num_notes = len(merged.notes)
      image_set.note_unread_folders(merged, folder, splits)
      if len(splits) == 1 and merged.notes[num_notes:] and target == image_set.CLASSIFICATION:
        raise errors.UserError(
          f'{splits[image_set.TRAIN]}: is a split or a class, and {merged.notes[num_notes]}; name this folder as INPUT '
          'if it is the split for training, or rename it if it is a class'
        )
      return merged
  return class_images.read_folder(folder, reading) if target == image_set.CLASSIFICATION else None


def _read_boxes(folder: str, reading: Reading) -> image_set.ImageSet | None:
  coco = coco_annotations.files_in(folder)
  if len(coco) > 1 and not any(split == image_set.TRAIN for _, split in coco):
    named = ', '.join(os.path.basename(path) for path, _ in coco)
    raise errors.UserError(f'{folder}: has several files of annotations: {named}; name one as INPUT')
  if coco:
    chosen, notes = _one_of_each_split(coco)
    parts = [(coco_annotations.read(path, reading), split) for path, split in chosen]
    merged = image_set.merged(part.in_split(split, f'{split}/') if split else part for part, split in parts)
    merged.notes += notes
    return merged
  tables = object_records.files_in(folder)
  if tables:
    is_split = any(split == image_set.TRAIN for _, split in tables)
    parts = [(object_records.read(path, reading), split) for path, split in tables if split or not is_split]
    merged = image_set.merged(part.in_split(split, f'{split}/') if split else part for part, split in parts)
    merged.notes += [_without_split(path) for path, split in tables if is_split and not split]
    return merged
  return voc_annotations.read_folder(folder, reading) or yolo_annotations.read_folder(folder, reading)


def _one_of_each_split(coco: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[str]]:
  """(the files of COCO's annotations to read, notes about others).

  COCO has several files for one split: instances, and keypoints of persons with the same images.
  """
  chosen, notes = [], []
  for path, split in coco:
    instances = [other for other, of in coco if of == split and os.path.basename(other).startswith('instances')]
    if not split and len(coco) > 1:
      notes.append(_without_split(path))
    elif split and instances and path not in instances:
      notes.append(f'{path}: {os.path.basename(instances[0])} is read for {split}: it is not read')
    else:
      chosen.append((path, split))
  return chosen, notes


def _without_split(path: str) -> str:
  return f'{path}: its name has no split, as those beside it have: it is not read'


def _drop_missing(found: image_set.ImageSet, names: Mapping[str, int], files: dict[tuple[str, int], str]) -> None:
  """Drops images without a file, and images of one name or file.

  Args:
    found: the images of an input.
    names: of the images of other inputs.
    files: of the images of other inputs, with their names; filled in.
  """
  images = [
    dataclasses.replace(image, file=os.path.abspath(image.file), mask=image.mask and os.path.abspath(image.mask))
    for image in found.images
  ]
  same: dict[tuple[str, int], list[image_set.AnnotatedImage]] = {}
  for image in images:
    same.setdefault((image.file, image.row), []).append(image)
  kept = []
  for image in images:
    key = image.file, image.row
    others = same[key]
    missing = next((file for file in (image.file, image.mask) if file and not os.path.isfile(file)), '')
    reason, is_bad = '', True
    if missing:
      reason = f'No such file: {missing}'
    elif any(_annotations(other) != _annotations(others[0]) for other in others):
      reason = f'is listed several times with different annotations: {", ".join(each.name for each in others)}'
    elif image is not others[0] or image.name in names or key in files:
      reason, is_bad = f'is listed twice; the first one counts: {files.get(key, others[0].name)}', False
    if reason:
      found.drop(image.name, reason, image.file, num_objects=len(image.objects), is_bad=is_bad)
    else:
      kept.append(image)
  files.update({(image.file, image.row): image.name for image in kept})
  found.images = kept


def _annotations(image: image_set.AnnotatedImage) -> tuple[object, ...]:
  return image.label, image.objects, image.mask, image.split, image.size
