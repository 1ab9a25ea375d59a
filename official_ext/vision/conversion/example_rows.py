"""The tf.Examples of a shard of annotated images, with the features that Model Garden's decoders read. No TensorFlow.

Features: classification_input.py, tf_example_decoder.py, tf_example_label_map_decoder.py and segmentation_input.py in
official/vision/dataloaders.
"""

import collections
from collections.abc import Iterator
import functools
import hashlib
import os
from typing import Any

import numpy as np

from official_ext.base import json_types
from official_ext.data import bad_examples
from official_ext.data import numbered_records
from official_ext.data import record_files
from official_ext.data import record_report
from official_ext.data import tf_records
from official_ext.vision.conversion import geometry
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import object_records
from official_ext.vision.conversion import pixels as pixels_lib
from official_ext.vision.conversion import shard_notes
from official_ext.vision.conversion import targets

Features = dict[str, tf_records.Feature]


def rows(
  job: json_types.JsonMapping, records: numbered_records.Records, leaves_out: bool, report: record_report.RecordReport
) -> Iterator[bytes]:
  """Yields the tf.Examples of a shard: see `prepare.settings.RowFormat`.

  Args:
    job: of `planning.Plan.job`.
    records: of `image_plan`.
    leaves_out: whether images that cannot be decoded are left out.
    report: filled in; its details are one `shard_notes.ShardNotes`.

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

  def __init__(self, job: json_types.JsonMapping):
    self._settings = targets.Conversion.of(job['settings'])
    self._labels = job['labels']
    self._folder = job['pieces'][0][0]
    split = job['name'].split('-')[0]
    self.notes = shard_notes.ShardNotes(split)
    self._with_annotations = split != image_set.TRAIN and self._settings.target in targets.WITH_BOXES

  def features(self, record: json_types.JsonObject) -> Features:
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
    if settings.target == targets.CLASSIFICATION:
      classes = [record['label']]
      found |= {'image/class/label': record['label'], 'image/class/text': self._labels[record['label']].encode()}
    elif settings.target == targets.SEGMENTATION:
      mask = self._class_numbers(record, pixels)
      found |= {'image/segmentation/class/encoded': pixels_lib.png(mask), 'image/segmentation/class/format': b'png'}
      classes = [int(value) for value in np.unique(np.asarray(mask)) if value != targets.IGNORED]
    else:
      with_masks = settings.target == targets.INSTANCES
      objects = geometry.shown_objects(record, pixels, settings.coordinates, with_masks, counts)
      found |= self._of_objects(objects, width, height)
      classes = [each.category for each in objects]
      if self._with_annotations:
        self.notes.add_annotations(record, pixels.shown, objects)
    self.notes.counts.update(counts)  # Of images that are used.
    self.notes.add_image(record['name'], hashlib.sha256(content).hexdigest()[:16], pixels.shown, classes)
    return found

  def _of_objects(self, objects: list[geometry.ShownObject], width: int, height: int) -> Features:
    found: Features = {
      'image/object/class/label': [each.category for each in objects],
      'image/object/class/text': [self._labels[each.category - 1].encode() for each in objects],
      'image/object/is_crowd': [each.iscrowd for each in objects],
      'image/object/area': [float(each.area) for each in objects],
    }
    for index, (side, size) in enumerate((('xmin', width), ('ymin', height), ('xmax', width), ('ymax', height))):
      found[f'image/object/bbox/{side}'] = [each.box[index] / size for each in objects]
    if self._settings.target == targets.INSTANCES:
      found['image/object/mask'] = [pixels_lib.png(_image_of(each.mask)) for each in objects]
    return found

  def _class_numbers(self, record: json_types.JsonObject, pixels: pixels_lib.Pixels) -> Any:
    """The mask of an image as shown, a Pillow image."""
    mask = pixels_lib.class_numbers(
      _content(os.path.join(self._folder, record['mask']), -1), self._settings.mask_values
    )
    if geometry.is_stored(mask.size, pixels, self._settings.coordinates):
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
    raise ValueError(f'{path}: cannot be read: {error.strerror}') from error


_table = functools.lru_cache(maxsize=4)(record_files.read_file)
