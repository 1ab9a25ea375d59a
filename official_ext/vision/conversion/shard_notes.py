"""Notes that a shard of images keeps beside its checksum, and their sum. No TensorFlow."""

import collections
from collections.abc import Iterable, Sequence
import dataclasses

import numpy as np

from official_ext.base import json_types
from official_ext.vision.conversion import geometry


@dataclasses.dataclass
class ShardNotes:
  """Notes of one shard, or of several of a split.

  Attributes:
    split: 'train', 'validation' or 'test'.
    images: [name, digest of the file, width, height, number of labels or objects] of each image, as shown.
    classes: how many images or objects each class has, by its number; of masks: how many images.
    dropped: [name, reason] of each image that was left out.
    counts: objects that were changed or dropped, by reason.
    coco_images: of validation and test, the images as COCO's JSON has them.
    annotations: of these, the objects in the same way.
  """

  split: str
  images: list[list] = dataclasses.field(default_factory=list)
  classes: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
  dropped: list[list[str]] = dataclasses.field(default_factory=list)
  counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  coco_images: list[json_types.JsonObject] = dataclasses.field(default_factory=list)
  annotations: list[json_types.JsonObject] = dataclasses.field(default_factory=list)

  def values(self) -> json_types.JsonObject:
    """The notes as JSON values."""
    return {**vars(self), 'classes': {str(number): count for number, count in sorted(self.classes.items())}}

  def add_image(self, name: str, digest: str, size: Sequence[int], classes: Sequence[int]) -> None:
    """Notes an image that is used."""
    self.images.append([name, digest, *size, len(classes)])
    self.classes.update(classes)

  def add_annotations(
    self, record: json_types.JsonObject, size: Sequence[int], objects: Sequence[geometry.ShownObject]
  ) -> None:
    """Notes the objects of an image as COCO's JSON has them."""
    width, height = size
    self.coco_images.append({'id': record['id'], 'file_name': record['name'], 'width': width, 'height': height})
    for each in objects:
      left, top, right, bottom = each.box
      annotation = {
        'image_id': record['id'],
        'category_id': each.category,
        'bbox': [left, top, right - left, bottom - top],
        'area': each.area,
        'iscrowd': each.iscrowd,
      }
      if each.mask is not None:
        annotation['segmentation'] = _run_lengths(each.mask)
      self.annotations.append(annotation)


def _run_lengths(mask: np.ndarray) -> json_types.JsonObject:
  """A mask in the run-length encoding of COCO."""
  from pycocotools import mask as mask_api  # pylint: disable=g-import-not-at-top

  encoded = mask_api.encode(np.asfortranarray(mask))
  return {'size': [int(side) for side in encoded['size']], 'counts': encoded['counts'].decode()}


def by_split(notes: Iterable[json_types.JsonMapping]) -> dict[str, ShardNotes]:
  """The sum of the notes of shards, by split, in the order in which these come."""
  found: dict[str, ShardNotes] = {}
  for note in notes:
    for values in note.get('details', ()):
      total = found.setdefault(values['split'], ShardNotes(values['split']))
      total.images += values['images']
      total.classes.update({int(number): count for number, count in values['classes'].items()})
      total.dropped += values['dropped']
      total.counts.update(values['counts'])
      total.coco_images += values['coco_images']
      total.annotations += values['annotations']
  return found


def coco_json(notes: ShardNotes, labels: Sequence[str]) -> json_types.JsonObject:
  """The annotations of a split as COCO's JSON, for `task.annotation_file`."""
  return {
    'images': notes.coco_images,
    'annotations': [{'id': number, **each} for number, each in enumerate(notes.annotations, 1)],
    'categories': [{'id': number, 'name': name} for number, name in enumerate(labels, 1)],
  }
