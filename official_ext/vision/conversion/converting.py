"""Converts annotated images: reads annotations, plans, and writes the files around the shards.

The parts, in order: the plan (splits and shards), the settings with which Model Garden's experiment trains on the
folder, the report (counts by split and class, and every loss), and the conversion that joins them.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import copy
import csv
import dataclasses
import io
import json
import os

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import tf_records
from official_ext.data import input_files
from official_ext.data import record_files
from official_ext.data import record_report
from official_ext.data.prepare import conversions
from official_ext.data.prepare import pieces as pieces_lib
from official_ext.data.prepare import planning
from official_ext.vision.conversion import example_rows
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import input_formats
from official_ext.vision.conversion import pixels

ROWS_MODULE = 'official_ext.vision.conversion.example_rows'


def make_plan(
  images: image_set.ImageSet,
  labels: Sequence[str],
  conversion: image_set.Conversion,
  settings: planning.Settings,
  check: Callable[[], None] = lambda: None,
) -> planning.Plan:
  """Divides images into splits, and splits into shards.

  The split of an image, and its place in it, follow from its name and the seed alone, of an image in a table from its
  content: other images, and the order of rows, do not matter.

  Args:
    images: all of them.
    labels: the names of the classes, without the background of boxes.
    conversion: the settings of the conversion.
    settings: of the shards.
    check: called while the input is read for its digests; its exceptions end the planning.

  Raises:
    UserError: a split that training needs has no image.
  """
  by_split = in_splits(images, conversion)
  files = [file for image in images.images for file in (image.file, image.mask) if file]
  folder = os.path.commonpath([os.path.dirname(file) for file in files])
  sizes, numbers = _sizes(images.images), {name: number for number, name in enumerate(labels)}
  shards: list[planning.Shard] = []
  next_id = 1
  for split, chosen in by_split.items():
    pieces = [pieces_lib.Piece(image.name, 'annotated', 0, 1, sizes[image.name]) for image in chosen]
    start, of_split = 0, list[planning.Shard]()
    for group in planning.grouped_pieces(pieces, settings.shard_bytes):
      part = chosen[start : start + len(group)]
      records = [_record(image, next_id + number, folder, numbers, conversion) for number, image in enumerate(part)]
      below = [os.path.relpath(file, folder) for image in part for file in (image.file, image.mask) if file]
      piece = pieces_lib.Piece(folder, 'annotated', start, start + len(part), sum(each.size for each in group))
      of_split.append(planning.Shard('', (piece,), tuple(dict.fromkeys(below)), tuple(records)))
      start, next_id = start + len(part), next_id + len(part)
    shards += planning.named_shards(of_split, split, tf_records.ENDING)
  files = list(dict.fromkeys([*images.files, *files]))
  contents = planning.read_content(files, check)
  return planning.Plan(
    kind=conversion.target,
    settings={**dataclasses.asdict(settings), **conversion.values()},
    inputs=planning.identity_of(
      [os.path.relpath(file, folder) for file in files],
      [contents[file].num_bytes for file in files],
      [contents[file].sha256 for file in files],
    ),
    labels=tuple(labels),
    columns=(),
    shards=tuple(shards),
    contents=contents,
    row_format=ROWS_MODULE,
  )


def in_splits(
  images: image_set.ImageSet, conversion: image_set.Conversion
) -> dict[str, list[image_set.AnnotatedImage]]:
  """The images of each split, in their order.

  Raises:
    UserError: a split that training needs has no image.
  """
  found = conversions.divide(
    [image.key or image.name for image in images.images],
    [image.split for image in images.images],
    conversion.validation_share,
    conversion.test_share,
    conversion.seed,
    'image',
  )
  return {split: [images.images[index] for index in indices] for split, indices in found.items()}


def _sizes(images: Sequence[image_set.AnnotatedImage]) -> dict[str, int]:
  """The size in bytes of each image, by name: of an image in a table, its mean share."""
  tables: dict[str, int] = {}
  found = {}
  for image in images:
    try:
      size = os.path.getsize(image.file)
    except OSError as error:
      raise errors.UserError(f'{image.file}: cannot be read: {error.strerror}') from error
    if image.row >= 0:
      if image.file not in tables:
        tables[image.file] = max(1, len(record_files.read_file(image.file)))
      size //= tables[image.file]
    found[image.name] = max(1, size)
  return found


def _record(
  image: image_set.AnnotatedImage,
  number: int,
  folder: str,
  numbers: dict[str, int],
  conversion: image_set.Conversion,
) -> json_values.JsonObject:
  """The record of an image, as JSON values: paths are below the folder, classes are numbers."""
  found: json_values.JsonObject = {
    'name': image.name,
    'id': number,
    'file': os.path.relpath(image.file, folder),
    'row': image.row,
  }
  if conversion.target == image_set.CLASSIFICATION:
    assert image.label is not None
    return {**found, 'label': numbers[image.label]}
  if conversion.target == image_set.SEGMENTATION:
    return {**found, 'mask': os.path.relpath(image.mask, folder)}
  objects = [{**each, 'category': numbers[each['category']] + 1} for each in image.objects]
  if conversion.target == image_set.DETECTION:
    objects = [{name: value for name, value in each.items() if name != 'segmentation'} for each in objects]
  return {**found, 'objects': objects, 'unit': image.unit, 'size': list(image.size)}


_BATCH_SIZES = {image_set.CLASSIFICATION: 32, image_set.DETECTION: 8, image_set.INSTANCES: 4, image_set.SEGMENTATION: 8}
# (default of the experiment, multiple) of height and width.
_INPUT_SIZES = {
  image_set.CLASSIFICATION: (224, 32),
  image_set.DETECTION: (384, 128),
  image_set.INSTANCES: (512, 128),
  image_set.SEGMENTATION: (512, 32),
}
_BEST_METRICS = {
  image_set.CLASSIFICATION: 'accuracy',
  image_set.DETECTION: 'AP',
  image_set.INSTANCES: 'mask_AP',
  image_set.SEGMENTATION: 'mean_iou',
}
_SCALES = (0.8, 1.25)


def make_settings(
  target: str,
  folder: str,
  image_format: str,
  notes: dict[str, example_rows.ShardNotes],
  num_labels: int,
) -> json_values.JsonObject:
  """The values of a file for `--config_file`.

  Args:
    target: one of `image_set.TARGETS`.
    folder: the converted folder.
    image_format: 'jpeg' or 'png'.
    notes: of the shards, by split.
    num_labels: the number of labels, without the background of boxes.
  """
  num_images = {split: len(each.images) for split, each in notes.items()}
  batch_size = min(_BATCH_SIZES[target], num_images[image_set.TRAIN])
  size = input_size(target, [image[2:4] for image in notes[image_set.TRAIN].images])
  task: json_values.JsonObject = {
    'init_checkpoint': None,
    'model': {'num_classes': num_labels + (target in image_set.WITH_BOXES)},
    'train_data': _data(target, folder, image_set.TRAIN, batch_size, image_format, size),
  }
  task['train_data']['shuffle_buffer_size'] = min(
    num_images[image_set.TRAIN], 1000 if target in image_set.WITH_BOXES else 10000
  )
  most_objects = max(image[4] for each in notes.values() for image in each.images)
  if target in image_set.WITH_BOXES:
    # Scales of 0.1 to 2, as in COCO's experiments, leave little of objects in a small input.
    scales = {'aug_scale_min': _SCALES[0], 'aug_scale_max': _SCALES[1]}
    task['train_data']['parser'] = {'aug_rand_hflip': True, **scales, 'max_num_instances': max(100, most_objects)}
  trainer = conversions.trainer_settings(max(1, num_images[image_set.TRAIN] // batch_size))
  task['model']['norm_activation'] = {'norm_momentum': conversions.norm_momentum(trainer['train_steps'])}
  if target != image_set.SEGMENTATION:
    task['model']['input_size'] = [size, size, 3]
  if target == image_set.CLASSIFICATION:
    task['evaluation'] = {'top_k': min(5, num_labels)}
  num_validation = num_images.get(image_set.VALIDATION, 0)
  if num_validation:
    # In Model Garden's trainer the task resets its metric after the first batch: it loses one image instead of a batch.
    eval_batch_size = 1 if target == image_set.SEGMENTATION else min(_BATCH_SIZES[target], num_validation)
    task['validation_data'] = {
      **_data(target, folder, image_set.VALIDATION, eval_batch_size, image_format, size),
      'drop_remainder': False,
    }
    if target == image_set.SEGMENTATION:
      task['validation_data']['resize_eval_groundtruth'] = True
    if target in image_set.WITH_BOXES:
      task['validation_data']['parser'] = {'max_num_instances': max(100, most_objects)}
      task['annotation_file'] = os.path.join(folder, annotations_name(image_set.VALIDATION))
      task['per_category_metrics'] = True
    conversions.add_best_checkpoint(trainer, -(-num_validation // eval_batch_size), _BEST_METRICS[target])
  runtime = {'runtime': {'mixed_precision_dtype': 'float32'}} if target in image_set.WITH_BOXES else {}
  return {**runtime, 'task': task, 'trainer': trainer}


def annotations_name(split: str) -> str:
  """The name of the COCO JSON of a split."""
  return f'annotations_{split}.json'


def input_size(target: str, sizes: Sequence[Sequence[int]]) -> int:
  """Height and width of the model's input: the experiment's, or less if nine images of ten are smaller.

  Args:
    target: one of `image_set.TARGETS`.
    sizes: (width, height) of the images.
  """
  default, multiple = _INPUT_SIZES[target]
  sides = sorted(max(size) for size in sizes)
  side = sides[min(len(sides) - 1, len(sides) * 9 // 10)]
  return min(default, max(multiple, -(-side // multiple) * multiple))


def _data(
  target: str, folder: str, split: str, batch_size: int, image_format: str, size: int
) -> json_values.JsonObject:
  found: json_values.JsonObject = {
    'input_path': os.path.join(folder, f'{split}-*.tfrecord'),
    'global_batch_size': batch_size,
  }
  if target == image_set.CLASSIFICATION:
    return {**found, 'decode_jpeg_only': image_format == 'jpeg'}
  if target == image_set.SEGMENTATION:
    return {**found, 'output_size': [size, size]}
  return {**found, 'dtype': 'float32'}


_MAX_NAMED = 5


def make_report(
  target: str,
  images: input_formats.Inputs,
  notes: Mapping[str, example_rows.ShardNotes],
  labels: Sequence[str],
) -> json_values.JsonObject:
  """The report as JSON values.

  Args:
    target: one of `image_set.TARGETS`.
    images: that were read.
    notes: of the shards, by split.
    labels: the names of the classes, without the background of boxes.
  """
  first = 1 if target in image_set.WITH_BOXES else 0
  of_splits: dict[str, json_values.JsonObject] = {}
  for split, each in notes.items():
    counts = {name: each.classes.get(number, 0) for number, name in enumerate(labels, first)}
    of_splits[split] = {'images': len(each.images), 'classes': counts}
    if target in image_set.WITH_BOXES:
      of_splits[split]['background_images'] = sum(not image[4] for image in each.images)
      of_splits[split][input_files.MOST_OBJECTS] = max((image[4] for image in each.images), default=0)
  counted = collections.Counter(image_set.kind_of(reason) for _, reason in images.dropped_objects)
  return {
    'balance': make_balances(target, images, notes),
    'splits': of_splits,
    'classes_without_examples': {
      split: [name for name, count in values['classes'].items() if not count] for split, values in of_splits.items()
    },
    'dropped_images': [[*pair] for pair in images.dropped] + [pair for each in notes.values() for pair in each.dropped],
    'dropped_objects': [[*pair] for pair in images.dropped_objects],
    'changed_objects': dict(sum((each.counts for each in notes.values()), images.problems + counted)),
    'duplicates': _duplicates(notes),
    'notes': images.notes,
  }


_LOST = 'boxes or masks that cannot be used'  # Of shards without the reasons for each image.


def make_balances(
  target: str, images: input_formats.Inputs, notes: Mapping[str, example_rows.ShardNotes]
) -> list[json_values.JsonObject]:
  """The accounts of the images, and of the objects in boxes, of each input, as JSON values.

  Args:
    target: one of `image_set.TARGETS`.
    images: that were read.
    notes: of the shards, by split.
  """
  balances = copy.deepcopy(images.balances)
  num_objects = {image.name: len(image.objects) for image in images.images}
  for each in notes.values():
    for name, reason in each.dropped:
      of_images, of_objects = balances[images.owners[name]]
      of_images.left_out[image_set.kind_of(reason)] += 1
      of_objects.left_out[input_formats.OF_DROPPED] += num_objects[name]
    for name, _, _, _, count, *more in each.images:
      of_images, of_objects = balances[images.owners[name]]
      of_images.used += 1
      of_objects.used += count
      lost = more[0] if more else {_LOST: num_objects[name] - count}
      of_objects.left_out.update(lost)
  return [balance.values() for pair in balances for balance in (pair if target in image_set.WITH_BOXES else pair[:1])]


def _duplicates(notes: Mapping[str, example_rows.ShardNotes]) -> list[list[str]]:
  """Images with equal files, as `SPLIT: NAME`, images of several splits first."""
  by_digest: dict[str, list[tuple[str, str]]] = {}
  for split, each in notes.items():
    for name, digest, *_ in each.images:
      by_digest.setdefault(digest, []).append((split, name))
  repeated = [found for found in by_digest.values() if len(found) > 1]
  repeated.sort(key=lambda found: (-len({split for split, _ in found}), found))
  return [[f'{split}: {name}' for split, name in found] for found in repeated]


def report_lines(report: json_values.JsonMapping) -> Iterator[str]:
  """The warnings of a report, for people."""
  yield from report['notes']
  for part, noun in (('dropped_images', 'images'), ('dropped_objects', 'objects')):
    dropped = report[part]
    for name, reason in dropped[:_MAX_NAMED]:
      yield f'{name}: dropped: {reason}'
    if len(dropped) > _MAX_NAMED:
      yield f'{len(dropped)} {noun} are dropped; report.json lists all'
  yield from record_report.field_lines(report['balance'])
  kinds = {image_set.kind_of(reason) for _, reason in report['dropped_objects']}
  yield from (f'{count} {reason}' for reason, count in report['changed_objects'].items() if reason not in kinds)
  for split, names in report['classes_without_examples'].items():
    if names and split != image_set.TEST:
      more = f' and {len(names) - _MAX_NAMED} more' if len(names) > _MAX_NAMED else ''
      yield f'{split}: no example of {", ".join(names[:_MAX_NAMED])}{more}'
  across = [found for found in report['duplicates'] if len({each.split(': ')[0] for each in found}) > 1]
  if across:
    yield (
      f'{len(across)} images are in several splits, such as {" = ".join(across[0])}: results on them mean little; '
      'remove the copies'
    )
  within = len(report['duplicates']) - len(across)
  if within:
    yield f'{within} images are there more than once; report.json lists them'


_LABEL_MAP = 'label_map.csv'
_UNKNOWN = 'annotations of unknown categories'
_SAMPLED_MASKS = 20


class Conversion:
  """A conversion: makes its plan, and implements `prepare.planning.Outputs`."""

  config_name = input_files.CONFIG

  def __init__(
    self,
    inputs: dict[str, list[str]],
    conversion: image_set.Conversion,
    settings: planning.Settings,
    reading: input_formats.Reading,
    labels: Sequence[str] = (),
  ):
    """Reads the annotations.

    Args:
      inputs: see `input_formats.read_inputs`.
      conversion: the settings of the conversion.
      settings: of the shards.
      reading: how annotations are read.
      labels: the names of the classes in the order of their numbers; (): the input's.

    Raises:
      UserError: of the input.
    """
    self._conversion = conversion
    self._settings = settings
    reading = dataclasses.replace(reading, on_bad_example=settings.on_bad_example)
    self._images = input_formats.read_inputs(inputs, conversion.target, reading)
    if conversion.target == image_set.SEGMENTATION:
      _check_masks(self._images, conversion)
    elif labels:
      _keep_labels(self._images, labels)
    self._labels = list(labels) or self._images.labels
    if conversion.target != image_set.SEGMENTATION and not self._labels:
      raise errors.UserError(f'INPUT: no class has an example; expected {input_formats.expected(conversion.target)}')
    input_files.check_labels(self._labels)
    self.report: json_values.JsonObject = {}

  def plan(self, check: Callable[[], None]) -> planning.Plan:
    """See `make_plan`."""
    return make_plan(self._images, self._labels, self._conversion, self._settings, check)

  @property
  def named_splits(self) -> set[str]:
    """The splits that the input names."""
    return {image.split for image in self._images.images} - {''}

  @property
  def files(self) -> Mapping[str, bytes]:
    """None: names of classes are known when all masks have been read."""
    return {}

  def results(
    self, folder: str, settings: json_values.JsonMapping, notes: Sequence[json_values.JsonMapping]
  ) -> Mapping[str, bytes]:
    """The names of the classes, annotations for the evaluation, a report, and the settings of the experiment.

    Raises:
      UserError: no image of a split can be used.
    """
    target, by_split = settings['target'], example_rows.notes_by_split(notes)
    for split in (image_set.TRAIN, image_set.VALIDATION):
      if split in by_split and not by_split[split].images:
        name, reason = by_split[split].dropped[0]
        raise errors.UserError(f'{split}: no image can be used; for example {name}: {reason}')
    labels = self._labels
    if target == image_set.SEGMENTATION:
      highest = max((number for each in by_split.values() for number in each.classes), default=0)
      labels = labels or [f'class_{number}' for number in range(highest + 1)]
      if highest >= len(labels):
        raise errors.UserError(f'--labels: names {len(labels)} classes, and a mask holds the number {highest}')
    self.report = make_report(target, self._images, by_split, labels)
    values = make_settings(target, folder, settings['image_format'], by_split, len(labels))
    numbered = [(0, 'background'), *enumerate(labels, 1)] if target in image_set.WITH_BOXES else [*enumerate(labels)]
    found = {
      input_files.LABELS: ''.join(f'{name}\n' for _, name in numbered).encode(),
      input_files.REPORT: (json.dumps(self.report, indent=2, ensure_ascii=False) + '\n').encode(),
      input_files.CONFIG: config_text.dump(values).encode(),
    }
    if target in image_set.WITH_BOXES:
      text = io.StringIO()
      csv.writer(text, lineterminator='\n').writerows(numbered)
      found[_LABEL_MAP] = text.getvalue().encode()
      for split, each in by_split.items():
        if split != image_set.TRAIN:
          name = annotations_name(split)
          found[name] = (json.dumps(example_rows.coco_json(each, labels)) + '\n').encode()
    return found


def _keep_labels(images: input_formats.Inputs, labels: Sequence[str]) -> None:
  """Drops images and objects of other classes, as the labels ask for."""
  kept = []
  for image in images.images:
    of_images, of_objects = images.balances[images.owners[image.name]]
    if image.label is not None and image.label not in labels:
      reason = f'its class is not in --labels: {image.label}'
      images.dropped.append((image.name, reason))
      of_images.left_out[image_set.kind_of(reason)] += 1
      continue
    objects = tuple(each for each in image.objects if each['category'] in labels)
    images.problems[_UNKNOWN] += len(image.objects) - len(objects)
    of_objects.left_out[_UNKNOWN] += len(image.objects) - len(objects)
    kept.append(dataclasses.replace(image, objects=objects))
  images.images = kept
  images.problems = +images.problems


def _check_masks(images: image_set.ImageSet, conversion: image_set.Conversion) -> None:
  """Refuses masks of 0 and 255 alone: the class 255 is ignored, so nothing would be learned."""
  if conversion.mask_values:
    return
  seen: set[int] = set()
  for image in images.images[:_SAMPLED_MASKS]:
    try:
      with open(image.mask, 'rb') as f:
        seen.update(value for _, value in pixels.class_numbers(f.read()).getcolors(256))
    except (ValueError, OSError):
      continue  # It is dropped with its reason later.
  if seen and 255 in seen and seen <= {0, 255}:
    raise errors.UserError(
      '--mask_values: the masks hold 0 and 255 alone, and 255 is ignored in training; give --mask_values=0,255 to make '
      '255 the class 1'
    )
