"""Pictures of the examples of a batch with their annotations: as a grid (PNG), as a page (HTML), or the worst examples.

The parts, in order: from a batch of a task to images as a viewer shows them, with boxes, masks and labels; drawing; the
worst examples of an evaluation.

Layouts of Model Garden's inputs: official/vision/dataloaders/classification_input.py, retinanet_input.py,
maskrcnn_input.py and segmentation_input.py. In batches of other tasks, images are found by their shape.
"""

import base64
from collections.abc import Mapping, Sequence
import colorsys
import dataclasses
import heapq
import html
import io
from typing import Any

import numpy as np
from official.vision.ops import box_ops
from official.vision.ops import preprocess_ops
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import config_fields
from official_ext.data import input_files

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


def pictures_of_batch(batch: Any, task: Any) -> tuple[list[Picture], str]:
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
      losses = config_fields.of_task(task.task_config).losses
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


_CAPTION, _MARGIN, _FONT = 34, 6, 12
_BACKGROUND, _TEXT = (255, 255, 255), (30, 30, 30)
_IGNORED = (128, 128, 128)
_STRENGTH = 0.5  # Of masks over their image.


def colour_of(number: int) -> tuple[int, int, int]:
  """The colour of a class; neighbouring numbers have distant hues."""
  hue = (number * 0.61803398875) % 1.0
  red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, 1.0)
  return int(red * 255), int(green * 255), int(blue * 255)


def grid(pictures: Sequence[Picture], columns: int, names: input_files.ClassNames, tile: int) -> bytes:
  """A PNG of pictures in rows, each in a square of `tile` pixels over its caption."""
  from PIL import Image  # pylint: disable=g-import-not-at-top,g-multiple-import
  from PIL import ImageDraw  # pylint: disable=g-import-not-at-top,g-multiple-import

  rows = -(-len(pictures) // columns)
  width, height = tile + _MARGIN, tile + _CAPTION + _MARGIN
  sheet = Image.new('RGB', (columns * width + _MARGIN, rows * height + _MARGIN), _BACKGROUND)
  draw = ImageDraw.Draw(sheet)
  for number, picture in enumerate(pictures):
    x, y = _MARGIN + number % columns * width, _MARGIN + number // columns * height
    image = drawn_picture(picture, names, tile)
    sheet.paste(image, (x + (tile - image.width) // 2, y + (tile - image.height) // 2))
    _write_caption(draw, (x, y + tile + 2), caption_of(picture, names), tile)
  return _png(sheet)


def page(pictures: Sequence[Picture], names: input_files.ClassNames, tile: int, title: str) -> bytes:
  """An HTML page with all pictures in it."""
  parts = [
    f'<!DOCTYPE html><html><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>',
    'body{font:14px sans-serif;margin:16px}main{display:flex;flex-wrap:wrap;gap:12px}figure{margin:0}',
    f'figcaption{{max-width:{tile}px;padding:4px 0}}b{{font-weight:normal;border-radius:3px;padding:0 4px}}</style>',
    f'</head><body><h1>{html.escape(title)}</h1><main>',
  ]
  for picture in pictures:
    content = base64.b64encode(_png(drawn_picture(picture, names, tile))).decode()
    words = ' '.join(
      f'<b style="background:rgb{colour_of(number)}">{html.escape(text)}</b>'
      for number, text in caption_of(picture, names)
    )
    parts.append(f'<figure><img src="data:image/png;base64,{content}" alt=""><figcaption>{words}</figcaption></figure>')
  return '\n'.join([*parts, '</main></body></html>\n']).encode()


def caption_of(picture: Picture, names: input_files.ClassNames) -> list[tuple[int, str]]:
  """(class number, text) of the classes in a picture: of its labels with their shares, else its objects or pixels."""
  if picture.labels:
    return [(number, names.of(number) + ('' if share == 1 else f' {share:.2f}')) for number, share in picture.labels]
  if picture.class_map is not None:
    numbers = [int(number) for number in np.unique(picture.class_map) if number != picture.ignored]
    return [(number, names.of(number)) for number in numbers]
  counts = {number: list(picture.classes).count(number) for number in sorted(set(picture.classes))}
  return [(number, names.of(number) + (f' x {count}' if count > 1 else '')) for number, count in counts.items()]


def drawn_picture(picture: Picture, names: input_files.ClassNames, tile: int) -> Any:
  """The picture with its annotations, a Pillow image of at most `tile` pixels on each side."""
  from PIL import Image  # pylint: disable=g-import-not-at-top,g-multiple-import
  from PIL import ImageDraw  # pylint: disable=g-import-not-at-top,g-multiple-import

  values = picture.image.astype(np.float64)
  if picture.class_map is not None:
    for number in np.unique(picture.class_map):
      colour = _IGNORED if number == picture.ignored else colour_of(int(number))
      if number or number == picture.ignored:  # Of the background nothing is drawn.
        _tint(values, picture.class_map == number, colour)
  for mask, number in zip(picture.masks, picture.classes):
    _tint(values, mask, colour_of(number))
  height, width = picture.image.shape[:2]
  scale = tile / max(height, width)
  size = (max(1, round(width * scale)), max(1, round(height * scale)))
  how = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR
  image = Image.fromarray(values.astype(np.uint8)).resize(size, how)
  draw = ImageDraw.Draw(image)
  for box, number in zip(picture.boxes, picture.classes):
    top, left, bottom, right = (float(value) * scale for value in box)
    draw.rectangle([left, top, max(left, right - 1), max(top, bottom - 1)], outline=colour_of(number), width=2)
    _write_name(draw, (left, top), names.of(number), colour_of(number), bottom)
  return image


def _tint(values: np.ndarray, where: np.ndarray, colour: tuple[int, int, int]) -> None:
  values[where] = values[where] * (1 - _STRENGTH) + np.array(colour) * _STRENGTH


def font() -> Any:
  """The font of names and captions."""
  from PIL import ImageFont  # pylint: disable=g-import-not-at-top

  return ImageFont.load_default(_FONT)


def _write_name(draw: Any, box: tuple[float, float], name: str, colour: tuple[int, int, int], bottom: float) -> None:
  """Writes the name of a box on its colour: above it, or below it at the upper edge."""
  x, y = box[0] + 3, box[1] - _FONT - 3
  place = (x, y if y >= 0 else bottom + 2)
  left, top, right, below = draw.textbbox(place, name, font=font())
  draw.rectangle([left - 3, top - 2, right + 2, below + 2], fill=colour)
  draw.text(place, name, fill=(0, 0, 0), font=font())


def _write_caption(draw: Any, place: tuple[int, int], words: Sequence[tuple[int, str]], width: int) -> None:
  """Writes at most two lines of class names, each after a square of its colour."""
  x, y = place
  for number, text in words:
    length = int(draw.textlength(text, font=font())) + 18
    if x > place[0] and x + length > place[0] + width:
      x, y = place[0], y + _FONT + 4
    if y > place[1] + _FONT + 4:
      return
    draw.rectangle([x, y + 2, x + 9, y + 11], fill=colour_of(number))
    draw.text((x + 13, y), text, fill=_TEXT, font=font())
    x += length


def _png(image: Any) -> bytes:
  stream = io.BytesIO()
  image.save(stream, 'PNG')
  return stream.getvalue()


_COLUMNS, _TILE, _GAP, _LINE = 4, 224, 8, 18
_MISTAKE_BACKGROUND, _MISTAKE_TEXT = (255, 255, 255), (30, 30, 30)


@dataclasses.dataclass(frozen=True)
class Mistake:
  """A wrong example.

  Attributes:
    words: its caption.
    pictures: the example, or the truth and the prediction.
  """

  words: str
  pictures: Sequence[Picture]


class Worst:
  """Keeps the worst examples. Of equally bad ones the earlier are kept."""

  def __init__(self, number: int):
    """Keeps `number` examples."""
    self._number = number
    self._heap: list[tuple[float, int, Mistake]] = []

  def accepts(self, badness: float) -> bool:
    """Whether a next example that is so bad would be kept; saves drawing others."""
    return len(self._heap) < self._number or bool(self._number) and badness > self._heap[0][0]

  def add(self, badness: float, index: int, mistake: Mistake) -> None:
    """Adds an example: its badness, its place in the data."""
    entry = badness, -index, mistake
    if len(self._heap) < self._number:
      heapq.heappush(self._heap, entry)
    elif self._number:
      heapq.heappushpop(self._heap, entry)

  @property
  def found(self) -> list[Mistake]:
    """The examples, the worst first."""
    return [mistake for *_, mistake in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


def drawn_mistakes(mistakes: Sequence[Mistake], names: input_files.ClassNames) -> np.ndarray:
  """A sheet of mistakes, each over its caption: uint8 `[height, width, 3]`."""
  from PIL import Image  # pylint: disable=g-import-not-at-top,g-multiple-import
  from PIL import ImageDraw  # pylint: disable=g-import-not-at-top,g-multiple-import

  parts = len(mistakes[0].pictures)
  columns = max(1, _COLUMNS // parts)
  width, height = parts * (_TILE + _GAP) + _GAP, _TILE + _LINE + 2 * _GAP
  sheet = Image.new('RGB', (columns * width, -(-len(mistakes) // columns) * height), _MISTAKE_BACKGROUND)
  draw = ImageDraw.Draw(sheet)
  for number, mistake in enumerate(mistakes):
    x, y = number % columns * width + _GAP, number // columns * height + _GAP
    for part, picture in enumerate(mistake.pictures):
      sheet.paste(drawn_picture(picture, names, _TILE), (x + part * (_TILE + _GAP), y))
    draw.text((x, y + _TILE + 2), mistake.words, fill=_MISTAKE_TEXT, font=font())
  return np.asarray(sheet)
