"""Boxes and masks from COCO's JSON.

Format: https://cocodataset.org/#format-data.
"""

import glob
import os

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.data.prepare import conversions
from official_ext.vision.conversion import image_set

_PREFIXES = ('instances_', 'annotations_', '_annotations.')


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


def read(path: str, images_folder: str = '') -> image_set.ImageSet:
  """The images of a file.

  Args:
    path: the JSON file.
    images_folder: the folder of the images; '': it is found next to the file.

  Raises:
    UserError: the file is damaged, or its images are not found.
  """
  values = json_values.read_required_file(path)
  try:
    images, categories = values['images'], {each['id']: str(each['name']) for each in values['categories']}
    folder = images_folder or _folder_of(path, [each['file_name'] for each in images])
    found = image_set.ImageSet(labels=[categories[key] for key in sorted(categories)], files=[path])
    if len(set(found.labels)) < len(found.labels):
      raise errors.UserError(f'{path}: two categories have one name; rename one')
    known = {each['id'] for each in images}
    objects: dict[object, list[json_values.JsonObject]] = {}
    for each in values['annotations']:
      if each['image_id'] not in known:
        found.problems['annotations of images that are not listed'] += 1
      elif each.get('category_id') not in categories:
        found.problems['annotations of unknown categories'] += 1
      else:
        objects.setdefault(each['image_id'], []).append(_object(each, categories))
    for each in images:
      size = (int(each['width']), int(each['height'])) if each.get('width') and each.get('height') else ()
      found.images.append(
        image_set.AnnotatedImage(
          each['file_name'],
          os.path.join(folder, each['file_name']),
          objects=tuple(objects.get(each['id'], ())),
          size=size,
        )
      )
  except (KeyError, TypeError, ValueError, IndexError) as error:
    raise errors.UserError(f'{path}: is not COCO JSON: {type(error).__name__}: {error}') from error
  return found


def _object(each: json_values.JsonObject, categories: dict[object, str]) -> json_values.JsonObject:
  segmentation = each.get('segmentation') or None
  box: list[float] = each.get('bbox') or []
  if not box and isinstance(segmentation, list):
    xs, ys = [x for part in segmentation for x in part[::2]], [y for part in segmentation for y in part[1::2]]
    box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
  x, y, width, height = (float(value) for value in box)
  return {
    'bbox': [x, y, x + width, y + height],
    'category': categories[each['category_id']],
    'iscrowd': int(each.get('iscrowd') or 0),
    'area': float(each.get('area') or 0),
    'segmentation': segmentation,
  }


def _folder_of(path: str, names: list[str]) -> str:
  """The folder of the images: the first of the usual ones that holds one of the first."""
  here = os.path.dirname(path)
  above = os.path.dirname(here) if os.path.basename(here) == 'annotations' else here
  stem = os.path.splitext(os.path.basename(path))[0]
  for prefix in _PREFIXES:
    stem = stem.removeprefix(prefix)
  candidates = [here, above, *(os.path.join(place, name) for place in (above, here) for name in ('images', stem))]
  candidates += [os.path.join(above, 'images', stem)]
  for folder in candidates:
    if any(os.path.isfile(os.path.join(folder, name)) for name in names[:100]):
      return folder
  raise errors.UserError(
    f'{path}: its images are not found in {", ".join(dict.fromkeys(candidates))}; give --images=FOLDER'
  )
