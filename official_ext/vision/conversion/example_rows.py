"""The tf.Examples of a shard of annotated images, with the features that Model Garden's decoders read, and its notes.

Features: classification_input.py, tf_example_decoder.py, tf_example_label_map_decoder.py and segmentation_input.py in
official/vision/dataloaders. A shard keeps the notes with its checksum; the notes of all shards are added up.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import os
from typing import Any

import numpy as np

from official_ext.base import json_values
from official_ext.base.files import tf_records
from official_ext.data import bad_examples
from official_ext.data import numbered_records
from official_ext.data import record_files
from official_ext.data import record_report
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import object_records
from official_ext.vision.conversion import pixels as pixels_lib


@dataclasses.dataclass
class ShardNotes:
  """Notes of one shard, or of several of a split.

  Attributes:
    split: 'train', 'validation' or 'test'.
    images: [name, digest of the file, width, height, number of labels or objects, how many objects are left out by
      reason] of each image, as shown.
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
  coco_images: list[json_values.JsonObject] = dataclasses.field(default_factory=list)
  annotations: list[json_values.JsonObject] = dataclasses.field(default_factory=list)

  def values(self) -> json_values.JsonObject:
    """The notes as JSON values."""
    return {**vars(self), 'classes': {str(number): count for number, count in sorted(self.classes.items())}}

  def add_image(
    self, name: str, digest: str, size: Sequence[int], classes: Sequence[int], lost: Mapping[str, int]
  ) -> None:
    """Notes an image that is used."""
    self.images.append([name, digest, *size, len(classes), dict(lost)])
    self.classes.update(classes)

  def add_annotations(
    self, record: json_values.JsonObject, size: Sequence[int], objects: Sequence[pixels_lib.ShownObject]
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


def _run_lengths(mask: np.ndarray) -> json_values.JsonObject:
  """A mask in the run-length encoding of COCO."""
  from pycocotools import mask as mask_api  # pylint: disable=g-import-not-at-top

  encoded = mask_api.encode(np.asfortranarray(mask))
  return {'size': [int(side) for side in encoded['size']], 'counts': encoded['counts'].decode()}


def notes_by_split(notes: Iterable[json_values.JsonMapping]) -> dict[str, ShardNotes]:
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


def coco_json(notes: ShardNotes, labels: Sequence[str]) -> json_values.JsonObject:
  """The annotations of a split as COCO's JSON, for `task.annotation_file`."""
  return {
    'images': notes.coco_images,
    'annotations': [{'id': number, **each} for number, each in enumerate(notes.annotations, 1)],
    'categories': [{'id': number, 'name': name} for number, name in enumerate(labels, 1)],
  }


Features = dict[str, tf_records.Feature]


def rows(
  job: json_values.JsonMapping, records: numbered_records.Records, leaves_out: bool, report: record_report.RecordReport
) -> Iterator[bytes]:
  """Yields the tf.Examples of a shard: see `prepare.planning.RowFormat`.

  Args:
    job: of `planning.Plan.job`.
    records: of the plan in converting.py.
    leaves_out: whether images that cannot be decoded are left out.
    report: filled in; its details are one `ShardNotes`.

  Raises:
    BadExampleError: an image cannot be used, and none is to be left out.
  """
  converter = _Converter(job)
  for number in range(len(records)):
    record = records.read(number)
    try:
      features = converter.features(record)
    except ValueError as error:
      message = bad_examples.BadExampleError(f'{record["name"]}: {error}')
      if not leaves_out:
        raise message from error
      report.bad_records += 1
      if len(report.named) < record_report.MAX_NAMED:
        report.named.append(str(message))
      converter.notes.dropped.append([record['name'], str(error)])
    else:
      report.examples += 1
      yield tf_records.encode_example(features)
  report.details.append(converter.notes.values())


class _Converter:
  """Makes the features of images, and notes of them."""

  def __init__(self, job: json_values.JsonMapping):
    self._settings = image_set.Conversion.of(job['settings'])
    self._labels = job['labels']
    self._folder = job['pieces'][0][0]
    split = job['name'].split('-')[0]
    self.notes = ShardNotes(split)
    self._with_annotations = split != image_set.TRAIN and self._settings.target in image_set.WITH_BOXES

  def features(self, record: json_values.JsonObject) -> Features:
    """The features of an image.

    Raises:
      ValueError: it cannot be used; says why.
    """
    settings = self._settings
    content = _content(os.path.join(self._folder, record['file']), record['row'])
    pixels = pixels_lib.read(content, settings.image_format, settings.quality)
    width, height = pixels.shown
    found: Features = {
      'image/encoded': pixels.content,
      'image/format': pixels.image_format.encode(),
      'image/filename': record['name'].encode(),
      'image/source_id': str(record['id']).encode(),
      'image/height': height,
      'image/width': width,
    }
    counts, classes = collections.Counter[str](), list[int]()
    if settings.target == image_set.CLASSIFICATION:
      classes = [record['label']]
      found |= {'image/class/label': record['label'], 'image/class/text': self._labels[record['label']].encode()}
    elif settings.target == image_set.SEGMENTATION:
      mask = self._class_numbers(record, pixels)
      found |= {'image/segmentation/class/encoded': pixels_lib.png(mask), 'image/segmentation/class/format': b'png'}
      classes = [int(value) for value in np.unique(np.asarray(mask)) if value != image_set.IGNORED]
    else:
      with_masks = settings.target == image_set.INSTANCES
      objects = pixels_lib.shown_objects(record, pixels, settings.coordinates, with_masks, counts)
      found |= self._of_objects(objects, width, height)
      classes = [each.category for each in objects]
      if self._with_annotations:
        self.notes.add_annotations(record, pixels.shown, objects)
    self.notes.counts.update(counts)  # Of images that are used.
    lost = {name: count for name, count in counts.items() if name in pixels_lib.LOST}
    self.notes.add_image(record['name'], hashlib.sha256(content).hexdigest()[:16], pixels.shown, classes, lost)
    return found

  def _of_objects(self, objects: list[pixels_lib.ShownObject], width: int, height: int) -> Features:
    found: Features = {
      'image/object/class/label': [each.category for each in objects],
      'image/object/class/text': [self._labels[each.category - 1].encode() for each in objects],
      'image/object/is_crowd': [each.iscrowd for each in objects],
      'image/object/area': [float(each.area) for each in objects],
    }
    for index, (side, size) in enumerate((('xmin', width), ('ymin', height), ('xmax', width), ('ymax', height))):
      found[f'image/object/bbox/{side}'] = [each.box[index] / size for each in objects]
    if self._settings.target == image_set.INSTANCES:
      found['image/object/mask'] = [pixels_lib.png(_image_of(each.mask)) for each in objects]
    return found

  def _class_numbers(self, record: json_values.JsonObject, pixels: pixels_lib.Pixels) -> Any:
    """The mask of an image as shown, a Pillow image."""
    mask = pixels_lib.class_numbers(
      _content(os.path.join(self._folder, record['mask']), -1), self._settings.mask_values
    )
    if pixels_lib.is_stored(mask.size, pixels, self._settings.coordinates):
      mask = mask.transpose(pixels.transposition)
    return mask


def _image_of(mask: Any) -> Any:
  from PIL import Image  # pylint: disable=g-import-not-at-top

  return Image.fromarray(mask)


def _content(path: str, row: int) -> bytes:
  """The bytes of an image.

  Raises:
    ValueError: it cannot be read.
  """
  if row >= 0:
    return object_records.image_bytes(_table(path).read(row))
  try:
    with open(path, 'rb') as f:
      return f.read()
  except OSError as error:
    raise ValueError(f'cannot be read: {path}: {error.strerror}') from error


_table = functools.lru_cache(maxsize=4)(record_files.read_file)
