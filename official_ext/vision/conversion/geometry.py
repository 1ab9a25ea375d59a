"""Boxes and instance masks in the pixels of the image as shown. No TensorFlow."""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from official_ext.vision.conversion import pixels as pixels_lib

# Counts of a report.
CLIPPED, OUTSIDE, EMPTY = 'boxes clipped to the image', 'boxes outside of the image', 'boxes without area'
NO_MASK, EMPTY_MASK = 'objects without a mask', 'masks without a pixel'


@dataclasses.dataclass(frozen=True)
class ShownObject:
  """An object in the image as shown.

  Attributes:
    box: (left, top, right, bottom) in pixels.
    category: its number; 0 is the background.
    iscrowd: 1 for a group of objects.
    area: in pixels: of the mask if there is one, else that which is annotated, else of the box.
    mask: uint8 `[height, width]`, 1 on the object; None without one.
  """

  box: tuple[float, float, float, float]
  category: int
  iscrowd: int
  area: float
  mask: np.ndarray | None


def is_stored(size: Sequence[int], pixels: pixels_lib.Pixels, coordinates: str) -> bool:
  """Whether annotations refer to the image before its rotation.

  Args:
    size: (width, height) that the annotations state; () if none.
    pixels: of the image.
    coordinates: see `targets.Conversion`.

  Raises:
    ValueError: the size is that of another image.
  """
  size = tuple(size)
  if size and size not in (pixels.shown, pixels.stored):
    width, height = pixels.shown
    raise ValueError(f'was annotated with {size[0]} x {size[1]} pixels, and has {width} x {height}')
  if pixels.transposition is None or coordinates == 'shown':
    return False
  return coordinates == 'stored' or bool(size) and size != pixels.shown


def shown_objects(
  record: Mapping[str, Any],
  pixels: pixels_lib.Pixels,
  coordinates: str,
  with_masks: bool,
  counts: collections.Counter[str],
) -> list[ShownObject]:
  """The objects of an image that can be used.

  Args:
    record: of `image_plan`, with `objects`, `unit` and `size`.
    pixels: of the image.
    coordinates: see `targets.Conversion`.
    with_masks: whether objects without a mask are dropped.
    counts: filled in: objects changed or dropped, by reason.

  Raises:
    ValueError: the annotations are of another image.
  """
  stored = is_stored(record['size'], pixels, coordinates)
  width, height = pixels.stored if stored else pixels.shown
  transposition = pixels.transposition if stored else None
  found = []
  for each in record['objects']:
    factors = np.array([width, height]) if record['unit'] == 'fractions' else np.ones(2)
    box = _clipped(np.array(each['bbox'], np.float64) * np.tile(factors, 2), width, height, counts)
    if box is None:
      continue
    mask = None
    if with_masks:
      mask = _mask(each.get('segmentation'), factors, width, height)
      if mask is None or not mask.any():
        counts[NO_MASK if mask is None else EMPTY_MASK] += 1
        continue
      mask = _transposed(mask, transposition)
    area = float(mask.sum()) if mask is not None else each.get('area') or _area(box)
    left, top, right, bottom = _rotated(box, width, height, transposition)
    found.append(ShownObject((left, top, right, bottom), each['category'], each.get('iscrowd', 0), area, mask))
  return found


def _area(box: np.ndarray) -> float:
  return float((box[2] - box[0]) * (box[3] - box[1]))


def _clipped(box: np.ndarray, width: int, height: int, counts: collections.Counter[str]) -> np.ndarray | None:
  """The part of a box in the image; None if there is none."""
  if not np.all(np.isfinite(box)) or box[2] <= box[0] or box[3] <= box[1]:
    counts[EMPTY] += 1
    return None
  found = np.clip(box, 0, [width, height, width, height])
  if found[2] <= found[0] or found[3] <= found[1]:
    counts[OUTSIDE] += 1
    return None
  if np.abs(found - box).max() > 1:  # Annotations round: less than a pixel does not matter.
    counts[CLIPPED] += 1
  return found


def _mask(segmentation: Any, factors: np.ndarray, width: int, height: int) -> np.ndarray | None:
  """uint8 `[height, width]`; None without a mask."""
  from pycocotools import mask as mask_api  # pylint: disable=g-import-not-at-top

  if not segmentation:
    return None
  if isinstance(segmentation, Mapping):
    if list(segmentation['size']) != [height, width]:
      raise ValueError(f'has a mask of {segmentation["size"][1]} x {segmentation["size"][0]} pixels')
    encoded = segmentation
    if isinstance(segmentation['counts'], Sequence) and not isinstance(segmentation['counts'], (str, bytes)):
      encoded = mask_api.frPyObjects(dict(segmentation), height, width)
    return mask_api.decode(encoded)
  # pycocotools takes four numbers for a box.
  polygons = [part for part in segmentation if len(part) >= 6 and len(part) % 2 == 0]
  if not polygons:
    return np.zeros([height, width], np.uint8)
  scaled = [(np.array(part, np.float64).reshape(-1, 2) * factors).ravel().tolist() for part in polygons]
  return mask_api.decode(mask_api.merge(mask_api.frPyObjects(scaled, height, width)))


def _transposed(mask: np.ndarray, transposition: Any) -> np.ndarray:
  from PIL import Image  # pylint: disable=g-import-not-at-top

  return mask if transposition is None else np.asarray(Image.fromarray(mask).transpose(transposition))


def _rotated(box: np.ndarray, width: int, height: int, transposition: Any) -> tuple[float, float, float, float]:
  """A box of an image of this size, after a transposition of Pillow."""
  left, top, right, bottom = (float(value) for value in box)
  name = transposition.name if transposition is not None else ''
  if name in ('FLIP_LEFT_RIGHT', 'ROTATE_180'):
    left, right = width - right, width - left
  if name in ('FLIP_TOP_BOTTOM', 'ROTATE_180'):
    top, bottom = height - bottom, height - top
  if name == 'TRANSPOSE':
    return top, left, bottom, right
  if name == 'ROTATE_270':  # A quarter clockwise.
    return height - bottom, left, height - top, right
  if name == 'ROTATE_90':
    return top, width - right, bottom, width - left
  if name == 'TRANSVERSE':
    return height - bottom, width - right, height - top, width - left
  return left, top, right, bottom
