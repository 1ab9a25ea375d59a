"""Boxes from records with a column `objects`, as data sets of Hugging Face have them.

Format: https://huggingface.co/docs/datasets/image_dataset#object-detection. The records are in metadata.jsonl in the
folder of the images, or in Parquet files that hold the images.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import hashlib
import json
import os
from typing import Any

from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.base import json_values
from official_ext.data import bad_examples
from official_ext.data import numbered_records
from official_ext.data import record_files
from official_ext.data.prepare import conversions
from official_ext.vision.conversion import image_set

_CATEGORIES = ('category', 'categories', 'category_id', 'label', 'labels')
_BOXES = ('bbox', 'bboxes', 'box', 'boxes')
_MARKS = ('area', 'iscrowd', 'is_crowd', 'difficult')
FIELDS = {
  'record': file_fields.FileFields(
    'Hugging Face record',
    ('file_name', 'image', 'objects', 'width', 'height', 'split'),
    file_fields.because({'records are renumbered': 'id image_id'}),
  ),
  'objects': file_fields.FileFields(
    'Hugging Face objects',
    (*_BOXES, *_CATEGORIES, *_MARKS),
    file_fields.because({'objects are renumbered': 'id bbox_id'}),
  ),
}
_METADATA = ('metadata.jsonl', 'metadata.parquet')


def files_in(folder: str) -> list[tuple[str, str]]:
  """(path, split) of the files of records of a folder."""
  for name in _METADATA:
    if os.path.isfile(os.path.join(folder, name)):
      return [(os.path.join(folder, name), '')]
  files = [file for file in record_files.data_files(folder) if file.endswith(('.parquet', '.arrow'))]
  return [(file, conversions.split_of(os.path.basename(file).split('-')[0].split('.')[0])) for file in files]


def read(file: str, reading: image_set.Reading) -> image_set.ImageSet:
  """The images of a file of records.

  Args:
    file: JSON lines with `file_name` and `objects`, or a table with `image` and `objects`.
    reading: its `box_format` is 'xywh': left, top, width, height in pixels; or 'xyxy': left, top, right, bottom.

  Raises:
    UserError: the file is damaged, or no record has the column `objects`.
  """
  records = record_files.read_file(file)
  found = image_set.ImageSet(files=[file], on_bad_example=reading.on_bad_example)
  names = _class_names(file)
  found.num_images = len(records)
  has_objects = False
  for number in range(len(records)):
    place = records.place(number)
    try:
      record = records.read(number)
      has_objects |= 'objects' in record
      found.images.append(_read(record, file, number, place, names, reading, found))
    except bad_examples.BadExampleError as error:
      found.drop(f'record {number}', f'cannot be read: {error}')
    except image_set.BadAnnotationError as error:
      found.drop(place, str(error))
  if len(records) and not has_objects:
    raise errors.UserError(f'{file}: has no column objects; it has {", ".join(_columns(records))}')
  seen = {each['category'] for image in found.images for each in image.objects}
  without_split = sum(not image.split for image in found.images)
  if 0 < without_split < len(found.images):
    found.notes.append(f'{file}: records without a split: {without_split}; {conversions.WITHOUT_SPLIT}')
  _split_by_folders(found)
  found.labels = list(names) or sorted(
    seen, key=lambda name: (len(name), name) if name.startswith('class_') else (0, name)
  )
  if any(image.row < 0 for image in found.images):
    found.folders = [os.path.dirname(file)]
  return found


def _columns(records: numbered_records.Records) -> Iterator[str]:
  with contextlib.suppress(bad_examples.BadExampleError):
    yield from records.read(0)


def _read(
  record: json_values.JsonMapping,
  file: str,
  number: int,
  place: str,
  names: Sequence[str],
  reading: image_set.Reading,
  found: image_set.ImageSet,
) -> image_set.AnnotatedImage:
  """The image of a record.

  Raises:
    BadAnnotationError: it cannot be used.
  """
  if 'objects' not in record:
    raise image_set.BadAnnotationError(f'has no column objects: it has {", ".join(record)}')
  found.note_fields(FIELDS['record'], record)
  split = _split_of(record)
  image, row = _image(record)
  objects = []
  pairs = _objects(record['objects'], found)
  found.num_objects += len(pairs)
  for index, each in enumerate(pairs):
    try:
      objects.append(_object(each, names, reading.box_format, found))
    except image_set.BadAnnotationError as error:
      found.drop_object(f'{place}, objects[{index}]', str(error))
  return image_set.AnnotatedImage(
    f'{os.path.basename(file)}/{number}' if row >= 0 else image,
    file if row >= 0 else os.path.join(os.path.dirname(file), image),
    row=number if row >= 0 else -1,
    split=split,
    objects=tuple(objects),
    size=image_set.size_of(record),
    # The number of a row is another one in another order.
    key=hashlib.sha256(image_bytes(record)).hexdigest() if row >= 0 else '',
  )


def _object(
  each: json_values.JsonMapping, names: Sequence[str], box_format: str, found: image_set.ImageSet
) -> json_values.JsonObject:
  """The object of a record: box, category and marks.

  Raises:
    BadAnnotationError: it cannot be used.
  """
  category = each['category']
  if isinstance(category, bool) or not isinstance(category, (int, str)) or category == '':
    raise image_set.BadAnnotationError(f'category is neither a name nor a number: {category!r}')
  if isinstance(category, int) and (category < 0 or names and category >= len(names)):
    raise image_set.BadAnnotationError(f'annotations of unknown categories: category {category}')
  left, top, third, fourth = image_set.check_numbers(each['bbox'], 4, 'bbox')
  is_difficult = image_set.is_marked(each.get('difficult'))
  if is_difficult:
    found.problems[image_set.DIFFICULT] += 1
  marks = (each.get('iscrowd'), each.get('is_crowd'))
  return {
    'bbox': [left, top, third, fourth] if box_format == 'xyxy' else [left, top, left + third, top + fourth],
    'category': (names[category] if names else f'class_{category}') if isinstance(category, int) else category,
    'iscrowd': int(is_difficult or any(map(image_set.is_marked, marks))),
    'area': float(each['area']) if json_values.is_finite(each.get('area')) else 0.0,
  }


def _split_of(record: Mapping[str, Any]) -> str:
  """The split in the column `split`; '' without one.

  Raises:
    BadAnnotationError: it names none.
  """
  given = record.get('split')
  if given in (None, ''):
    return ''
  if not isinstance(given, str) or not conversions.split_of(given):
    raise image_set.BadAnnotationError(f'has an unknown split: {given!r}, expected {", ".join(image_set.SPLITS)}')
  return conversions.split_of(given)


def _split_by_folders(found: image_set.ImageSet) -> None:
  """Gives images in folders such as `train/` and `validation/` their splits, as `datasets` does."""
  tops = [image_set.split_of_folder(image.name.split('/')[0]) if '/' in image.name else '' for image in found.images]
  if any(image.split or image.row >= 0 for image in found.images) or image_set.TRAIN not in tops:
    return
  pairs = list(zip(found.images, tops))
  found.images = [dataclasses.replace(image, split=split) for image, split in pairs if split]
  for image, split in pairs:
    if not split:
      found.drop(image.name, 'is in no folder of a split', image.file, num_objects=len(image.objects), is_bad=False)


def _image(record: Mapping[str, Any]) -> tuple[str, int]:
  """(the path of the image, -1), or ('', 0) if the record holds it."""
  if isinstance(record.get('file_name'), str) and record['file_name']:
    return record['file_name'], -1
  if image_bytes(record):
    return '', 0
  raise image_set.BadAnnotationError(f'has neither file_name nor an image: columns {", ".join(record)}')


def image_bytes(record: Mapping[str, Any]) -> bytes:
  """The image that a record of a table holds; b'' without one."""
  image = record.get('image')
  content = image.get('bytes') if isinstance(image, Mapping) else image
  return content if isinstance(content, bytes) else b''


def _objects(given: Any, found: image_set.ImageSet) -> list[dict[str, Any]]:
  """The fields of each object, box and category under one name, from a dictionary of lists or a list of dictionaries.

  Raises:
    BadAnnotationError: which values belong to an object is unknown.
  """
  if isinstance(given, Mapping):
    lists = _named(given, found)
    if any(not isinstance(values, Sequence) or isinstance(values, str) for values in lists.values()):
      raise image_set.BadAnnotationError('objects: expected a list in each field')
    if len(set(map(len, lists.values()))) > 1:
      sizes = ', '.join(f'{len(values)} of {name}' for name, values in lists.items())
      raise image_set.BadAnnotationError(f'objects have fields of different lengths: {sizes}')
    return [dict(zip(lists, values)) for values in zip(*lists.values())]
  if given is None:
    return []
  if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(each, Mapping) for each in given):
    raise image_set.BadAnnotationError('objects: expected lists of bbox and category, or a list of such objects')
  return [_named(each, found) for each in given]


def _named(given: Mapping[str, Any], found: image_set.ImageSet) -> dict[str, Any]:
  """The fields that are read, box and category under one name. Others are counted."""
  names = {'bbox': _first(_BOXES, given), 'category': _first(_CATEGORIES, given)}
  missing = [name for name, own in names.items() if own not in given]
  if missing:
    raise image_set.BadAnnotationError(f'objects: have no {missing[0]}; expected bbox and category')
  others = {name: value for name, value in given.items() if name not in names.values()}
  found.note_fields(FIELDS['objects'], others)
  for name in _BOXES + _CATEGORIES:
    if name in others:  # Another name for what is read.
      found.ignored[f'{FIELDS["objects"].name} field {name}'] += 1
  marks = {name: others[name] for name in _MARKS if others.get(name) is not None}
  return {**{name: given[own] for name, own in names.items()}, **marks}


def _first(names: Sequence[str], given: Mapping[str, Any]) -> str:
  return next((name for name in names if name in given), '')


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
