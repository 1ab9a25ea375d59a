"""Boxes and polygons from the text files of YOLO.

A line is `class x y width height`, the center and size of a box, or `class x1 y1 x2 y2 x3 y3 ...`, a polygon; all are
fractions of width and height. With `kpt_shape` in data.yaml, keypoints follow the box; they are left out and counted.
Format: https://docs.ultralytics.com/datasets/detect/.

data.yaml names classes and splits. Without it, classes.txt or Darknet's obj.names and obj.data do.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import glob
import math
import os
from typing import Any

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.base import json_values
from official_ext.data.prepare import conversions
from official_ext.vision.conversion import image_set

_FILES = ('data.yaml', 'data.yml', 'dataset.yaml', 'dataset.yml')
_SPLITS = {
  'train': image_set.TRAIN,
  'val': image_set.VALIDATION,
  'validation': image_set.VALIDATION,
  'valid': image_set.VALIDATION,  # Of Darknet.
  'test': image_set.TEST,
}
FIELDS = file_fields.FileFields(
  'data.yaml',
  ('path', 'train', 'val', 'validation', 'valid', 'test', 'names', 'nc', 'kpt_shape', 'channels'),
  file_fields.because(
    {
      'origin of the data': """author authors citation contact contributor created dataset dataset_name date description
      download homepage info license licence licenses name notes organization project roboflow source tags task title
      url version workspace yaml_file year""",
      'keypoints, which are left out': 'flip_idx kpt_names skeleton',
      'colours of drawings': 'colors colours palette',
      'a part of val': 'minival',
    }
  ),
)
DARKNET_FIELDS = file_fields.FileFields(
  'obj.data',
  ('train', 'valid', 'val', 'validation', 'test', 'names', 'classes'),
  file_fields.because({'of the training program': 'backup results eval'}),
)
# Text files without labels.
_OTHER_TEXTS = (
  'classes',
  'labels',
  'notes',
  'predefined_classes',
  'readme',
  'train',
  'trainval',
  'val',
  'valid',
  'test',
)
_FARTHEST = 1.5  # Fractions beyond this are other numbers: pixels, or the visibility of keypoints.


@dataclasses.dataclass(frozen=True)
class Description:
  """The description of a data set, in data.yaml or the files of other programs.

  Attributes:
    file: its path; '' without one.
    files: all files that were read for it.
    root: the folder that paths of splits are relative to.
    names: number -> name of each class; {} if no file names them.
    splits: split -> the folders of images and lists of images that it has; {} if the folders name the splits.
    keypoint_numbers: how many numbers may follow a box; 0 for none.
    notes: remarks for people, a line each.
  """

  file: str = ''
  files: tuple[str, ...] = ()
  root: str = ''
  names: Mapping[int, str] = dataclasses.field(default_factory=dict)
  splits: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  keypoint_numbers: int = 0
  notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Image:
  """An image: the name that it gets, its path, its split, and the paths that its labels may have, the first first."""

  name: str
  path: str
  split: str
  labels: tuple[str, ...]


def read_file(path: str, reading: image_set.Reading) -> image_set.ImageSet | None:
  """The images of a data.yaml: see `read_folder`."""
  return read_folder(os.path.dirname(path), reading, _of_yaml(path))


def read_folder(
  folder: str, reading: image_set.Reading, description: Description | None = None
) -> image_set.ImageSet | None:
  """The images of a data set.

  data.yaml names the splits. If it names none, folders do: `images` and `labels`, each possibly with a folder for each
  split, or a folder for each split with `images` and `labels`. Text files may also be next to the images.

  Args:
    folder: its path.
    reading: how annotations are read.
    description: of the data set; None: it is read from the folder.

  Returns:
    None if it is not such a folder.

  Raises:
    UserError: the description is damaged; a class number has no name.
  """
  description = description or _describe(folder)
  if description.splits:
    return _read_splits(description, reading)
  splits = image_set.split_folders(folder)
  if splits:
    parts = {split: read_folder(path, reading, _in_part(description, path)) for split, path in splits.items()}
    if any(part is None for part in parts.values()):
      return None
    found = image_set.merged(part.in_split(split, f'{split}/') for split, part in parts.items() if part is not None)
    image_set.note_unread_folders(found, folder, splits)
    return found
  images = image_set.first_folder(folder, ('images',)) or folder
  labels = image_set.first_folder(folder, ('labels',)) or images
  splits = image_set.split_folders(images)
  entries, unused = list[_Image](), list[_Image]()
  for name in image_set.images_in(images):
    stem = f'{os.path.splitext(name)[0]}.txt'
    top = name.split(os.sep)[0]
    split = next((split for split, path in splits.items() if os.path.basename(path) == top), '')
    shown = f'{split}/{os.path.relpath(name, top)}' if split else name
    each = _Image(shown, os.path.join(images, name), split, (os.path.join(labels, stem), os.path.join(images, stem)))
    (unused if splits and not split else entries).append(each)
  found = _read(entries, description, reading)
  _drop_unused(found, unused, images)
  _count_orphans(found, [labels], [*entries, *unused])
  return found if any(file.endswith('.txt') and file not in description.files for file in found.files) else None


def _in_part(description: Description, folder: str) -> Description:
  """The description of a folder with one split: its own if it has one with names, else the whole data set's."""
  if description.names:
    return description
  own = _describe(folder)
  return dataclasses.replace(own, splits={}) if own.file else description


# Splits that a file names.


def _read_splits(description: Description, reading: image_set.Reading) -> image_set.ImageSet:
  entries: dict[str, _Image] = {}  # By path.
  notes, files, overlaps = list(description.notes), list(description.files), dict[str, int]()
  listed: dict[str, int] = {}
  # An image of several splits belongs to the first of these: no validation or test image is trained on.
  for split in (image_set.VALIDATION, image_set.TEST, image_set.TRAIN):
    for given in description.splits.get(split, ()):
      for path in _images_of(given, split, description, files, notes):
        listed[split] = listed.get(split, 0) + 1
        if path not in entries:
          entries[path] = _Image(os.path.relpath(path, description.root), path, split, _labels_of(path))
        elif entries[path].split != split:
          both = image_set.overlap_of(split, entries[path].split)
          overlaps[both] = overlaps.get(both, 0) + 1
  if image_set.TRAIN in listed and not any(each.split == image_set.TRAIN for each in entries.values()):
    raise errors.UserError(
      f'{description.file}: train: names the images of val or test alone; name others, or leave val out and give '
      '--validation_share'
    )
  for split in (image_set.TRAIN, image_set.VALIDATION):
    if split in description.splits and not listed.get(split):
      raise errors.UserError(f'{description.file}: {", ".join(description.splits[split])}: holds no image for {split}')
  place = image_set.first_folder(description.root, ('images',)) or description.root
  there = [os.path.join(place, name) for name in image_set.images_in(place)]
  unused = [
    _Image(os.path.relpath(path, description.root), path, '', _labels_of(path)) for path in there if path not in entries
  ]
  found = _read(sorted(entries.values(), key=lambda each: each.name), description, reading)
  found.files += [file for file in files if file not in found.files]
  found.notes += notes
  found.problems.update(overlaps)
  _drop_unused(found, unused, description.file)
  labels = {os.path.dirname(each.labels[0]) for each in (*entries.values(), *unused)}
  above = image_set.first_folder(description.root, ('labels',))
  _count_orphans(found, sorted({*labels, *([above] if above else [])}), [*entries.values(), *unused])
  if not any(os.path.isfile(label) for each in entries.values() for label in each.labels):
    first = next(iter(entries.values()))
    raise errors.UserError(f'{description.file}: no image has labels; for example {first.labels[0]}: No such file')
  return found


def _images_of(given: str, split: str, description: Description, files: list[str], notes: list[str]) -> Iterator[str]:
  """The paths of the images of a folder, or of a list of them. Notes the lists that were read, and their losses.

  Raises:
    UserError: there is no such file or folder. A missing one of test is noted: exporters name it without writing it.
  """
  where = f'{description.file}: {given}'
  place, is_moved = _find(given, [description.root])
  if place is None:
    if split != image_set.TEST:
      raise errors.UserError(f'{where}: No such file or directory in {description.root}; correct it')
    notes.append(f'{where}: No such file or directory: there are no images for test')
    return
  if is_moved:
    notes.append(f'{where}: No such file or directory: {place} is read')
  if os.path.isdir(place):
    yield from (os.path.join(place, name) for name in image_set.images_in(place))
    return
  files.append(place)
  others, num_moved = list[str](), 0
  for line in (line.replace('\\', '/') for line in _lines(place) if line):
    path, is_moved = _find(line, [os.path.dirname(place), description.root], least=2)
    num_moved += is_moved
    if not image_set.is_image(line):
      others.append(line)
    else:  # One that is missing is dropped, with its reason.
      yield path or os.path.normpath(os.path.join(os.path.dirname(place), line))
  if others:
    notes.append(f'{place}: {len(others)} lines are not images by their names, such as {others[0]}')
  if num_moved:
    notes.append(f'{place}: {num_moved} paths do not exist; images of these names below {description.root} are read')


def _find(given: str, folders: Sequence[str], least: int = 1) -> tuple[str | None, bool]:
  """(the path that a description means, whether it has another place than it says).

  A path is relative to the first folder that has it. The last folder holds the data set: `..` of Roboflow's
  `../train/images` and `data` of CVAT's `data/train.txt` may mean it too. Of an absolute path of another machine, the
  longest end below it counts, with `least` parts or more.
  """
  given = os.path.expanduser(given.replace('\\', '/'))
  for folder in folders:
    path = os.path.normpath(os.path.join(folder, given))
    if os.path.exists(path):
      return path, False
  parts = [part for part in given.split('/') if part not in ('', '.')]
  while parts and parts[0] in ('..', 'data'):
    parts = parts[1:]
    if parts and os.path.exists(path := os.path.join(folders[-1], *parts)):
      return path, False
  is_absolute = os.path.isabs(given) or given[1:3] == ':/'
  for start in range(1, len(parts) - least + 1) if is_absolute else ():
    path = os.path.join(folders[-1], *parts[start:])
    if os.path.exists(path):
      return path, True
  return None, False


def _labels_of(image: str) -> tuple[str, ...]:
  """The paths of an image's labels: the last folder `images` becomes `labels`; or else next to the image."""
  stem = os.path.splitext(image)[0]
  before, images, after = stem.rpartition(f'{os.sep}images{os.sep}')
  beside = f'{stem}.txt'
  return (f'{before}{os.sep}labels{os.sep}{after}.txt', beside) if images else (beside,)


# Descriptions.


def _describe(folder: str) -> Description:
  """The description of the data set in a folder; without one, of the folder above, if this one is a split.

  Raises:
    UserError: it is damaged, or there are several.
  """
  found = _own_description(folder)
  if found is None and conversions.split_of(os.path.basename(folder)):
    above = _own_description(os.path.dirname(folder))
    found = above and dataclasses.replace(above, splits={}, root=folder)
  return found or Description(root=folder)


def _own_description(folder: str) -> Description | None:
  named = [path for name in _FILES if os.path.isfile(path := os.path.join(folder, name))]
  others = sorted(
    path for ending in ('yaml', 'yml') for path in glob.glob(f'{glob.escape(folder)}/*.{ending}') if path not in named
  )
  files = named or [path for path in others if _is_description(path)]
  if len(files) > 1:
    raise errors.UserError(
      f'{folder}: several files describe the data: {", ".join(map(os.path.basename, files))}; name one as INPUT'
    )
  found = _of_yaml(files[0]) if files else _of_darknet(folder)
  lists = [os.path.join(folder, *parts) for parts in (('classes.txt',), ('labels', 'classes.txt'))]
  if found is not None and found.names:
    lists = lists[:1]  # Programs put one next to the labels, with names of other data too.
  file = next((path for path in lists if os.path.isfile(path)), '')
  if not file:
    return found
  names = _listed_names(file)
  if found is None:
    return Description(file, (file,), folder, names)
  if found.names and dict(found.names) != names:
    raise errors.UserError(f'{file}: names other classes than {found.file}; remove one of them')
  return dataclasses.replace(found, names=names, files=(*found.files, file))


def _is_description(path: str) -> bool:
  try:
    keys = set(config_text.load_file(path, path))
  except errors.UserError:
    return False
  return 'names' in keys or {'train', 'val'} <= keys


def _of_yaml(path: str) -> Description:
  values = config_text.load_file(path, path)
  for key in values:
    if key not in FIELDS.names:
      raise errors.UserError(f'{path}: {key}: is unknown, and not read; remove it')
  if values.get('channels') not in (None, 3):
    raise errors.UserError(f'{path}: channels: {values["channels"]}: expected 3, the channels of a picture')
  notes: list[str] = []
  keypoint_numbers = _keypoint_numbers(values.get('kpt_shape'), path)
  return Description(
    path,
    (path,),
    _root(values.get('path'), path, notes),
    _names(values.get('names'), values.get('nc'), path),
    _splits(values, path),
    keypoint_numbers,
    tuple(notes),
  )


def _root(given: Any, path: str, notes: list[str]) -> str:
  """The folder that `path` of a data.yaml names."""
  here = os.path.dirname(path)
  if given in (None, ''):
    return here
  if not isinstance(given, str):
    raise errors.UserError(f'{path}: path: expected a folder, got {given!r}')
  found = os.path.normpath(os.path.join(here, os.path.expanduser(given)))
  if os.path.isdir(found):
    return found
  if os.path.basename(found) != os.path.basename(here):
    notes.append(f'{path}: path: {given}: No such directory: its folder is read instead')
  return here


def _names(names: Any, count: Any, path: str) -> dict[int, str]:
  """Number -> name of each class."""
  if count is not None and (not json_values.is_int(count) or count < 1):
    raise errors.UserError(f'{path}: nc: expected the number of classes, got {count!r}')
  if names is None:
    return {number: f'class_{number}' for number in range(count or 0)}
  try:
    found = {int(key): str(name) for key, name in (names.items() if isinstance(names, dict) else enumerate(names))}
  except (TypeError, ValueError):
    found = {}
  if not found or isinstance(names, str) or min(found) < 0:
    raise errors.UserError(f'{path}: names: expected a list of names, or a mapping from numbers to names')
  _check_names(found, f'{path}: names')
  if count not in (None, len(found), max(found) + 1):
    raise errors.UserError(f'{path}: nc: {count}: names has {len(found)} classes; correct one of them')
  return dict(sorted(found.items()))


def _listed_names(path: str) -> dict[int, str]:
  """Number -> name of each class, from a file with one on each line."""
  names = dict(enumerate(_lines(path)))
  _check_names(names, path)
  return names


def _check_names(names: Mapping[int, str], where: str) -> None:
  nameless = next((number for number, name in names.items() if not name.strip()), None)
  if nameless is not None:
    raise errors.UserError(f'{where}: the class {nameless} has no name; give it one')
  if len(set(names.values())) < len(names):
    raise errors.UserError(f'{where}: two classes have one name; rename one')


def _splits(values: Mapping[str, Any], path: str) -> dict[str, tuple[str, ...]]:
  found: dict[str, tuple[str, ...]] = {}
  for key, split in _SPLITS.items():
    given = values.get(key)
    if given in (None, '', []):
      continue
    entries = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else ()
    if not entries or not all(isinstance(each, str) and each for each in entries):
      raise errors.UserError(f'{path}: {key}: expected a folder of images, a list of images, or several of them')
    if split in found:
      raise errors.UserError(f'{path}: {key}: validation images are named twice; leave one out')
    found[split] = entries
  if found and image_set.TRAIN not in found:
    raise errors.UserError(f'{path}: train: is missing, and {", ".join(found)} is not; name the images for training')
  return found


def _keypoint_numbers(shape: Any, path: str) -> int:
  if shape is None:
    return 0
  is_valid = isinstance(shape, list) and len(shape) == 2 and all(json_values.is_int(each) for each in shape)
  if not is_valid or shape[0] < 1 or shape[1] not in (2, 3):
    raise errors.UserError(f'{path}: kpt_shape: expected [number of keypoints, 2 or 3], got {shape!r}')
  return int(shape[0] * shape[1])


def _of_darknet(folder: str) -> Description | None:
  """The description in `obj.data`, lines of `key = value`, and the file that its `names` names; or in `obj.names`."""
  files = sorted(glob.glob(f'{glob.escape(folder)}/*.data'))
  if len(files) > 1:
    raise errors.UserError(
      f'{folder}: several files describe the data: {", ".join(map(os.path.basename, files))}; keep one'
    )
  lists = sorted(glob.glob(f'{glob.escape(folder)}/*.names'))
  values = {}
  for line in filter(None, _lines(files[0])) if files else ():
    key, equals, value = (part.strip() for part in line.partition('='))
    if not equals or key in values:
      raise errors.UserError(f'{files[0]}: {line}: expected KEY = VALUE, each key once')
    if key not in DARKNET_FIELDS.names:
      raise errors.UserError(f'{files[0]}: {key}: is unknown, and not read; remove it')
    values[key] = value
  if 'names' in values:
    place, _ = _find(values['names'], [folder])
    if place is None:
      raise errors.UserError(f'{files[0]}: names: {values["names"]}: No such file')
    lists = [place]
  if len(lists) > 1:
    raise errors.UserError(f'{folder}: several files name classes: {", ".join(map(os.path.basename, lists))}; keep one')
  if not files and not lists:
    return None
  splits = _splits(values, files[0]) if files else {}
  names = _listed_names(lists[0]) if lists else {}
  count = values.get('classes', '')
  if names and count and count != str(len(names)):
    raise errors.UserError(f'{files[0]}: classes: {count}: {lists[0]} has {len(names)} names; correct one of them')
  return Description((*files, *lists)[0], (*files, *lists), folder, names, splits)


def _lines(path: str) -> list[str]:
  """The lines of a text file, without blank ones at its end.

  Raises:
    UserError: it cannot be read.
  """
  try:
    with open(path, encoding='utf-8-sig') as f:
      lines = [line.strip() for line in f]
  except (OSError, UnicodeDecodeError) as error:
    raise image_set.unreadable(path, error) from error
  while lines and not lines[-1]:
    lines.pop()
  return lines


# Labels.


def _read(entries: Sequence[_Image], description: Description, reading: image_set.Reading) -> image_set.ImageSet:
  """The images with the objects of their labels."""
  found = image_set.ImageSet(files=list(description.files), on_bad_example=reading.on_bad_example)
  found.folders = [description.root] if description.root else []
  found.num_images = len(entries)
  numbers = set[int]()
  files = [next((path for path in each.labels if os.path.isfile(path)), '') for each in entries]
  owners = collections.Counter(filter(None, files))
  for each, file in zip(entries, files):
    objects: list[json_values.JsonObject] = []
    if file:
      found.files += [] if file in found.files[-1:] else [file]
      if owners[file] > 1:
        found.drop(each.name, f'has the name of another image, and one label file: {file}', each.path)
        continue
      try:
        lines = _lines(file)
      except errors.UserError as error:
        found.drop(each.name, f'its label file cannot be read: {error}', each.path)
        continue
      for number, values in _objects(file, lines, description, found):
        numbers.add(number)
        objects.append({**values, 'category': description.names.get(number, f'class_{number}')})
    else:
      found.problems['images without a label file: they count as background'] += 1
    found.images.append(
      image_set.AnnotatedImage(each.name, each.path, split=each.split, objects=tuple(objects), unit='fractions')
    )
  unnamed = [f'class_{number}' for number in range(max(numbers, default=-1) + 1)]
  found.labels = list(description.names.values()) or unnamed
  return found


def _drop_unused(found: image_set.ImageSet, unused: Sequence[_Image], where: str) -> None:
  """Leaves out images that no split has, with their labels."""
  found.num_images += len(unused)
  for each in unused:
    found.known_files.update(os.path.abspath(label) for label in each.labels if os.path.isfile(label))
    found.drop(each.name, f'is in no split of {where}', each.path, is_bad=False)


def _count_orphans(found: image_set.ImageSet, folders: Iterable[str], images: Iterable[_Image]) -> None:
  """Counts text files in folders of labels that belong to no image."""
  known = {label for each in images for label in each.labels} | set(found.files)
  orphans = set()
  for folder in folders:
    for place, inside, names in os.walk(folder, followlinks=True):
      inside[:] = sorted(name for name in inside if not name.startswith('.'))
      for name in names:
        path, stem = os.path.join(place, name), name.lower().partition('.')[0]
        if name.endswith('.txt') and not name.startswith('.') and path not in known and stem not in _OTHER_TEXTS:
          orphans.add(path)
  if orphans:
    found.problems[f'label files without an image, such as {min(orphans)}'] = len(orphans)
    found.ignored['label files without an image'] += len(orphans)
    found.known_files.update(map(os.path.abspath, orphans))


def _objects(
  file: str, lines: Sequence[str], description: Description, found: image_set.ImageSet
) -> Iterator[tuple[int, json_values.JsonObject]]:
  """(class number, box and polygon) of each line. A line that is neither is left out.

  Raises:
    UserError: a class has no name: the description is of other labels.
  """
  for number, line in enumerate(lines, 1):
    words = line.split()
    if not words:
      continue
    found.num_objects += 1
    try:
      category, values = _numbers(words, description)
      box = _object(values, description, found)
    except image_set.BadAnnotationError as error:
      found.drop_object(f'{file}, line {number}', str(error))
      continue
    if description.names and category not in description.names:
      known = description.names
      raise errors.UserError(
        f'{file}, line {number}: the class {category} is not among the names of {description.file}, which are '
        f'{min(known)} to {max(known)}; correct one of them'
      )
    yield category, box


def _numbers(words: Sequence[str], description: Description) -> tuple[int, list[float]]:
  """(class number, other numbers) of a line."""
  try:
    category, values = float(words[0]), [float(word) for word in words[1:]]
  except ValueError:
    raise _expected(words, description) from None
  if not math.isfinite(category) or category < 0 or not category.is_integer() or not all(map(math.isfinite, values)):
    raise _expected(words, description)
  return int(category), values


def _object(values: list[float], description: Description, found: image_set.ImageSet) -> json_values.JsonObject:
  num_keypoints = description.keypoint_numbers
  if num_keypoints:
    if len(values) not in (4, 4 + num_keypoints):
      raise _expected(values, description)
    if len(values) > 4:
      found.problems['objects whose keypoints are left out'] += 1
    values = values[:4]
  if len(values) != 4 and (len(values) < 6 or len(values) % 2):
    raise _expected(values, description)
  far = next((value for value in values if abs(value) > _FARTHEST), None)
  if far is not None:
    raise image_set.BadAnnotationError(
      f'expected fractions of width and height, and keypoints require kpt_shape in data.yaml: {far:g}'
    )
  if len(values) == 4:
    x, y, width, height = values
    return {'bbox': [x - width / 2, y - height / 2, x + width / 2, y + height / 2]}
  box = [min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])]
  return {'bbox': box, 'segmentation': [values]}


def _expected(words: Sequence[object], description: Description) -> image_set.BadAnnotationError:
  more = 'a polygon'
  if description.keypoint_numbers:
    more = f'these and the {description.keypoint_numbers} numbers of kpt_shape in {description.file}'
  return image_set.BadAnnotationError(
    f'expected a class number, and x y width height or {more}: found {" ".join(map(str, words))[:100]}'
  )
