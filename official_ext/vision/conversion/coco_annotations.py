"""Boxes and masks from COCO's JSON.

Format: https://cocodataset.org/#format-data.
"""

from collections.abc import Mapping
import glob
import os

from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.base import json_values
from official_ext.data.prepare import conversions
from official_ext.vision.conversion import image_set

_PREFIXES = ('instances_', 'annotations_', '_annotations.')
_SAMPLED_NAMES = 100
_ORIGIN, _KEYPOINTS = 'origin of the data', 'part of keypoints, which are reported'
FIELDS = {
  'file': file_fields.FileFields(
    'COCO file',
    ('images', 'annotations', 'categories'),
    file_fields.because({_ORIGIN: 'info licenses', 'kind of the file': 'type'}),
  ),
  'image': file_fields.FileFields(
    'COCO image',
    ('id', 'file_name', 'width', 'height'),
    file_fields.because({_ORIGIN: 'license coco_url flickr_url date_captured'}),
  ),
  'annotation': file_fields.FileFields(
    'COCO annotation',
    ('image_id', 'category_id', 'bbox', 'segmentation', 'area', 'iscrowd', 'ignore'),
    file_fields.because({'annotations are renumbered': 'id', _KEYPOINTS: 'num_keypoints'}),
  ),
  'category': file_fields.FileFields(
    'COCO category',
    ('id', 'name'),
    file_fields.because({'groups of classes': 'supercategory', _KEYPOINTS: 'keypoints skeleton'}),
  ),
}


def files_in(folder: str) -> list[tuple[str, str]]:
  """(path, split) of each file of annotations in a folder or its folder `annotations`; the split is '' if unnamed."""
  found = []
  for path in sorted(
    glob.glob(f'{glob.escape(folder)}/*.json') + glob.glob(f'{glob.escape(folder)}/annotations/*.json')
  ):
    if _is_coco(path):
      found.append((path, _split_of(path)))
  return found


def _is_coco(path: str) -> bool:
  """Whether a file has the keys of COCO's annotations, by its content."""
  return {'images', 'annotations', 'categories'} <= set(json_values.read_file(path, max_bytes=None) or ())


def _split_of(path: str) -> str:
  words = os.path.basename(path).lower().replace('.', '_').replace('-', '_').split('_')
  return next((split for word in words if (split := conversions.split_of(word.rstrip('0123456789')))), '')


def read(path: str, reading: image_set.Reading) -> image_set.ImageSet:
  """The images of a file. Without `reading.images`, the folder of the images is found next to the file.

  An image or annotation that cannot be used is left out with its number and id.

  Raises:
    UserError: the file is not COCO JSON, two categories have one id or name, or the images are not found.
  """
  values = json_values.read_required_file(path)
  found = image_set.ImageSet(files=[path], on_bad_example=reading.on_bad_example)
  found.note_fields(FIELDS['file'], values)
  categories = _categories(values, path, found)
  images, shared = _images(values, path, found)
  by_id: dict[object, list[json_values.JsonObject]] = {each['id']: [] for each in images}
  annotations = _entries(values, 'annotations', path)
  found.num_objects = len(annotations)
  for number, each in enumerate(annotations):
    try:
      by_id[_owner(each, by_id, shared)].append(_object(each, categories, reading.with_masks, found))
    except image_set.BadAnnotationError as error:
      found.drop_object(_place(path, 'annotations', number, each), str(error))
  folder = reading.images or (_folder_of(path, [each['file_name'] for each in images]) if images else '')
  for each in images:
    found.images.append(
      image_set.AnnotatedImage(
        each['file_name'],
        os.path.join(folder, each['file_name']),
        objects=tuple(by_id[each['id']]),
        size=image_set.size_of(each),
      )
    )
  found.labels = [categories[key] for key in sorted(categories, key=lambda key: (isinstance(key, str), key))]
  found.folders = [folder] if folder else []
  return found


def _entries(values: json_values.JsonMapping, name: str, path: str) -> list[json_values.Json]:
  if not isinstance(values.get(name), list):
    raise errors.UserError(f'{path}: is not COCO JSON: {name}: expected a list of objects')
  return values[name]


def _place(path: str, part: str, number: int, each: json_values.Json) -> str:
  known = f' (id {each["id"]})' if isinstance(each, dict) and 'id' in each else ''
  return f'{path}, {part}[{number}]{known}'


def _is_id(value: json_values.Json) -> bool:
  return json_values.is_number(value) or isinstance(value, str)


def _categories(values: json_values.JsonMapping, path: str, found: image_set.ImageSet) -> dict[object, str]:
  """The name of each category, by its id."""
  categories: dict[object, str] = {}
  for number, each in enumerate(_entries(values, 'categories', path)):
    place = _place(path, 'categories', number, each)
    if not isinstance(each, dict) or not _is_id(each.get('id')) or not str(each.get('name') or '').strip():
      raise errors.UserError(f'{place}: expected an object with id and name')
    found.note_fields(FIELDS['category'], each)
    if each['id'] in categories:
      raise errors.UserError(f'{place}: two categories have one id; give each its own')
    categories[each['id']] = str(each['name'])
  if len(set(categories.values())) < len(categories):
    raise errors.UserError(f'{path}: two categories have one name; rename one')
  return categories


def _images(
  values: json_values.JsonMapping, path: str, found: image_set.ImageSet
) -> tuple[list[json_values.JsonObject], set[object]]:
  """(the images that can be used, ids that several images have: whose annotations these are is unknown)."""
  entries = _entries(values, 'images', path)
  found.num_images = len(entries)
  names: dict[object, set[str]] = {}
  usable: list[json_values.JsonObject] = []
  for number, each in enumerate(entries):
    place = _place(path, 'images', number, each)
    if not isinstance(each, dict) or not isinstance(each.get('file_name'), str) or not each['file_name']:
      found.drop(place, 'has no file_name')
    elif not _is_id(each.get('id')):
      found.drop(place, 'has no id')
    else:
      found.note_fields(FIELDS['image'], each)
      names.setdefault(each['id'], set()).add(each['file_name'])
      usable.append(each)
  shared = {key for key, files in names.items() if len(files) > 1}
  kept: dict[object, json_values.JsonObject] = {}
  for each in usable:
    if each['id'] in shared:
      found.drop(each['file_name'], f'has the id of another image: {each["id"]} in {path}', is_bad=True)
    elif each['id'] in kept:
      found.drop(each['file_name'], f'is listed twice; the first one counts: id {each["id"]} in {path}', is_bad=False)
    else:
      kept[each['id']] = each
  return list(kept.values()), shared


def _owner(each: json_values.Json, by_id: Mapping[object, object], shared: set[object]) -> object:
  """The id of the image of an annotation.

  Raises:
    BadAnnotationError: there is no such image.
  """
  if not isinstance(each, dict):
    raise image_set.BadAnnotationError('is not an object')
  key = each.get('image_id')
  if not _is_id(key):
    raise image_set.BadAnnotationError(f'image_id is not an id: {key!r}')
  if key in shared:
    raise image_set.BadAnnotationError(f'annotations of images that have one id: image_id {key!r}')
  if key not in by_id:
    raise image_set.BadAnnotationError(f'annotations of images that are not listed: image_id {key!r}')
  return key


def _object(
  each: json_values.JsonMapping, categories: Mapping[object, str], with_masks: bool, found: image_set.ImageSet
) -> json_values.JsonObject:
  category = each.get('category_id')
  if not _is_id(category) or category not in categories:
    raise image_set.BadAnnotationError(f'annotations of unknown categories: category_id {category!r}')
  segmentation, is_valid = _segmentation(each.get('segmentation'))
  if not is_valid and with_masks:
    raise image_set.BadAnnotationError(
      f'segmentation is neither polygons nor run lengths: {str(each["segmentation"])[:100]}'
    )
  box = each.get('bbox')
  if not box and isinstance(segmentation, list):
    xs, ys = [x for part in segmentation for x in part[::2]], [y for part in segmentation for y in part[1::2]]
    box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
  x, y, width, height = image_set.check_numbers(box, 4, 'bbox')
  area = each.get('area')
  is_ignored = image_set.is_marked(each.get('ignore'))
  if is_ignored:
    found.problems['objects marked ignore: they count as iscrowd'] += 1
  found.note_fields(FIELDS['annotation'], each)
  return {
    'bbox': [x, y, x + width, y + height],
    'category': categories[category],
    'iscrowd': int(is_ignored or image_set.is_marked(each.get('iscrowd'))),
    'area': float(area) if json_values.is_finite(area) else 0.0,
    'segmentation': segmentation,
  }


def _segmentation(given: json_values.Json) -> tuple[json_values.Json, bool]:
  """(polygons, or run lengths as given, or None; whether it is one of them). A flat list of numbers is one polygon."""
  if not given:
    return None, True
  if isinstance(given, dict):
    size: json_values.Json = given.get('size')
    counts: json_values.Json = given.get('counts')
    is_valid = isinstance(size, list) and len(size) == 2 and all(json_values.is_int(side) and side > 0 for side in size)
    if isinstance(counts, list):
      is_number = all(json_values.is_int(count) and count >= 0 for count in counts)
      is_valid = is_valid and is_number and sum(counts) == size[0] * size[1]
    else:
      is_valid = is_valid and isinstance(counts, str)
    return (given, True) if is_valid else (None, False)
  if not isinstance(given, list):
    return None, False
  parts = [given] if all(map(json_values.is_finite, given)) else given
  if any(not isinstance(part, list) or not all(map(json_values.is_finite, part)) for part in parts):
    return None, False
  parts = [part for part in parts if len(part) >= 6 and len(part) % 2 == 0]  # Fewer points enclose nothing.
  return (parts, True) if parts else (None, False)


def _folder_of(path: str, names: list[str]) -> str:
  """The folder of the images: of the usual ones, the one that holds most of the first ones.

  Raises:
    UserError: no folder holds any, or several hold as many.
  """
  here = os.path.dirname(path)
  above = os.path.dirname(here) if os.path.basename(here) == 'annotations' else here
  stem = os.path.splitext(os.path.basename(path))[0]
  for prefix in _PREFIXES:
    stem = stem.removeprefix(prefix)
  candidates = [here, above, *(os.path.join(place, name) for place in (above, here) for name in ('images', stem))]
  candidates += [os.path.join(above, 'images', stem)]
  counts = {
    folder: sum(os.path.isfile(os.path.join(folder, name)) for name in names[:_SAMPLED_NAMES])
    for folder in dict.fromkeys(candidates)
  }
  best = [folder for folder, count in counts.items() if count and count == max(counts.values())]
  if len(best) > 1:
    raise errors.UserError(f'{path}: its images are in {" and in ".join(best)}; give --images=FOLDER')
  if best:
    return best[0]
  raise errors.UserError(f'{path}: its images are not found in {", ".join(counts)}; give --images=FOLDER')
