"""Images with one class each: folders of classes, and CSV files of paths and labels."""

import csv
import os

from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.data.prepare import conversions
from official_ext.vision.conversion import image_set

_PATHS = ('path', 'file', 'filename', 'file_name', 'image', 'image_path')
_LABELS = ('label', 'class', 'class_name', 'category')
_SPLITS = ('split', 'subset')
_POSSIBLE_SPLITS = ('set', 'partition', 'fold')  # Columns of these names may hold something else.

FIELDS = file_fields.FileFields('CSV column', (*_PATHS, *_LABELS, *_SPLITS, *_POSSIBLE_SPLITS))


def read_folder(folder: str, reading: image_set.Reading) -> image_set.ImageSet | None:
  """The images of a folder with a subfolder for each class; None if it is not one."""
  found = image_set.ImageSet(on_bad_example=reading.on_bad_example)
  for name in sorted(os.listdir(folder)):
    path = os.path.join(folder, name)
    if name.startswith('.'):
      continue
    if not os.path.isdir(path):
      if image_set.is_image(name):
        found.num_images += 1
        found.drop(name, 'is in no folder of a class', path, is_bad=False)
      continue
    files = image_set.images_in(path)
    found.num_images += len(files)
    if files:
      found.labels.append(name)
      found.images += [
        image_set.AnnotatedImage(f'{name}/{file}', os.path.join(path, file), label=name) for file in files
      ]
    else:
      found.ignored[f'folder {name}, which has no image'] += 1
  return found if found.images else None


def read_csv(file: str, reading: image_set.Reading) -> image_set.ImageSet:
  """The images of a CSV file with the columns path and label, and possibly split; paths are relative to its folder.

  Raises:
    UserError: a column is missing, or two have one name.
  """
  rows = _rows(file)
  header = [name.strip().lower() for name in rows[0]]
  path_column, label_column, split_column = (_column(header, names) for names in (_PATHS, _LABELS, _SPLITS))
  if path_column < 0 and label_column < 0:  # Without a header.
    if not image_set.is_image(rows[0][0].strip() if rows[0] else ''):
      raise errors.UserError(
        f'{file}, line 1: {",".join(rows[0])[:100]}: is neither a header nor an image; name its columns path and label'
      )
    path_column, label_column, start = 0, 1, 0
  else:
    start = 1
    twice = next((name for name in header if name and header.count(name) > 1), '')
    if twice:
      raise errors.UserError(f'{file}: two columns have the name {twice}; rename one')
  if split_column < 0:
    possible = _column(header, _POSSIBLE_SPLITS)
    if possible >= 0 and _names_splits(rows[start:], possible):
      split_column = possible
  if path_column < 0 or label_column < 0:
    missing, names = ('path', _PATHS) if path_column < 0 else ('label', _LABELS)
    raise errors.UserError(f'{file}: has no column {missing}; name one of its columns {" or ".join(names)}')
  found = image_set.ImageSet(files=[file], on_bad_example=reading.on_bad_example)
  width = max(map(len, rows[start:]), default=0)
  unread = [number for number in range(width) if number not in (path_column, label_column, split_column)]
  if not start and width > 2 and _names_splits(rows, 2):
    raise errors.UserError(
      f'{file}, line 1: the third column has names of splits, and no header; begin with a line path,label,split'
    )
  columns = [header[number] if start and number < len(header) else f'number {number + 1}' for number in range(width)]
  for number, row in enumerate(rows[start:], start + 1):
    if not any(row):
      continue
    found.num_images += 1
    for column in unread:
      if column < len(row) and row[column].strip():
        found.ignored[f'{FIELDS.name} {columns[column] or f"number {column + 1}"}'] += 1
    split = row[split_column].strip() if 0 <= split_column < len(row) else ''
    if len(row) <= max(path_column, label_column) or not row[label_column].strip() or not row[path_column].strip():
      found.drop(f'{file}, line {number}', 'has no path or no label')
      continue
    if split and not conversions.split_of(split):
      found.drop(f'{file}, line {number}', f'has an unknown split: {split}, expected {", ".join(image_set.SPLITS)}')
      continue
    path = row[path_column].strip()
    image = os.path.join(os.path.dirname(file), os.path.expanduser(path))
    found.images.append(
      image_set.AnnotatedImage(path, image, split=conversions.split_of(split), label=row[label_column].strip())
    )
  without_split = sum(not image.split for image in found.images)
  if 0 < without_split < len(found.images):
    found.notes.append(f'{file}: rows without a split: {without_split}; {conversions.WITHOUT_SPLIT}')
  found.labels = sorted({image.label for image in found.images if image.label}, key=_natural)
  return found


def _rows(file: str) -> list[list[str]]:
  try:
    with open(file, encoding='utf-8-sig', newline='') as f:
      rows = list(csv.reader(f, strict=True))
  except csv.Error as error:
    raise errors.UserError(f'{file}: is not CSV: {error}; repair it') from error
  except (OSError, UnicodeDecodeError) as error:
    raise image_set.unreadable(file, error) from error
  if not rows:
    raise errors.UserError(f'{file}: is empty; expected lines such as photos/1.jpg,cat')
  return rows


def _names_splits(rows: list[list[str]], column: int) -> bool:
  """Whether all values of a column are names of splits."""
  values = {row[column].strip() for row in rows if column < len(row)} - {''}
  return bool(values) and all(map(conversions.split_of, values))


def _column(header: list[str], names: tuple[str, ...]) -> int:
  return next((header.index(name) for name in names if name in header), -1)


def _natural(name: str) -> tuple[int, int, str]:
  """Orders numbers by value, before other names."""
  return (0, int(name), name) if name.isdecimal() else (1, 0, name)
