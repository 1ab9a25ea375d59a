"""Boxes from the XML files of Pascal VOC.

Format: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/. Corners count from 1, and both belong to the box.
"""

from collections.abc import Mapping, Sequence
import glob
import os
from xml.etree import ElementTree

from official_ext.base import file_fields
from official_ext.vision.conversion import image_set

_IMAGE_FOLDERS = ('JPEGImages', 'images', 'Images', 'imgs')
_CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')
_ORIGIN = 'origin of the data'
FIELDS = {
  'file': file_fields.FileFields(
    'VOC annotation',
    ('filename', 'size', 'object'),
    file_fields.because({_ORIGIN: 'folder path source owner url', 'another task': 'segmented'}),
  ),
  'object': file_fields.FileFields(
    'VOC object',
    ('name', 'bndbox', 'difficult'),
    file_fields.because({'describes the object': 'pose truncated occluded', 'another task': 'part actions'}),
  ),
}


def read_folder(folder: str, reading: image_set.Reading) -> image_set.ImageSet | None:
  """The images of a folder with XML files, in `Annotations` or next to the images; None if it has none.

  Raises:
    UserError: a list of a split cannot be read.
  """
  place = image_set.first_folder(folder, ('Annotations', 'annotations')) or folder
  files = sorted(glob.glob(f'{glob.escape(place)}/*.xml'))
  if not files:
    return None
  images = reading.images or image_set.first_folder(folder, _IMAGE_FOLDERS) or place
  by_stem: dict[str, list[str]] = {}
  for name in image_set.images_in(images):
    by_stem.setdefault(os.path.splitext(name)[0], []).append(name)
  lines, lists = image_set.pascal_voc_splits(folder, 'Main')
  found = image_set.ImageSet(files=[*files, *lists], folders=[images], on_bad_example=reading.on_bad_example)
  stems = {os.path.splitext(os.path.basename(file))[0] for file in files}
  splits, overlaps = image_set.first_splits((_name_in(line, stems), split) for line, split in lines)
  found.problems.update(overlaps)
  found.num_images = len(files)
  for file in files:
    found_image = _read(file, images, by_stem, stems, found)
    if found_image is None:
      continue
    if splits and found_image.name not in splits:
      found.drop(
        found_image.name,
        'is in no list of ImageSets/Main',
        found_image.file,
        num_objects=len(found_image.objects),
        is_bad=False,
      )
      continue
    split = splits.get(found_image.name, '')
    found.images.append(image_set.AnnotatedImage(**{**vars(found_image), 'split': split}))
  for name in splits:
    if name not in stems:
      found.num_images += 1
      found.drop(name, f'is in a list of ImageSets/Main and has no XML file: in {place}')
  found.labels = sorted({each['category'] for image in found.images for each in image.objects})
  return found


def _name_in(line: str, stems: set[str]) -> str:
  """The name in a line of a list. A name may have blanks; a list of one class has 1, 0 or -1 after each name."""
  before, _, mark = line.rpartition(' ')
  names = (line, os.path.splitext(line)[0], *([before.strip()] if mark in ('1', '0', '-1') else []))
  return next((name for name in names if name in stems), names[-1] if len(names) > 2 else line)


def _read(
  file: str, images: str, by_stem: Mapping[str, Sequence[str]], stems: set[str], found: image_set.ImageSet
) -> image_set.AnnotatedImage | None:
  stem = os.path.splitext(os.path.basename(file))[0]
  try:
    root = ElementTree.parse(file).getroot()
  except (ElementTree.ParseError, OSError, ValueError, LookupError) as error:
    where = f'line {error.position[0]}' if isinstance(error, ElementTree.ParseError) else ''
    found.drop(stem, f'its file is not XML: {file}{where and ", "}{where}')
    return None
  found.note_fields(FIELDS['file'], {each.tag: True for each in root})
  elements = list(root.iter('object'))
  found.num_objects += len(elements)
  given = root.findtext('filename', '').strip()
  named = os.path.splitext(given)[0]
  # An image belongs to the file of its name, before one that only states it.
  names = by_stem.get(stem) or (() if named in stems else by_stem.get(named)) or ()
  if len(names) > 1 and given in names:
    names = [given]
  if len(names) != 1:
    reason = f'has several images: {", ".join(names)} for {file}' if names else f'has no image: for {file}'
    paths = [os.path.join(images, name) for name in names]
    found.drop(stem, reason, *paths, num_objects=len(elements))
    return None
  objects = []
  for number, each in enumerate(elements):
    try:
      objects.append(_object(each, found))
    except image_set.BadAnnotationError as error:
      found.drop_object(f'{file}, object {number}', str(error))
  sides = [root.findtext(f'size/{side}', '').strip() for side in ('width', 'height')]
  try:
    size = tuple(int(float(side)) for side in sides)
  except (ValueError, OverflowError):
    size = ()
  return image_set.AnnotatedImage(
    stem, os.path.join(images, names[0]), objects=tuple(objects), size=size if all(size) else ()
  )


def _object(each: ElementTree.Element, found: image_set.ImageSet) -> dict[str, object]:
  name = each.findtext('name', '').strip()
  if not name:
    raise image_set.BadAnnotationError('has no name')
  corners = [each.findtext(f'bndbox/{side}', '').strip() for side in _CORNERS]
  left, top, right, bottom = image_set.check_numbers(corners, 4, 'bndbox')
  found.note_fields(FIELDS['object'], {part.tag: True for part in each})
  is_difficult = image_set.is_marked(each.findtext('difficult', ''))
  if is_difficult:
    found.problems[image_set.DIFFICULT] += 1
  return {'bbox': [left - 1, top - 1, right, bottom], 'category': name, 'iscrowd': int(is_difficult)}
