"""Images with a mask of class numbers each, in two folders."""

import os

from official_ext.vision.conversion import image_set

_IMAGES = ('images', 'image', 'imgs', 'JPEGImages', 'leftImg8bit')
_MASKS = ('masks', 'mask', 'labels', 'annotations', 'SegmentationClass', 'gtFine')
_SUFFIXES = ('_mask', '-mask', '_label', '_labels')


def read_folder(folder: str) -> image_set.ImageSet | None:
  """The images of a folder with `images` and `masks`, whose files have the same names without their endings.

  Splits are folders above or below these two, or `ImageSets/Segmentation/train.txt` of Pascal VOC.

  Returns:
    None if it is not such a folder.
  """
  above = image_set.split_folders(folder)
  if above:
    parts = {split: read_folder(path) for split, path in above.items()}
    found = image_set.merged(part.in_split(split, f'{split}/') for split, part in parts.items() if part is not None)
    found.notes += image_set.unread_folders(folder, above)
    found.notes += [
      f'{above[split]}: holds no images with masks: not read' for split, part in parts.items() if part is None
    ]
    return found
  images, masks = (image_set.first_folder(folder, names) for names in (_IMAGES, _MASKS))
  if not images or not masks:
    return None
  below = image_set.split_folders(images)
  if below:
    found = image_set.merged(
      _read(path, os.path.join(masks, os.path.basename(path))).in_split(split, f'{split}/')
      for split, path in below.items()
    )
    found.notes += image_set.unread_folders(images, below)
    return found
  found = _read(images, masks)
  splits = dict(image_set.pascal_voc_splits(folder, 'Segmentation'))
  if image_set.TRAIN in splits.values():
    chosen = [(image, splits.get(os.path.splitext(image.name)[0], '')) for image in found.images]
    found.images = [image_set.AnnotatedImage(**{**vars(image), 'split': split}) for image, split in chosen if split]
    # Pascal VOC has masks for few of its images, and lists them.
    found.dropped = [pair for pair in found.dropped if os.path.splitext(pair[0])[0] in splits]
    found.dropped += [(image.name, 'is in no list of ImageSets/Segmentation') for image, split in chosen if not split]
  return found


def _read(images: str, masks: str) -> image_set.ImageSet:
  found = image_set.ImageSet()
  by_stem = {_stem(name): name for name in image_set.images_in(masks)} if os.path.isdir(masks) else {}
  for name in image_set.images_in(images):
    mask = by_stem.get(os.path.splitext(name)[0])
    if mask is None:
      found.dropped.append((name, 'has no mask'))
    else:
      found.images.append(image_set.AnnotatedImage(name, os.path.join(images, name), mask=os.path.join(masks, mask)))
  return found


def _stem(name: str) -> str:
  stem = os.path.splitext(name)[0]
  for suffix in _SUFFIXES:
    stem = stem.removesuffix(suffix)
  return stem
