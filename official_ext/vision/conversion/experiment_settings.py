"""The settings with which an experiment of Model Garden trains on a converted folder. No TensorFlow."""

from collections.abc import Sequence
import os

from official_ext.base import json_types
from official_ext.data.prepare import training_settings
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import shard_notes
from official_ext.vision.conversion import targets

_BATCH_SIZES = {targets.CLASSIFICATION: 32, targets.DETECTION: 8, targets.INSTANCES: 4, targets.SEGMENTATION: 8}
# (default of the experiment, multiple) of height and width.
_INPUT_SIZES = {
  targets.CLASSIFICATION: (224, 32),
  targets.DETECTION: (384, 128),
  targets.INSTANCES: (512, 128),
  targets.SEGMENTATION: (512, 32),
}
_METRICS = {
  targets.CLASSIFICATION: 'accuracy',
  targets.DETECTION: 'AP',
  targets.INSTANCES: 'mask_AP',
  targets.SEGMENTATION: 'mean_iou',
}
_SCALES = (0.8, 1.25)


def make(
  target: str,
  folder: str,
  image_format: str,
  notes: dict[str, shard_notes.ShardNotes],
  num_labels: int,
) -> json_types.JsonObject:
  """The values of a file for `--config_file`.

  Args:
    target: one of `targets.TARGETS`.
    folder: the converted folder.
    image_format: 'jpeg' or 'png'.
    notes: of the shards, by split.
    num_labels: the number of labels, without the background of boxes.
  """
  num_images = {split: len(each.images) for split, each in notes.items()}
  batch_size = min(_BATCH_SIZES[target], num_images[image_set.TRAIN])
  size = input_size(target, [image[2:4] for image in notes[image_set.TRAIN].images])
  task: json_types.JsonObject = {
    'init_checkpoint': None,
    'model': {'num_classes': num_labels + (target in targets.WITH_BOXES)},
    'train_data': _data(target, folder, image_set.TRAIN, batch_size, image_format, size),
  }
  task['train_data']['shuffle_buffer_size'] = min(
    num_images[image_set.TRAIN], 1000 if target in targets.WITH_BOXES else 10000
  )
  most_objects = max(image[4] for each in notes.values() for image in each.images)
  if target in targets.WITH_BOXES:
    # Scales of 0.1 to 2, as in COCO's experiments, leave little of objects in a small input.
    scales = {'aug_scale_min': _SCALES[0], 'aug_scale_max': _SCALES[1]}
    task['train_data']['parser'] = {'aug_rand_hflip': True, **scales, 'max_num_instances': max(100, most_objects)}
  trainer = training_settings.trainer(max(1, num_images[image_set.TRAIN] // batch_size))
  task['model']['norm_activation'] = {'norm_momentum': training_settings.norm_momentum(trainer['train_steps'])}
  if target != targets.SEGMENTATION:
    task['model']['input_size'] = [size, size, 3]
  if target == targets.CLASSIFICATION:
    task['evaluation'] = {'top_k': min(5, num_labels)}
  num_validation = num_images.get(image_set.VALIDATION, 0)
  if num_validation:
    # Model Garden's segmentation task resets its metric after the first batch: one image is lost instead of a batch.
    eval_batch_size = 1 if target == targets.SEGMENTATION else min(_BATCH_SIZES[target], num_validation)
    task['validation_data'] = {
      **_data(target, folder, image_set.VALIDATION, eval_batch_size, image_format, size),
      'drop_remainder': False,
    }
    if target == targets.SEGMENTATION:
      task['validation_data']['resize_eval_groundtruth'] = True
    if target in targets.WITH_BOXES:
      task['validation_data']['parser'] = {'max_num_instances': max(100, most_objects)}
      task['annotation_file'] = os.path.join(folder, annotations_name(image_set.VALIDATION))
      task['per_category_metrics'] = True
    training_settings.add_best_checkpoint(trainer, -(-num_validation // eval_batch_size), _METRICS[target])
  runtime = {'runtime': {'mixed_precision_dtype': 'float32'}} if target in targets.WITH_BOXES else {}
  return {**runtime, 'task': task, 'trainer': trainer}


def annotations_name(split: str) -> str:
  """The name of the COCO JSON of a split."""
  return f'annotations_{split}.json'


def input_size(target: str, sizes: Sequence[Sequence[int]]) -> int:
  """Height and width of the model's input: the experiment's, or less if nine images of ten are smaller.

  Args:
    target: one of `targets.TARGETS`.
    sizes: (width, height) of the images.
  """
  default, multiple = _INPUT_SIZES[target]
  sides = sorted(max(size) for size in sizes)
  side = sides[min(len(sides) - 1, len(sides) * 9 // 10)]
  return min(default, max(multiple, -(-side // multiple) * multiple))


def _data(target: str, folder: str, split: str, batch_size: int, image_format: str, size: int) -> json_types.JsonObject:
  found: json_types.JsonObject = {
    'input_path': os.path.join(folder, f'{split}-*.tfrecord'),
    'global_batch_size': batch_size,
  }
  if target == targets.CLASSIFICATION:
    return {**found, 'decode_jpeg_only': image_format == 'jpeg'}
  if target == targets.SEGMENTATION:
    return {**found, 'output_size': [size, size]}
  return {**found, 'dtype': 'float32'}
