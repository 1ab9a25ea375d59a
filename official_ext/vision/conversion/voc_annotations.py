"""Boxes from the XML files of Pascal VOC.

Format: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/. Corners count from 1, and both belong to the box.
"""

import glob
import os
from xml.etree import ElementTree

from official_ext.base import errors
from official_ext.vision.conversion import image_set

_IMAGE_FOLDERS = ('JPEGImages', 'images', 'Images', 'imgs')


def read_folder(folder: str, images_folder: str = '') -> image_set.ImageSet | None:
  """The images of a folder with XML files, in `Annotations` or next to the images; None if it has none.

  Raises:
    UserError: an XML file is damaged.
  """
  place = image_set.first_folder(folder, ('Annotations', 'annotations')) or folder
  files = sorted(glob.glob(f'{glob.escape(place)}/*.xml'))
  if not files:
    return None
  images = images_folder or image_set.first_folder(folder, _IMAGE_FOLDERS) or place
  by_stem: dict[str, str] = {}
  for name in image_set.images_in(images):
    by_stem.setdefault(os.path.splitext(name)[0], name)
  found = image_set.ImageSet(files=files)
  lines = image_set.pascal_voc_splits(folder, 'Main')
  stems = {os.path.splitext(os.path.basename(file))[0] for file in files}
  # A name may have blanks. A list of one class has 1 or -1 after each name.
  splits = {line if line in stems else line.split()[0]: split for line, split in lines}
  for file in files:
    found_image = _read(file, images, by_stem, found)
    if found_image is None:
      continue
    if splits and found_image.name not in splits:
      found.dropped.append((found_image.name, 'is in no list of ImageSets/Main'))
      continue
    split = splits.get(found_image.name, '')
    found.images.append(image_set.AnnotatedImage(**{**vars(found_image), 'split': split}))
  found.dropped += [
    (name, f'is in a list of ImageSets/Main, and {place} has no XML file of it') for name in splits if name not in stems
  ]
  found.labels = sorted({each['category'] for image in found.images for each in image.objects})
  return found


def _read(
  file: str, images: str, by_stem: dict[str, str], found: image_set.ImageSet
) -> image_set.AnnotatedImage | None:
  stem = os.path.splitext(os.path.basename(file))[0]
  try:
    root = ElementTree.parse(file).getroot()
    name = by_stem.get(stem) or by_stem.get(os.path.splitext(root.findtext('filename', ''))[0])
    if name is None:
      found.dropped.append((stem, f'no image for {file}'))
      return None
    size = tuple(int(float(root.findtext(f'size/{side}', '0'))) for side in ('width', 'height'))
    objects = []
    for each in root.iter('object'):
      left, top, right, bottom = (
        float(each.findtext(f'bndbox/{side}', '')) for side in ('xmin', 'ymin', 'xmax', 'ymax')
      )
      objects.append({'bbox': [left - 1, top - 1, right, bottom], 'category': each.findtext('name', '').strip()})
  except (ElementTree.ParseError, OSError, ValueError) as error:
    raise errors.UserError(f'{file}: is not an annotation of Pascal VOC: {error}; repair or remove it') from error
  return image_set.AnnotatedImage(
    stem, os.path.join(images, name), objects=tuple(objects), size=size if all(size) else ()
  )
