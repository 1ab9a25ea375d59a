"""Images with one class each: folders of classes, and CSV files of paths and labels."""

import csv
import os

from official_ext.base import errors
from official_ext.data.prepare import conversions
from official_ext.vision.conversion import image_set

_PATHS = ('path', 'file', 'filename', 'file_name', 'image', 'image_path')
_LABELS = ('label', 'class', 'class_name', 'category')
_SPLITS = ('split', 'subset')
_POSSIBLE_SPLITS = ('set', 'partition', 'fold')  # Columns of these names may hold something else.


def read_folder(folder: str) -> image_set.ImageSet | None:
  """The images of a folder with a subfolder for each class; None if it is not one."""
  found = image_set.ImageSet()
  for name in sorted(os.listdir(folder)):
    path = os.path.join(folder, name)
    if name.startswith('.') or not os.path.isdir(path):
      continue
    files = image_set.images_in(path)
    if files:
      found.labels.append(name)
      found.images += [
        image_set.AnnotatedImage(f'{name}/{file}', os.path.join(path, file), label=name) for file in files
      ]
  return found if found.images else None


def read_csv(file: str) -> image_set.ImageSet:
  """The images of a CSV file with the columns path and label, and possibly split; paths are relative to its folder.

  Raises:
    UserError: a column or value is missing.
  """
  with open(file, encoding='utf-8-sig', newline='') as f:
    rows = list(csv.reader(f))
  if not rows:
    raise errors.UserError(f'{file}: is empty; expected lines such as photos/1.jpg,cat')
  header = [name.strip().lower() for name in rows[0]]
  path_column, label_column, split_column = (_column(header, names) for names in (_PATHS, _LABELS, _SPLITS))
  if path_column < 0 and label_column < 0:  # Without a header.
    path_column, label_column, start = 0, 1, 0
  else:
    start = 1
  if split_column < 0:
    possible = _column(header, _POSSIBLE_SPLITS)
    if possible >= 0 and _names_splits(rows[start:], possible):
      split_column = possible
  if path_column < 0 or label_column < 0:
    missing, names = ('path', _PATHS) if path_column < 0 else ('label', _LABELS)
    raise errors.UserError(f'{file}: has no column {missing}; name one of its columns {" or ".join(names)}')
  found = image_set.ImageSet(files=[file])
  width = max(map(len, rows[start:]), default=0)
  unread = [number for number in range(width) if number not in (path_column, label_column, split_column)]
  if not start and width > 2 and _names_splits(rows, 2):
    raise errors.UserError(
      f'{file}, line 1: the third column has names of splits, and no header; begin with a line path,label,split'
    )
  if unread:
    named = [header[number] if start and number < len(header) else f'number {number + 1}' for number in unread]
    found.notes.append(f'{file}: columns that are not read: {", ".join(named)}')
  for number, row in enumerate(rows[start:], start + 1):
    if not any(row):
      continue
    if len(row) <= max(path_column, label_column) or not row[label_column].strip():
      raise errors.UserError(f'{file}, line {number}: expected a path and a label')
    split = row[split_column].strip() if 0 <= split_column < len(row) else ''
    if split and not conversions.split_of(split):
      raise errors.UserError(f'{file}, line {number}: split {split!r}: expected {", ".join(image_set.SPLITS)}')
    path = row[path_column].strip()
    image = os.path.join(os.path.dirname(file), os.path.expanduser(path))
    found.images.append(
      image_set.AnnotatedImage(path, image, split=conversions.split_of(split), label=row[label_column].strip())
    )
  found.labels = sorted({image.label for image in found.images if image.label}, key=_natural)
  return found


def _names_splits(rows: list[list[str]], column: int) -> bool:
  """Whether all values of a column are names of splits."""
  values = {row[column].strip() for row in rows if column < len(row)} - {''}
  return bool(values) and all(map(conversions.split_of, values))


def _column(header: list[str], names: tuple[str, ...]) -> int:
  return next((header.index(name) for name in names if name in header), -1)


def _natural(name: str) -> tuple[int, int, str]:
  """Orders numbers by value, before other names."""
  return (0, int(name), name) if name.isdecimal() else (1, 0, name)
