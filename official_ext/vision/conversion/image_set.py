"""Annotated images, as every input format yields them. No TensorFlow."""

import collections
from collections.abc import Iterable, Sequence
import dataclasses
import os

from official_ext.base import json_types
from official_ext.data.prepare import splits

TRAIN, VALIDATION, TEST, SPLITS = splits.TRAIN, splits.VALIDATION, splits.TEST, splits.SPLITS
_PASCAL_VOC_SETS = {'train': TRAIN, 'val': VALIDATION, 'test': TEST}
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
  objects: tuple[json_types.JsonObject, ...] = ()
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
  """

  images: list[AnnotatedImage] = dataclasses.field(default_factory=list)
  labels: list[str] = dataclasses.field(default_factory=list)
  files: list[str] = dataclasses.field(default_factory=list)
  dropped: list[tuple[str, str]] = dataclasses.field(default_factory=list)
  problems: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

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
  return found


def split_folders(folder: str) -> dict[str, str]:
  """The subfolders that are named after splits, by split; {} unless one is for training."""
  found = {split: os.path.join(folder, name) for name in sorted(os.listdir(folder)) if (split := splits.split_of(name))}
  found = {split: path for split, path in found.items() if os.path.isdir(path)}
  return found if TRAIN in found else {}


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
  """The lines of `ImageSets/KIND/train.txt`, `val.txt` and `test.txt`, each with its split; [] without train.txt."""
  place = os.path.join(folder, 'ImageSets', kind)
  if not os.path.isfile(os.path.join(place, 'train.txt')):
    return []
  found = []
  for name, split in _PASCAL_VOC_SETS.items():
    path = os.path.join(place, f'{name}.txt')
    if os.path.isfile(path):
      with open(path, encoding='utf-8') as f:
        found += [(line.strip(), split) for line in f if line.strip()]
  return found
