"""The evaluation of detection and instance segmentation, by COCO's definitions."""

import collections
from collections.abc import Mapping, Sequence
import contextlib
import io
from typing import Any

import numpy as np
from official.vision.ops import mask_ops
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.data import input_faults
from official_ext.training.evaluation import classifier_result
from official_ext.training.evaluation import evaluated_data
from official_ext.training.evaluation import results
from official_ext.training.trained import trained_model
from official_ext.vision.preview import pictures as pictures_lib

_AREAS = ('all', 'small', 'medium', 'large')  # In pixels: below 32 x 32, below 96 x 96, others.
_SHOWN_SCORE, _SAME_OVERLAP = 0.5, 0.5  # Of the boxes that are counted as mistakes and drawn.
_MAX_DETECTIONS = 100  # Of an image, by COCO's definitions.
_PREFIXES = {'bbox': '', 'segm': 'mask_'}
_BATCH_OUTPUTS = ('detection_boxes', 'detection_classes', 'detection_scores', 'num_detections', 'detection_masks')


def evaluate(
  trained: trained_model.TrainedModel, data: evaluated_data.EvaluatedData, num_mistakes: int
) -> results.Result:
  """Evaluates a detector.

  Args:
    trained: a run of Model Garden's RetinaNetTask or MaskRCNNTask.
    data: the data, with COCO's JSON.
    num_mistakes: how many images to draw: the ones with the most missed and wrong boxes.

  Raises:
    UserError: the annotations are missing, or the data has no examples.
  """
  if not data.annotation_file:
    raise errors.UserError('task.annotation_file: is not set; name a prepared folder: --on=FOLDER')
  task, worst = trained.task, pictures_lib.Worst(num_mistakes)

  @tf.function
  def predict(images: tf.Tensor, labels: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    outputs = trained.model(
      images, anchor_boxes=labels['anchor_boxes'], image_shape=labels['image_info'][:, 1, :], training=False
    )
    return {name: outputs[name] for name in _BATCH_OUTPUTS if name in outputs}

  detections: list[json_values.JsonObject] = []
  ids: list[int] = []
  num_detections = 0
  with input_faults.explained(data.path, data.config, task.build_inputs):
    for images, labels in task.build_inputs(data.config):
      found = {name: value.numpy() for name, value in predict(images, labels).items()}
      info = labels['image_info'].numpy()
      image_ids = labels['groundtruths']['source_id'].numpy().reshape(-1)
      for number, image_id in enumerate(map(int, image_ids)):
        num_detections += int(found['num_detections'][number])
        detections += _annotations(found, info[number], number, image_id)
        ids.append(image_id)
      _keep_worst(worst, len(ids) - len(info), (images, labels), found, task)
  if not ids:
    raise input_faults.no_examples(data.path, data.config, data.config.global_batch_size)
  classifier_result.check_finite(len(detections), num_detections, 'detections')
  figures, tables = of_detections(data.annotation_file, detections, ids, 'detection_masks' in found)
  pictures = {'mistakes': pictures_lib.drawn_mistakes(worst.found, data.names)} if worst.found else {}
  if len(detections) < num_detections:
    figures['not_finite'] = num_detections - len(detections)
  return results.Result({'examples': len(ids), **figures}, tables, pictures)


def of_detections(
  annotation_file: str, detections: list[json_values.JsonObject], ids: Sequence[int], with_masks: bool
) -> tuple[json_values.JsonObject, list[results.Table]]:
  """COCO's figures overall, of each class and each size of objects.

  Of each image the 100 best detections count, or more if the model has more; the figures then have `max_detections`.

  Args:
    annotation_file: COCO's JSON.
    detections: COCO's results.
    ids: of the images.
    with_masks: whether `detections` have masks.
  """
  from pycocotools import coco  # pylint: disable=g-import-not-at-top
  from pycocotools import cocoeval  # pylint: disable=g-import-not-at-top

  most = max(_MAX_DETECTIONS, *collections.Counter(each['image_id'] for each in detections).values(), 0)
  figures: json_values.JsonObject = {'max_detections': most} if most > _MAX_DETECTIONS else {}
  classes: dict[str, json_values.JsonObject] = {}
  tables = []
  with contextlib.redirect_stdout(io.StringIO()):  # It prints its progress.
    truth = coco.COCO(annotation_file)
    _renumber(truth)
    found = truth.loadRes(detections) if detections else coco.COCO()
    for kind in ('bbox', 'segm') if with_masks else ('bbox',):
      evaluation = cocoeval.COCOeval(truth, found, kind)
      evaluation.params.imgIds = sorted(ids)
      evaluation.params.maxDets[-1] = most
      evaluation.evaluate()
      evaluation.accumulate()
      rows = _add_figures(figures, classes, evaluation, truth, _PREFIXES[kind])
      header = ('class', 'AP', *(f'AP {area}' for area in _AREAS[1:]), 'AP50', 'recall', 'objects')
      tables.append(results.Table('Masks' if kind == 'segm' else 'Boxes', header, rows))
  return {**figures, 'classes': classes}, tables


def _renumber(truth: Any) -> None:
  """Numbers the objects from 1: pycocotools takes a match with the id 0 for none."""
  for number, each in enumerate(truth.dataset.get('annotations', ()), 1):
    each['id'] = number
  truth.createIndex()


def _add_figures(
  figures: json_values.JsonObject, classes: dict[str, json_values.JsonObject], evaluation: Any, truth: Any, prefix: str
) -> list[list[object]]:
  """Adds the figures of one evaluation of pycocotools; returns the rows of its table."""
  precision, recall = evaluation.eval['precision'], evaluation.eval['recall']  # [T, R, K, A, M], [T, K, A, M]
  figures[f'{prefix}AP'] = _mean(precision[..., 0, -1])
  figures[f'{prefix}AP50'] = _mean(precision[0, ..., 0, -1])
  for area, name in enumerate(_AREAS[1:], 1):
    figures[f'{prefix}AP_{name}'] = _mean(precision[..., area, -1])
  figures[f'{prefix}recall'] = _mean(recall[..., 0, -1])
  rows: list[list[object]] = []
  for index, category in enumerate(evaluation.params.catIds):
    name = truth.cats[category]['name']
    objects = len(truth.getAnnIds(imgIds=evaluation.params.imgIds, catIds=[category], iscrowd=False))
    values = [_mean(precision[:, :, index, area, -1]) for area in range(len(_AREAS))]
    values += [_mean(precision[0, :, index, 0, -1]), _mean(recall[:, index, 0, -1])]
    fields = ['AP', *(f'AP_{area}' for area in _AREAS[1:]), 'AP50', 'recall']
    classes.setdefault(name, {})['objects'] = objects
    classes[name] |= {f'{prefix}{field}': value for field, value in zip(fields, values)}
    rows.append([name, *values, objects])
  return rows


def _mean(values: np.ndarray) -> float | None:
  """The mean of precisions or recalls; pycocotools has -1 where no object is."""
  known = values[values > -1]
  return classifier_result.rounded(known.mean()) if known.size else None


def _annotations(
  found: Mapping[str, np.ndarray], info: np.ndarray, number: int, image_id: int
) -> list[json_values.JsonObject]:
  """The detections in one image as COCO's results, in pixels of the original image; if they are finite."""
  count = int(found['num_detections'][number])
  height, width = (int(value) for value in info[0])
  boxes = found['detection_boxes'][number, :count] / np.tile(info[2], 2)  # Top, left, bottom, right.
  scores = found['detection_scores'][number, :count]
  kept = np.isfinite(boxes).all(-1) & np.isfinite(scores)
  boxes, scores, classes = boxes[kept], scores[kept], found['detection_classes'][number, :count][kept]
  masks = found['detection_masks'][number, :count][kept] if 'detection_masks' in found else None
  encoded = _encoded(masks, boxes, height, width) if masks is not None else [None] * len(boxes)
  results_of_image = []
  for index, box in enumerate(boxes):
    top, left, bottom, right = (float(value) for value in box)
    entry: json_values.JsonObject = {
      'image_id': image_id,
      'category_id': int(classes[index]),
      'bbox': [left, top, right - left, bottom - top],
      'score': float(scores[index]),
    }
    if encoded[index] is not None:
      entry['segmentation'] = encoded[index]
    results_of_image.append(entry)
  return results_of_image


def _encoded(masks: np.ndarray, boxes: np.ndarray, height: int, width: int) -> list[Any]:
  """Masks of boxes in the run-length encoding of COCO."""
  from pycocotools import mask as mask_api  # pylint: disable=g-import-not-at-top

  corners = np.stack([boxes[:, 1], boxes[:, 0], boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]], -1)
  pasted = mask_ops.paste_instance_masks(masks, corners, height, width)
  return [mask_api.encode(np.asfortranarray(mask.astype(np.uint8))) for mask in pasted]


def _keep_worst(
  worst: pictures_lib.Worst, first: int, batch: tuple[Any, Any], found: Mapping[str, np.ndarray], task: Any
) -> None:
  """Adds the images of a batch by the number of their missed and wrong boxes."""
  truths, _ = pictures_lib.pictures_of_batch(batch, task)
  for number, truth in enumerate(truths):
    count = int(found['num_detections'][number])
    kept = found['detection_scores'][number, :count] >= _SHOWN_SCORE
    boxes = found['detection_boxes'][number, :count][kept]
    classes = [int(value) for value in found['detection_classes'][number, :count][kept]]
    right = _matches(truth.boxes, truth.classes, boxes, classes)
    missed, wrong = len(truth.boxes) - right, len(boxes) - right
    if missed + wrong and worst.accepts(missed + wrong):
      prediction = pictures_lib.Picture(truth.image, boxes=boxes, classes=classes)
      words = f'annotation and detection: {missed} missed, {wrong} wrong'
      worst.add(missed + wrong, first + number, pictures_lib.Mistake(words, [truth, prediction]))


def _matches(true_boxes: np.ndarray, true_classes: Sequence[int], boxes: np.ndarray, classes: Sequence[int]) -> int:
  """How many boxes, the best first, find another true box of their class."""
  free = set(range(len(true_boxes)))
  for box, number in zip(boxes, classes):
    overlaps = {index: pictures_lib.overlap(true_boxes[index], box) for index in free if true_classes[index] == number}
    best = max(overlaps, key=lambda index: overlaps[index], default=None)
    if best is not None and overlaps[best] >= _SAME_OVERLAP:
      free.discard(best)
  return len(true_boxes) - len(free)
