"""Images with a mask of class numbers each, in two folders."""

import os

from official_ext.vision.conversion import image_set

_IMAGES = ('images', 'image', 'imgs', 'JPEGImages', 'leftImg8bit')
_MASKS = ('masks', 'mask', 'labels', 'annotations', 'SegmentationClass', 'gtFine')
_SUFFIXES = ('_mask', '-mask', '_label', '_labels')


def read_folder(folder: str, reading: image_set.Reading) -> image_set.ImageSet | None:
  """The images of a folder with `images` and `masks`, whose files have the same names without their endings.

  Splits are folders above or below these two, or `ImageSets/Segmentation/train.txt` of Pascal VOC.

  Returns:
    None if it is not such a folder.
  """
  above = image_set.split_folders(folder)
  if above:
    parts = {split: read_folder(path, reading) for split, path in above.items()}
    found = image_set.merged(part.in_split(split, f'{split}/') for split, part in parts.items() if part is not None)
    image_set.note_unread_folders(found, folder, above)
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
      _read(path, os.path.join(masks, os.path.basename(path)), reading, None).in_split(split, f'{split}/')
      for split, path in below.items()
    )
    image_set.note_unread_folders(found, images, below)
    return found
  lines, lists = image_set.pascal_voc_splits(folder, 'Segmentation')
  splits, overlaps = image_set.first_splits(lines)
  found = _read(images, masks, reading, set(splits) if lines else None)
  found.files += lists
  found.problems.update(overlaps)
  if lines:
    found.images = [
      image_set.AnnotatedImage(**{**vars(image), 'split': splits[os.path.splitext(image.name)[0]]})
      for image in found.images
    ]
    stems = {os.path.splitext(name)[0] for name in image_set.images_in(images)}
    for name in splits:
      if name not in stems:
        found.num_images += 1
        found.drop(name, f'is in a list of ImageSets/Segmentation and has no image: in {images}')
  return found


def _read(images: str, masks: str, reading: image_set.Reading, listed: set[str] | None) -> image_set.ImageSet:
  """The images with their masks.

  Args:
    images: the folder of the images.
    masks: the folder of the masks.
    reading: how annotations are read.
    listed: the names of the images to use, without endings; None for all.
  """
  found = image_set.ImageSet(on_bad_example=reading.on_bad_example)
  names = image_set.images_in(images)
  of_masks = image_set.images_in(masks) if os.path.isdir(masks) else []
  found.num_images = len(names)
  by_stem: dict[str, list[str]] = {}
  for name in names:
    by_stem.setdefault(os.path.splitext(name)[0], []).append(name)
  # A mask belongs to the image of its whole name; only masks without such an image may have a suffix.
  exact: dict[str, list[str]] = {}
  suffixed: dict[str, list[str]] = {}
  for mask in of_masks:
    stem = os.path.splitext(mask)[0]
    if stem in by_stem:
      exact.setdefault(stem, []).append(mask)
    else:
      suffixed.setdefault(_without_suffix(stem), []).append(mask)
  used: set[str] = set()
  for name in names:
    stem = os.path.splitext(name)[0]
    path = os.path.join(images, name)
    candidates = exact.get(stem) or suffixed.get(stem) or []
    used.update(candidates)
    if listed is not None and stem not in listed:
      if candidates:
        found.drop(name, 'is in no list of ImageSets/Segmentation', path, is_bad=False)
      else:  # Pascal VOC has masks for few of its images, and lists them.
        found.num_images -= 1
        found.known_files.add(os.path.abspath(path))
        found.ignored['images without a mask, in no list'] += 1
    elif not candidates:
      found.drop(name, 'has no mask', path)
    elif len(candidates) > 1:
      found.drop(name, f'has several masks: {", ".join(candidates)}', path)
    elif len(by_stem[stem]) > 1:
      found.drop(name, f'has the name of another image, and one mask: {", ".join(by_stem[stem])}', path)
    else:
      mask = os.path.join(masks, candidates[0])
      found.images.append(image_set.AnnotatedImage(name, path, mask=mask))
  without = [mask for mask in of_masks if mask not in used]
  found.known_files.update(os.path.abspath(os.path.join(masks, mask)) for mask in of_masks)
  if without:
    found.ignored['masks without an image'] += len(without)
    found.notes.append(f'{masks}: masks without an image: {len(without)}, such as {without[0]}')
  return found


def _without_suffix(stem: str) -> str:
  for suffix in _SUFFIXES:
    stem = stem.removesuffix(suffix)
  return stem
