"""Annotated images, as every input format yields them, and the targets and settings of their conversion.

A target is a task of Model Garden's vision experiments.
"""

import collections
from collections.abc import Iterable, Sequence
import dataclasses
import os
import re

from official_ext.base import errors
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
_PASCAL_VOC_SETS = {'train': TRAIN, 'val': VALIDATION, 'test': TEST}
_YEAR = re.compile(r'\d{4}$')  # Of COCO's train2017.
ENDINGS = ('.avif', '.bmp', '.gif', '.jfif', '.jpe', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp')


@dataclasses.dataclass(frozen=True)
class AnnotatedImage:
  """An image with its annotations.

  Attributes:
    name: a name that no other image of the input has; it decides the split.
    file: the path of the image, or of the table that holds it.
    row: the row of the table; -1 if `file` is the image.
    split: 'train', 'validation' or 'test'; '' if shares decide it.
    label: the name of its class; None without one.
    objects: JSON values, each with `bbox` (left, top, right, bottom), `category` (a name), and possibly `iscrowd`,
      `area` in pixels and `segmentation` (polygons, or a run-length encoding of COCO).
    unit: of boxes and polygons: 'pixels', or 'fractions' of width and height.
    size: (width, height) in pixels of the image that was annotated; () if the annotations do not say.
    mask: the path of the image of class numbers; '' without one.
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


@dataclasses.dataclass
class ImageSet:
  """The images of an input.

  Attributes:
    images: all of them.
    labels: the names of the classes, in the order of their numbers.
    files: the files of annotations that were read.
    dropped: (name, reason) of images that cannot be used.
    problems: counts of annotations that cannot be used, by reason.
    notes: further lines for people: what was found and not read.
  """

  images: list[AnnotatedImage] = dataclasses.field(default_factory=list)
  labels: list[str] = dataclasses.field(default_factory=list)
  files: list[str] = dataclasses.field(default_factory=list)
  dropped: list[tuple[str, str]] = dataclasses.field(default_factory=list)
  problems: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  notes: list[str] = dataclasses.field(default_factory=list)

  def in_split(self, split: str, prefix: str = '') -> 'ImageSet':
    """The same images in a split, with a prefix to their names."""
    images = [dataclasses.replace(image, split=split, name=prefix + image.name) for image in self.images]
    dropped = [(prefix + name, reason) for name, reason in self.dropped]
    return dataclasses.replace(self, images=images, dropped=dropped)


def merged(sets: Iterable[ImageSet]) -> ImageSet:
  """The images of several sets; classes of one name are one class."""
  found = ImageSet()
  for each in sets:
    found.images += each.images
    found.labels += [name for name in each.labels if name not in found.labels]
    found.files += [file for file in each.files if file not in found.files]
    found.dropped += each.dropped
    found.problems.update(each.problems)
    found.notes += [note for note in each.notes if note not in found.notes]
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


def unread_folders(folder: str, chosen: dict[str, str]) -> list[str]:
  """A line for each subfolder with images that is not among the chosen ones."""
  found = []
  for name in sorted(os.listdir(folder)):
    path = os.path.join(folder, name)
    if name.startswith('.') or not os.path.isdir(path) or path in chosen.values():
      continue
    number = len(images_in(path))
    if number:
      found.append(f'{path}: is in no split beside {", ".join(chosen)}: its images, {number}, are not read')
  return found


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


def pascal_voc_splits(folder: str, kind: str) -> list[tuple[str, str]]:
  """The lines of the lists of splits in `ImageSets/KIND`, each with its split; [] without a list for training.

  These are `train.txt`, `val.txt` and `test.txt`. Without train.txt, the images of `trainval.txt` that are in no other
  list are for training.
  """
  place = os.path.join(folder, 'ImageSets', kind)
  lists: dict[str, list[str]] = {}
  for name in ('train', 'val', 'test', 'trainval'):
    path = os.path.join(place, f'{name}.txt')
    if os.path.isfile(path):
      with open(path, encoding='utf-8-sig') as f:
        lists[name] = [line.strip() for line in f if line.strip()]
  if 'train' not in lists and 'trainval' in lists:
    others = {*lists.get('val', ()), *lists.get('test', ())}
    lists['train'] = [line for line in lists['trainval'] if line not in others]
  if 'train' not in lists:
    return []
  return [(line, split) for name, split in _PASCAL_VOC_SETS.items() for line in lists.get(name, ())]
