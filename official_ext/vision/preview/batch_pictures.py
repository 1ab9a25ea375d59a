"""From a batch of a task to pictures: images as a viewer shows them, with their boxes, masks and labels.

The layouts are those of Model Garden's inputs: official/vision/dataloaders/classification_input.py, retinanet_input.py,
maskrcnn_input.py and segmentation_input.py. Of other tasks, images are found by their shape.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
from official.vision.ops import box_ops
from official.vision.ops import preprocess_ops
import tensorflow as tf

from official_ext.base import errors

_CHANNELS = (1, 3, 4)
_SAME_OVERLAP = 0.9  # Of boxes that several anchors have for one object.
_LEAST_SHARE = 0.01  # Of a class in a label that mixes classes.


@dataclasses.dataclass
class Picture:
  """A drawn example.

  Attributes:
    image: uint8 `[height, width, 3]`.
    labels: (class number, share) of the image; the share is 1 unless labels are mixed.
    boxes: float `[n, 4]`: top, left, bottom, right in pixels.
    classes: of the boxes, by number.
    masks: of the boxes, bool `[height, width]` each; () without masks.
    class_map: int `[height, width]`, the class of each pixel; None without one.
    ignored: the number in `class_map` that is ignored.
  """

  image: np.ndarray
  labels: list[tuple[int, float]] = dataclasses.field(default_factory=list)
  boxes: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros([0, 4]))
  classes: Sequence[int] = ()
  masks: Sequence[np.ndarray] = ()
  class_map: np.ndarray | None = None
  ignored: int = 255


def of_batch(batch: Any, task: Any) -> tuple[list[Picture], str]:
  """The pictures of a batch.

  Args:
    batch: of the task's `build_inputs`.
    task: the task.

  Returns:
    (pictures, how pixels were restored, in words).

  Raises:
    UserError: the batch contains no images.
  """
  arrays = tf.nest.map_structure(_array, batch)
  features, labels = arrays if isinstance(arrays, tuple) and len(arrays) == 2 else (arrays, arrays)
  images = _images(features)
  if images is None:
    found = ', '.join(f'{array.dtype}{list(array.shape)}' for array in tf.nest.flatten(arrays)[:8])
    raise errors.UserError(f'preview: the input of {type(task).__name__} contains no images; it has {found}')
  shown, how = restored(images, task)
  pictures = [Picture(image) for image in shown]
  for number, picture in enumerate(pictures):
    _annotate(picture, labels, number, task)
  return pictures, how


def _array(part: Any) -> np.ndarray:
  if isinstance(part, (tf.RaggedTensor, tf.SparseTensor)):
    part = part.to_tensor() if isinstance(part, tf.RaggedTensor) else tf.sparse.to_dense(part)
  part = tf.convert_to_tensor(part)
  return tf.cast(part, tf.float32).numpy() if part.dtype in (tf.bfloat16, tf.float16) else part.numpy()


def _images(features: Any) -> np.ndarray | None:
  """The first array `[n, height, width, channels]`."""
  for array in tf.nest.flatten(features):
    if array.ndim == 4 and array.shape[-1] in _CHANNELS and min(array.shape[1:3]) > 3 and array.dtype.kind in 'fui':
      return array
  return None


def restored(images: np.ndarray, task: Any) -> tuple[np.ndarray, str]:
  """Images as a viewer shows them, uint8 `[n, height, width, 3]`, and how, in words."""
  values = images.astype(np.float64)
  if images.dtype == np.uint8:
    how = 'unchanged'
  elif any(cls.__module__.startswith('official.vision.') for cls in type(task).__mro__) and images.shape[-1] == 3:
    values = values * np.array(preprocess_ops.STDDEV_RGB) + np.array(preprocess_ops.MEAN_RGB)
    how = "Model Garden's mean and deviation undone"
  else:
    least, most = float(images.min(initial=0)), float(images.max(initial=0))
    if least >= 0 and most > 1 and most <= 255:
      how = 'taken for 0 to 255'
    elif least >= 0 and most <= 1:
      values, how = values * 255, 'taken for 0 to 1'
    elif least >= -1 and most <= 1:
      values, how = (values + 1) * 127.5, 'taken for -1 to 1'
    else:
      values, how = (values - least) * (255.0 / max(most - least, 1e-6)), f'scaled from {least:.3g} to {most:.3g}'
  if images.shape[-1] == 1:
    values = np.repeat(values, 3, -1)
  return np.clip(np.rint(values[..., :3]), 0, 255).astype(np.uint8), how


def _annotate(picture: Picture, labels: Any, number: int, task: Any) -> None:
  """Adds the labels of one example of a batch to its picture."""
  if not isinstance(labels, Mapping):
    array = next((part for part in tf.nest.flatten(labels) if part.ndim in (1, 2)), None)
    if array is not None:
      picture.labels = _labels(array[number])
    return
  if 'groundtruths' in labels:
    _add_groundtruths(picture, labels, number)
  elif 'gt_boxes' in labels:
    _add_boxes(picture, labels['gt_boxes'][number], labels['gt_classes'][number])
    if 'gt_masks' in labels:
      around = labels.get('gt_outer_boxes', labels['gt_boxes'])[number]
      kept = labels['gt_classes'][number] > 0
      picture.masks = _pasted(labels['gt_masks'][number][kept], around[kept], picture.image.shape)
  elif 'cls_targets' in labels and 'anchor_boxes' in labels:
    _add_targets(picture, labels, number, task)
  for name, array in labels.items():
    if isinstance(array, Mapping) or not isinstance(array, np.ndarray):
      continue
    if 'mask' in name and 'valid' not in name and array.shape[1:3] == picture.image.shape[:2]:
      picture.class_map = array[number].reshape(picture.image.shape[:2]).astype(np.int64)
      losses = getattr(getattr(task, 'task_config', None), 'losses', None)
      picture.ignored = getattr(losses, 'ignore_label', 255)
    elif name in ('label', 'labels', 'class', 'classes') and array.ndim <= 2:
      picture.labels = _labels(array[number])


def _labels(value: np.ndarray) -> list[tuple[int, float]]:
  """(class number, share) of a label: a number, or a weight for each class."""
  if not np.ndim(value):
    return [(int(value), 1.0)]
  if value.shape == (1,):
    return [(int(value[0]), 1.0)]
  order = np.argsort(-value, kind='stable')
  return [(int(index), float(value[index])) for index in order if value[index] > _LEAST_SHARE][:5]


def _add_boxes(picture: Picture, boxes: np.ndarray, classes: np.ndarray) -> None:
  """Adds boxes; rows of the class 0 or below are padding."""
  kept = classes > 0
  picture.boxes, picture.classes = boxes[kept].astype(np.float64), [int(each) for each in classes[kept]]


def _add_groundtruths(picture: Picture, labels: Mapping[str, Any], number: int) -> None:
  """Adds the boxes of an evaluation, which are in pixels of the original image."""
  found, info = labels['groundtruths'], labels['image_info'][number]
  boxes = found['boxes'][number] * np.tile(info[2], 2) - np.tile(info[3], 2)
  _add_boxes(picture, boxes, found['classes'][number])
  if 'masks' in found:
    kept = found['classes'][number] > 0
    picture.masks = _pasted(found['masks'][number][kept], boxes[kept], picture.image.shape)


def _add_targets(picture: Picture, labels: Mapping[str, Any], number: int, task: Any) -> None:
  """Adds the boxes that RetinaNet's targets encode: one for each anchor, so several for an object."""
  boxes, classes = [], []
  generator = getattr(task.task_config.model, 'detection_generator', None)
  weights = getattr(generator, 'box_coder_weights', None)
  for level, targets in labels['cls_targets'].items():
    flat = targets[number].reshape(-1)
    positive = flat > 0
    encoded = labels['box_targets'][level][number].reshape(-1, 4)[positive]
    anchors = labels['anchor_boxes'][level][number].reshape(-1, 4)[positive]
    if len(anchors):
      boxes.append(box_ops.decode_boxes(tf.constant(encoded), tf.constant(anchors), weights).numpy())
      classes.append(flat[positive])
  if boxes:
    _add_boxes(picture, *_without_repetitions(np.concatenate(boxes), np.concatenate(classes)))


def _without_repetitions(boxes: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  kept: list[int] = []
  for index, (box, each) in enumerate(zip(boxes, classes)):
    if all(classes[other] != each or overlap(boxes[other], box) < _SAME_OVERLAP for other in kept):
      kept.append(index)
  return boxes[kept], classes[kept]


def overlap(first: np.ndarray, second: np.ndarray) -> float:
  """The intersection over union of two boxes."""
  sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
  shared = float(np.prod(np.maximum(sides, 0)))
  union = float(np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2])) - shared
  return shared / union if union > 0 else 0.0


def _pasted(masks: np.ndarray, boxes: np.ndarray, shape: tuple[int, ...]) -> list[np.ndarray]:
  """Masks that are crops to boxes, in the whole image: bool `[height, width]` each."""
  from PIL import Image  # pylint: disable=g-import-not-at-top

  found = []
  for mask, box in zip(masks, boxes):
    whole = Image.new('F', (shape[1], shape[0]))
    top, left, bottom, right = (int(round(float(value))) for value in box)
    crop = Image.fromarray(mask.astype(np.float32))
    whole.paste(crop.resize((max(1, right - left), max(1, bottom - top)), Image.Resampling.BILINEAR), (left, top))
    found.append(np.asarray(whole) > 0.5)
  return found
