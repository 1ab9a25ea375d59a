"""Boxes and polygons from the text files of YOLO. No TensorFlow.

A line is `class x y width height`, the center and size of a box, or `class x1 y1 x2 y2 x3 y3 ...`, a polygon; all are
fractions of width and height. Format: https://docs.ultralytics.com/datasets/detect/.
"""

import os

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import yaml_text
from official_ext.vision.conversion import image_set

_NAMES = ('data.yaml', 'data.yml', 'dataset.yaml')


def read_folder(folder: str, names: list[str] | None = None) -> image_set.ImageSet | None:
  """The images of a folder with `images` and `labels`, each possibly with a folder for each split.

  Args:
    folder: its path. Text files may also be beside the images.
    names: of the classes; None: they are read from data.yaml or classes.txt.

  Returns:
    None if it is not such a folder.

  Raises:
    UserError: a line is damaged.
  """
  names = names if names is not None else class_names(folder)
  splits = image_set.split_folders(folder)
  if splits:
    parts = {split: read_folder(path, names) for split, path in splits.items()}
    if any(part is None for part in parts.values()):
      return None
    return image_set.merged(part.in_split(split, f'{split}/') for split, part in parts.items() if part is not None)
  images = image_set.first_folder(folder, ('images',)) or folder
  labels = image_set.first_folder(folder, ('labels',)) or images
  splits = image_set.split_folders(images)
  if splits:
    found = image_set.merged(
      _read(path, os.path.join(labels, os.path.basename(path)), names).in_split(split, f'{split}/')
      for split, path in splits.items()
    )
    return found if found.files else None
  found = _read(images, labels, names)
  return found if found.files else None


def class_names(folder: str) -> list[str]:
  """The names of the classes in data.yaml or classes.txt; [] without such a file."""
  for name in _NAMES:
    path = os.path.join(folder, name)
    if os.path.isfile(path):
      names = yaml_text.load_file(path, path).get('names') or []
      return [str(value) for _, value in sorted(names.items())] if isinstance(names, dict) else [str(n) for n in names]
  path = os.path.join(folder, 'classes.txt')
  if os.path.isfile(path):
    with open(path, encoding='utf-8') as f:
      return [line.strip() for line in f if line.strip()]
  return []


def _read(images: str, labels: str, names: list[str]) -> image_set.ImageSet:
  found, numbers = image_set.ImageSet(), set[int]()
  for name in image_set.images_in(images):
    file = os.path.join(labels, os.path.splitext(name)[0] + '.txt')
    objects: list[json_types.JsonObject] = []
    if os.path.isfile(file):  # Without one it is an image of the background.
      found.files.append(file)
      for each in _objects(file):
        number = each['category']
        numbers.add(number)
        if names and number >= len(names):
          found.problems['annotations of unknown categories'] += 1
        else:
          objects.append({**each, 'category': names[number] if names else f'class_{number}'})
    found.images.append(
      image_set.AnnotatedImage(name, os.path.join(images, name), objects=tuple(objects), unit='fractions')
    )
  found.labels = list(names) or [f'class_{number}' for number in range(max(numbers, default=-1) + 1)]
  return found


def _objects(file: str) -> list[json_types.JsonObject]:
  found: list[json_types.JsonObject] = []
  with open(file, encoding='utf-8') as f:
    for number, line in enumerate(f, 1):
      words = line.split()
      if not words:
        continue
      try:
        category, values = int(words[0]), [float(word) for word in words[1:]]
        if category < 0 or len(values) != 4 and (len(values) < 6 or len(values) % 2):
          raise ValueError
      except ValueError:
        raise errors.UserError(
          f'{file}, line {number}: expected a class number, and x y width height or a polygon'
        ) from None
      if len(values) == 4:
        x, y, width, height = values
        found.append({'bbox': [x - width / 2, y - height / 2, x + width / 2, y + height / 2], 'category': category})
      else:
        box = [min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])]
        found.append({'bbox': box, 'category': category, 'segmentation': [values]})
  return found
