"""Boxes from records with a column `objects`, as data sets of Hugging Face have them.

Format: https://huggingface.co/docs/datasets/image_dataset#object-detection. The records are in metadata.jsonl in the
folder of the images, or in Parquet files that hold the images.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.data import record_files
from official_ext.data.prepare import conversions
from official_ext.vision.conversion import image_set

_METADATA = ('metadata.jsonl', 'metadata.parquet')
_CATEGORIES = ('category', 'categories', 'category_id', 'label', 'labels')
_BOXES = ('bbox', 'bboxes', 'box', 'boxes')


def files_in(folder: str) -> list[tuple[str, str]]:
  """(path, split) of the files of records of a folder."""
  for name in _METADATA:
    if os.path.isfile(os.path.join(folder, name)):
      return [(os.path.join(folder, name), '')]
  files = [file for file in record_files.data_files(folder) if file.endswith(('.parquet', '.arrow'))]
  return [(file, conversions.split_of(os.path.basename(file).split('-')[0].split('.')[0])) for file in files]


def read(file: str, box_format: str = 'xywh') -> image_set.ImageSet:
  """The images of a file of records.

  Args:
    file: JSON lines with `file_name` and `objects`, or a table with `image` and `objects`.
    box_format: 'xywh': left, top, width, height in pixels; 'xyxy': left, top, right, bottom.

  Raises:
    UserError: the file is damaged, or lacks a column.
  """
  records = record_files.read_file(file)
  found, names = image_set.ImageSet(files=[file]), _class_names(file)
  seen: set[str] = set()
  for number in range(len(records)):
    record, place = records.read(number), records.place(number)
    if 'objects' not in record:
      raise errors.UserError(f'{place}: has no column objects; it has {", ".join(record)}')
    objects = []
    for box, category in _pairs(record['objects'], place):
      if names and isinstance(category, int) and not 0 <= category < len(names):
        found.problems['annotations of unknown categories'] += 1
        continue
      name = (names[category] if names else f'class_{category}') if isinstance(category, int) else str(category)
      seen.add(name)
      objects.append({'bbox': _corners(box, box_format, place), 'category': name})
    size = (record['width'], record['height']) if record.get('width') and record.get('height') else ()
    image, row = _image(record, file, place)
    name = image if row < 0 else f'{os.path.basename(file)}/{number}'
    split = _split_of(record, place)
    image = os.path.join(os.path.dirname(file), image) if row < 0 else file
    found.images.append(
      image_set.AnnotatedImage(
        name, image, row=number if row >= 0 else -1, split=split, objects=tuple(objects), size=size
      )
    )
  _split_by_folders(found)
  found.labels = list(names) or sorted(
    seen, key=lambda name: (len(name), name) if name.startswith('class_') else (0, name)
  )
  return found


def _split_of(record: Mapping[str, Any], place: str) -> str:
  """The split in the column `split`; '' without one."""
  given = record.get('split')
  if given in (None, ''):
    return ''
  if not isinstance(given, str) or not conversions.split_of(given):
    raise errors.UserError(f'{place}: split {given!r}: expected {", ".join(image_set.SPLITS)}')
  return conversions.split_of(given)


def _split_by_folders(found: image_set.ImageSet) -> None:
  """Gives images in folders such as `train/` and `validation/` their splits, as `datasets` does."""
  tops = [image_set.split_of_folder(image.name.split('/')[0]) if '/' in image.name else '' for image in found.images]
  if any(image.split or image.row >= 0 for image in found.images) or image_set.TRAIN not in tops:
    return
  pairs = list(zip(found.images, tops))
  found.images = [dataclasses.replace(image, split=split) for image, split in pairs if split]
  found.dropped += [(image.name, 'is in no folder of a split') for image, split in pairs if not split]


def _image(record: Mapping[str, Any], file: str, place: str) -> tuple[str, int]:
  """(the path of the image, -1), or ('', 0) if the record holds it."""
  if isinstance(record.get('file_name'), str):
    return record['file_name'], -1
  if image_bytes(record):
    return '', 0
  raise errors.UserError(f'{place}: has neither file_name nor an image; columns of {file}: {", ".join(record)}')


def image_bytes(record: Mapping[str, Any]) -> bytes:
  """The image that a record of a table holds; b'' without one."""
  image = record.get('image')
  content = image.get('bytes') if isinstance(image, Mapping) else image
  return content if isinstance(content, bytes) else b''


def _pairs(objects: Any, place: str) -> list[tuple[Sequence[float], Any]]:
  """(box, category) of each object, from a dictionary of lists or a list of dictionaries."""
  if isinstance(objects, Mapping):
    boxes = next((objects[name] for name in _BOXES if name in objects), None)
    categories = next((objects[name] for name in _CATEGORIES if name in objects), None)
    if boxes is None or categories is None or len(boxes) != len(categories):
      raise errors.UserError(f'{place}: objects: expected as many values in bbox as in category')
    return list(zip(boxes, categories))
  try:
    return [
      (next(each[name] for name in _BOXES if name in each), next(each[name] for name in _CATEGORIES if name in each))
      for each in objects or ()
    ]
  except (StopIteration, TypeError):
    raise errors.UserError(f'{place}: objects: expected bbox and category') from None


def _corners(box: Sequence[float], box_format: str, place: str) -> list[float]:
  try:
    left, top, third, fourth = (float(value) for value in box)
  except (TypeError, ValueError):
    raise errors.UserError(f'{place}: bbox: expected four numbers, found {box}') from None
  return [left, top, third, fourth] if box_format == 'xyxy' else [left, top, left + third, top + fourth]


def _class_names(file: str) -> list[str]:
  """The names of the categories, which `datasets` stores in the schema of a table; [] without them."""
  if not file.endswith('.parquet'):
    return []
  from pyarrow import parquet  # pylint: disable=g-import-not-at-top

  stored = (parquet.read_schema(file).metadata or {}).get(b'huggingface')
  return _find_names(json.loads(stored)) if stored else []


def _find_names(value: json_values.Json) -> list[str]:
  """The names of the first ClassLabel below a key for categories."""
  if isinstance(value, dict):
    for key in _CATEGORIES:
      label = value.get(key)
      label = label.get('feature', label) if isinstance(label, dict) else None
      if isinstance(label, dict) and label.get('names'):
        return [str(name) for name in label['names']]
    value = list(value.values())
  if isinstance(value, list):
    return next((names for part in value if (names := _find_names(part))), [])
  return []
