"""Annotated images, as every input format yields them, and the targets and settings of their conversion.

A target is a task of Model Garden's vision experiments.
"""

import collections
from collections.abc import Iterable, Sequence
import dataclasses
import math
import os
import re
from typing import Any

from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.base import json_values
from official_ext.data import input_files
from official_ext.data.prepare import conversions

CLASSIFICATION = 'image_classification'
DETECTION = 'object_detection'
INSTANCES = 'instance_segmentation'
SEGMENTATION = 'semantic_segmentation'
TARGETS = (CLASSIFICATION, DETECTION, INSTANCES, SEGMENTATION)
WITH_BOXES = (DETECTION, INSTANCES)

EXPERIMENTS = {
  CLASSIFICATION: 'mobilenet_imagenet',
  DETECTION: 'retinanet_mobile_coco',
  INSTANCES: 'maskrcnn_mobilenet_coco',
  SEGMENTATION: 'mnv2_deeplabv3_pascal',
}
IGNORED = 255  # The class number that Model Garden's losses and metrics ignore.


@dataclasses.dataclass(frozen=True)
class Conversion(conversions.Conversion):
  """The settings of a conversion of images, in addition to `conversions.Conversion`.

  Attributes:
    target: one of `TARGETS`.
    image_format: 'jpeg' or 'png'.
    quality: of JPEG, 1 to 100.
    coordinates: whether boxes and masks refer to the image as 'shown', after the rotation in its EXIF data, or as
      'stored'; 'auto' decides by the size that the annotations state.
    mask_values: the values of pixels in masks that are the classes 0, 1, ...; (): values are class numbers.
  """

  image_format: str = 'jpeg'
  quality: int = input_files.JPEG_QUALITY
  coordinates: str = 'auto'
  mask_values: tuple[int, ...] = ()


TRAIN, VALIDATION, TEST, SPLITS = conversions.TRAIN, conversions.VALIDATION, conversions.TEST, conversions.SPLITS
DIFFICULT = 'objects marked difficult: they count as iscrowd, neither learned nor missed in an evaluation'
HINT = 'repair or remove it, or give --on_bad_example=skip'
_PASCAL_VOC_SETS = {'train': TRAIN, 'val': VALIDATION, 'test': TEST}
_YEAR = re.compile(r'\d{4}$')  # Of COCO's train2017.
ENDINGS = ('.avif', '.bmp', '.gif', '.jfif', '.jpe', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp')


@dataclasses.dataclass(frozen=True)
class AnnotatedImage:
  """An image with its annotations.

  Attributes:
    name: a name that no other image of the input has.
    file: the path of the image, or of the table that holds it.
    row: the row of the table; -1 if `file` is the image.
    split: 'train', 'validation' or 'test'; '' if shares decide it.
    label: the name of its class; None without one.
    objects: JSON values, each with `bbox` (left, top, right, bottom), `category` (a name), and possibly `iscrowd`,
      `area` in pixels and `segmentation` (polygons, or a run-length encoding of COCO).
    unit: of boxes and polygons: 'pixels', or 'fractions' of width and height.
    size: (width, height) in pixels of the image that was annotated; () if the annotations do not say.
    mask: the path of the image of class numbers; '' without one.
    key: decides the split and the order; '': the name does.
  """

  name: str
  file: str
  row: int = -1
  split: str = ''
  label: str | None = None
  objects: tuple[json_values.JsonObject, ...] = ()
  unit: str = 'pixels'
  size: tuple[int, ...] = ()
  mask: str = ''
  key: str = ''


class BadAnnotationError(ValueError):
  """An object that cannot be used; the message is its reason, as `ImageSet.drop` takes it."""


@dataclasses.dataclass(frozen=True)
class Reading:
  """How annotations are read.

  Attributes:
    images: the folder of the images of COCO JSON or Pascal VOC; '': it is found.
    box_format: of records with `objects`: 'xywh' or 'xyxy'.
    on_bad_example: 'skip': images and objects that cannot be used are left out and counted; 'error': the first one ends
      the conversion.
    with_masks: whether an object requires a mask.
  """

  images: str = ''
  box_format: str = 'xywh'
  on_bad_example: str = 'skip'
  with_masks: bool = False


@dataclasses.dataclass
class ImageSet:
  """The images of an input.

  A reason is `KIND` or `KIND: DETAIL`; equal kinds are counted together.

  Attributes:
    images: all of them.
    labels: the names of the classes, in the order of their numbers.
    files: the files of annotations that were read.
    dropped: (name, reason) of images that cannot be used.
    dropped_objects: (place, reason) of objects that cannot be used, in a file of annotations.
    problems: counts of annotations that are used in another way than they say, by reason.
    notes: further lines for people.
    num_images: how many images the input lists, used or not.
    num_objects: how many objects, of boxes.
    ignored: what is there and not read, by name.
    known_files: the files of dropped images.
    folders: of images, which are counted if the input is a file.
    objects_of_dropped: how many objects dropped images have.
    on_bad_example: see `Reading`.
  """

  images: list[AnnotatedImage] = dataclasses.field(default_factory=list)
  labels: list[str] = dataclasses.field(default_factory=list)
  files: list[str] = dataclasses.field(default_factory=list)
  dropped: list[tuple[str, str]] = dataclasses.field(default_factory=list)
  dropped_objects: list[tuple[str, str]] = dataclasses.field(default_factory=list)
  problems: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  notes: list[str] = dataclasses.field(default_factory=list)
  num_images: int = 0
  num_objects: int = 0
  ignored: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  known_files: set[str] = dataclasses.field(default_factory=set)
  folders: list[str] = dataclasses.field(default_factory=list)
  objects_of_dropped: int = 0
  on_bad_example: str = 'skip'

  def drop(self, name: str, reason: str, *files: str, num_objects: int = 0, is_bad: bool = True) -> None:
    """Leaves an image out.

    Args:
      name: of the image.
      reason: see above.
      *files: of the image.
      num_objects: how many objects it has.
      is_bad: whether it cannot be used, and is not left out by the input's own lists.

    Raises:
      UserError: it is bad, and none is to be left out.
    """
    if is_bad and self.on_bad_example == 'error':
      raise errors.UserError(f'{name}: {reason}; {HINT}')
    self.dropped.append((name, reason))
    self.known_files.update(map(os.path.abspath, files))
    self.objects_of_dropped += num_objects

  def drop_object(self, place: str, reason: str) -> None:
    """Leaves an object out; `place` is its file, and its line, number or field.

    Raises:
      UserError: none is to be left out.
    """
    if self.on_bad_example == 'error':
      raise errors.UserError(f'{place}: {reason}; {HINT}')
    self.dropped_objects.append((place, reason))

  def note_fields(self, fields: file_fields.FileFields, values: json_values.JsonMapping) -> None:
    """Counts the fields of a part of the input that are unknown."""
    for name in fields.unknown_names(values):
      self.ignored[f'{fields.name} field {name}'] += 1

  def in_split(self, split: str, prefix: str = '') -> 'ImageSet':
    """The same images in a split, with a prefix to their names."""
    found = self.prefixed(prefix)
    return dataclasses.replace(found, images=[dataclasses.replace(image, split=split) for image in found.images])

  def prefixed(self, prefix: str) -> 'ImageSet':
    """The same images with a prefix to their names."""
    images = [dataclasses.replace(image, name=prefix + image.name) for image in self.images]
    dropped = [(name if os.path.isabs(name) else prefix + name, reason) for name, reason in self.dropped]
    return dataclasses.replace(self, images=images, dropped=dropped)


def unreadable(path: str, error: OSError | UnicodeDecodeError) -> errors.UserError:
  """The error of a text file that cannot be read."""
  if isinstance(error, OSError):
    return errors.UserError(f'{path}: cannot be read: {errors.reason_of(error)}')
  return errors.UserError(f'{path}: is not text in UTF-8; store it as UTF-8')


def kind_of(reason: str) -> str:
  """The kind of a reason, without its detail."""
  return reason.partition(': ')[0]


def check_numbers(values: Any, count: int, name: str) -> list[float]:
  """The numbers of a box.

  Raises:
    BadAnnotationError: there are more or fewer than `count`, or one is not finite.
  """
  try:
    found = [float(value) for value in values]
    if len(found) == count and all(map(math.isfinite, found)) and not any(isinstance(each, bool) for each in values):
      return found
  except (TypeError, ValueError, OverflowError):
    pass
  raise BadAnnotationError(f'{name} is not {count} finite numbers: {str(values)[:100]}')


def size_of(values: json_values.JsonMapping) -> tuple[int, ...]:
  """(width, height) of an image as its annotations state them; () unless both are positive numbers."""
  sides = [values.get(side) for side in ('width', 'height')]
  found = tuple(int(side) for side in sides if json_values.is_finite(side) and side >= 1)
  return found if len(found) == len(sides) else ()


def is_marked(value: Any) -> bool:
  """Whether a mark of an object is set: 1, true, also as text."""
  return str(value).strip().lower() in ('1', '1.0', 'true', 'yes')


def merged(sets: Iterable[ImageSet]) -> ImageSet:
  """The images of several sets; classes of one name are one class."""
  found = ImageSet()
  files: dict[str, None] = {}
  for each in sets:
    found.images += each.images
    found.labels += [name for name in each.labels if name not in found.labels]
    files.update(dict.fromkeys(each.files))
    found.dropped += each.dropped
    found.dropped_objects += each.dropped_objects
    found.problems.update(each.problems)
    found.notes += [note for note in each.notes if note not in found.notes]
    found.num_images += each.num_images
    found.num_objects += each.num_objects
    found.ignored.update(each.ignored)
    found.known_files |= each.known_files
    found.folders += [folder for folder in each.folders if folder not in found.folders]
    found.objects_of_dropped += each.objects_of_dropped
    found.on_bad_example = each.on_bad_example
  found.files = list(files)
  return found


def split_folders(folder: str) -> dict[str, str]:
  """The subfolders that are named after splits, such as `train` or `val2017`, by split; {} unless one is for training.

  Raises:
    UserError: two are for one split.
  """
  found: dict[str, list[str]] = {}
  for name in sorted(os.listdir(folder)):
    split = split_of_folder(name)
    if split and os.path.isdir(os.path.join(folder, name)):
      found.setdefault(split, []).append(name)
  if TRAIN not in found:
    return {}
  for split, names in found.items():
    if len(names) > 1:
      raise errors.UserError(f'{folder}: {" and ".join(names)} are all for {split}; move the images into one of them')
  return {split: os.path.join(folder, names[0]) for split, names in found.items()}


def split_of_folder(name: str) -> str:
  """The split that a folder is named after, such as `train` or `val2017`; '' for none."""
  return conversions.split_of(_YEAR.sub('', name))


def note_unread_folders(found: ImageSet, folder: str, chosen: dict[str, str]) -> None:
  """Counts the images of subfolders that are not among the chosen ones, and drops them."""
  for name in sorted(os.listdir(folder)):
    path = os.path.join(folder, name)
    if name.startswith('.') or not os.path.isdir(path) or path in chosen.values():
      continue
    files = images_in(path)
    if files:
      found.notes.append(f'{path}: is in no split beside {", ".join(chosen)}: its images, {len(files)}, are not read')
      found.known_files |= {os.path.abspath(os.path.join(path, file)) for file in files}
      found.ignored[f'images in {path}, which is in no split'] += len(files)


def is_image(name: str) -> bool:
  """Whether a file is an image, by its name."""
  return os.path.splitext(name)[1].lower() in ENDINGS and not os.path.basename(name).startswith('.')


def images_in(folder: str) -> list[str]:
  """The images in a folder and its subfolders, sorted: their paths below it."""
  found: list[str] = []
  for place, folders, names in os.walk(folder, followlinks=True):
    folders[:] = sorted(name for name in folders if not name.startswith('.'))
    below = os.path.relpath(place, folder)
    found += [os.path.normpath(os.path.join(below, name)) for name in names if is_image(name)]
  return sorted(found)


def first_folder(folder: str, names: Sequence[str]) -> str:
  """The first of the subfolders that exists; '' if none does."""
  return next((path for name in names if os.path.isdir(path := os.path.join(folder, name))), '')


def pascal_voc_splits(folder: str, kind: str) -> tuple[list[tuple[str, str]], list[str]]:
  """The lines of the lists of splits in `ImageSets/KIND`, each with its split, and the paths of the lists.

  These are `train.txt`, `val.txt` and `test.txt`. Without train.txt, the images of `trainval.txt` that are in no other
  list are for training. Both are empty without a list for training.
  """
  place = os.path.join(folder, 'ImageSets', kind)
  lists: dict[str, list[str]] = {}
  for name in ('train', 'val', 'test', 'trainval'):
    path = os.path.join(place, f'{name}.txt')
    if os.path.isfile(path):
      try:
        with open(path, encoding='utf-8-sig') as f:
          lists[name] = [line.strip() for line in f if line.strip()]
      except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
  files = [os.path.join(place, f'{name}.txt') for name in lists]
  if 'train' not in lists and 'trainval' in lists:
    others = {*lists.get('val', ()), *lists.get('test', ())}
    lists['train'] = [line for line in lists['trainval'] if line not in others]
  if 'train' not in lists:
    return [], []
  return [(line, split) for name, split in _PASCAL_VOC_SETS.items() for line in lists.get(name, ())], files


def first_splits(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], collections.Counter[str]]:
  """(the split of each name, counts of names that are in several).

  A name of several splits belongs to validation, else to test: no validation or test image is trained on.
  """
  by_split: dict[str, list[str]] = {}
  for name, split in pairs:
    by_split.setdefault(split, []).append(name)
  found: dict[str, str] = {}
  overlaps: collections.Counter[str] = collections.Counter()
  for split in (VALIDATION, TEST, TRAIN):
    for name in dict.fromkeys(by_split.get(split, ())):
      if name in found:
        overlaps[overlap_of(split, found[name])] += 1
      found.setdefault(name, split)
  return found, overlaps


def overlap_of(split: str, other: str) -> str:
  """The words for images of a split that are in another one, which is theirs."""
  return f'images of {split} that are in {other} too, and do not count for {split}'
