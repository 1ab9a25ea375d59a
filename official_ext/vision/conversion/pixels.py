"""The pixels of any image that Pillow decodes, and boxes and instance masks in the pixels of the image as shown.

`read` returns an image as a JPEG or PNG that TensorFlow decodes.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import io
from typing import Any

import numpy as np

from official_ext.data import input_files

_ORIENTATION = 0x0112  # The EXIF tag.
_WHITE = (255, 255, 255, 255)


@dataclasses.dataclass(frozen=True)
class Pixels:
  """A decoded image, encoded again where TensorFlow requires it.

  Attributes:
    content: a JPEG or PNG with one or three channels of eight bits, as shown.
    image_format: 'jpeg' or 'png'.
    shown: (width, height) as shown, after the rotation in its EXIF data.
    stored: (width, height) before that.
    transposition: of Pillow, from stored to shown; None if they are equal.
  """

  content: bytes
  image_format: str
  shown: tuple[int, int]
  stored: tuple[int, int]
  transposition: Any


def read(content: bytes, image_format: str = 'jpeg', quality: int = input_files.JPEG_QUALITY) -> Pixels:
  """Decodes an image, and encodes it again unless it is a plain one of the format already.

  Transparent pixels are shown on white. Values of 16 bits are divided by 257. Of an animation the first picture counts.

  Args:
    content: of a file.
    image_format: 'jpeg' or 'png'.
    quality: of JPEG.

  Raises:
    ValueError: it cannot be decoded to its end, or its pixels have no defined range; says why.
  """
  image = _decode(content)
  stored = image.size
  transposition = _transposition(image)
  if transposition is None and _is_plain(image, image_format):
    return Pixels(content, image_format, stored, stored, None)
  found = _eight_bits(image)
  if transposition is not None:
    found = found.transpose(transposition)
  encoded = io.BytesIO()
  if image_format == 'jpeg':
    found.save(encoded, 'JPEG', quality=quality, subsampling=0)
  else:
    found.save(encoded, 'PNG')
  return Pixels(encoded.getvalue(), image_format, found.size, stored, transposition)


def _decode(content: bytes) -> Any:
  from PIL import Image  # pylint: disable=g-import-not-at-top

  try:
    with Image.open(io.BytesIO(content)) as checked:
      checked.verify()  # Checksums, and the data after the pixels.
    image = Image.open(io.BytesIO(content))
    image.load()
  except Image.UnidentifiedImageError as error:
    raise ValueError('is not an image that Pillow decodes') from error
  except Exception as error:  # Pillow's decoders raise nearly anything.
    raise ValueError(f'cannot be decoded: {" ".join(str(error).split())[:150] or "damaged"}') from error
  return image


def _transposition(image: Any) -> Any:
  from PIL import Image  # pylint: disable=g-import-not-at-top

  kinds = Image.Transpose
  by_orientation = {
    2: kinds.FLIP_LEFT_RIGHT,
    3: kinds.ROTATE_180,
    4: kinds.FLIP_TOP_BOTTOM,
    5: kinds.TRANSPOSE,
    6: kinds.ROTATE_270,
    7: kinds.TRANSVERSE,
    8: kinds.ROTATE_90,
  }
  try:
    return by_orientation.get(image.getexif().get(_ORIENTATION, 1))
  except Exception:  # Damaged EXIF data do not matter.
    return None


def _is_plain(image: Any, image_format: str) -> bool:
  """Whether TensorFlow decodes the file to the same pixels."""
  still = getattr(image, 'n_frames', 1) == 1 and 'transparency' not in image.info
  return image.format == image_format.upper() and image.mode in ('L', 'RGB') and still


def _eight_bits(image: Any) -> Any:
  """The image with one or three channels of eight bits."""
  from PIL import Image  # pylint: disable=g-import-not-at-top

  if image.mode.startswith('I') or image.mode == 'F':
    values = np.asarray(image)
    if image.mode == 'F' or values.min(initial=0) < 0 or values.max(initial=0) > 65535:
      raise ValueError(f'has pixels of mode {image.mode} without a defined range; convert it to 8 or 16 bits')
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
  if image.mode == '1':
    return image.convert('L')
  if image.mode in ('L', 'RGB') and 'transparency' not in image.info:
    return image.copy()
  if image.mode in ('LA', 'La', 'PA', 'RGBA', 'RGBa') or 'transparency' in image.info:
    colours = image.convert('RGBA')
    return Image.alpha_composite(Image.new('RGBA', colours.size, _WHITE), colours).convert('RGB')
  return image.convert('RGB')  # P, CMYK, YCbCr, LAB, HSV.


def class_numbers(content: bytes, values: tuple[int, ...] = ()) -> Any:
  """The class of each pixel of a mask.

  Args:
    content: of an image with one channel or a palette, whose entries are the class numbers.
    values: the values that are the classes 0, 1, ...; others become 255, which is ignored. (): values are classes.

  Returns:
    A Pillow image of mode L.

  Raises:
    ValueError: it cannot be decoded, is lossy, or holds colours or numbers above 255.
  """
  from PIL import Image  # pylint: disable=g-import-not-at-top

  image = _decode(content)
  if image.format == 'JPEG':
    raise ValueError('the mask is a JPEG, which does not keep class numbers; store masks as PNG')
  found = np.asarray(image)
  if found.ndim == 3:  # Grey with several channels.
    if image.mode not in ('RGB', 'RGBA', 'LA') or image.mode != 'LA' and np.any(found[..., :3] != found[..., :1]):
      raise ValueError('the mask has colours in place of class numbers; store one channel, or a palette')
    found = found[..., 0]
  found = found.astype(np.int64)
  if values:
    classes = np.full(found.shape, 255, np.uint8)
    for number, value in enumerate(values):
      classes[found == value] = number
    return Image.fromarray(classes)
  if found.min(initial=0) < 0 or found.max(initial=0) > 255:
    raise ValueError(
      f'the mask has values other than class numbers, 0 to 254, and 255, which is ignored: {int(np.abs(found).max())}'
    )
  return Image.fromarray(found.astype(np.uint8))


def png(image: Any) -> bytes:
  """A Pillow image as PNG."""
  encoded = io.BytesIO()
  image.save(encoded, 'PNG')
  return encoded.getvalue()


# Counts of a report.
CLIPPED, OUTSIDE, EMPTY = 'boxes clipped to the image', 'boxes outside of the image', 'boxes without area'
NO_MASK, EMPTY_MASK = 'objects without a mask', 'masks without a pixel'
OTHER_MASK, BAD_MASK = 'masks of another size than the image', 'masks that cannot be decoded'
LOST = (OUTSIDE, EMPTY, NO_MASK, EMPTY_MASK, OTHER_MASK, BAD_MASK)  # Others are used, with changes.


@dataclasses.dataclass(frozen=True)
class ShownObject:
  """An object in the image as shown.

  Attributes:
    box: (left, top, right, bottom) in pixels.
    category: its number; 0 is the background.
    iscrowd: 1 for a group of objects.
    area: in pixels: of the mask if there is one, else as annotated, else of the box.
    mask: uint8 `[height, width]`, 1 on the object; None without one.
  """

  box: tuple[float, float, float, float]
  category: int
  iscrowd: int
  area: float
  mask: np.ndarray | None


def is_stored(size: Sequence[int], pixels: Pixels, coordinates: str) -> bool:
  """Whether annotations refer to the image before its rotation.

  Args:
    size: (width, height) that the annotations state; () if none.
    pixels: of the image.
    coordinates: see `image_set.Conversion`.

  Raises:
    ValueError: it is the size of another image.
  """
  size = tuple(size)
  if size and size not in (pixels.shown, pixels.stored):
    width, height = pixels.shown
    raise ValueError(f'was annotated with another size: {size[0]} x {size[1]} pixels, and has {width} x {height}')
  if pixels.transposition is None or coordinates == 'shown':
    return False
  return coordinates == 'stored' or bool(size) and size != pixels.shown


def shown_objects(
  record: Mapping[str, Any],
  pixels: Pixels,
  coordinates: str,
  with_masks: bool,
  counts: collections.Counter[str],
) -> list[ShownObject]:
  """The objects of an image that can be used.

  Args:
    record: of the plan in converting.py, with `objects`, `unit` and `size`.
    pixels: of the image.
    coordinates: see `image_set.Conversion`.
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
      mask = _mask(each.get('segmentation'), factors, width, height, counts)
      if mask is None:
        continue
      mask = _transposed(mask, transposition)
    area = float(mask.sum()) if mask is not None else each.get('area') or _area(box)
    left, top, right, bottom = _rotated(box, width, height, transposition)
    found.append(ShownObject((left, top, right, bottom), each['category'], each.get('iscrowd', 0), area, mask))
  return found


def _area(box: np.ndarray) -> float:
  return float((box[2] - box[0]) * (box[3] - box[1]))


def _clipped(box: np.ndarray, width: int, height: int, counts: collections.Counter[str]) -> np.ndarray | None:
  """The part of a box in the image; None if it is outside."""
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


def _mask(
  segmentation: Any, factors: np.ndarray, width: int, height: int, counts: collections.Counter[str]
) -> np.ndarray | None:
  """uint8 `[height, width]`; None, and counted, if it cannot be used."""
  from pycocotools import mask as mask_api  # pylint: disable=g-import-not-at-top

  if not segmentation:
    counts[NO_MASK] += 1
    return None
  if isinstance(segmentation, Mapping):
    if list(segmentation['size']) != [height, width]:
      counts[OTHER_MASK] += 1
      return None
    encoded: Any = segmentation
    if isinstance(segmentation['counts'], Sequence) and not isinstance(segmentation['counts'], (str, bytes)):
      encoded = mask_api.frPyObjects(dict(segmentation), height, width)
    try:
      mask = mask_api.decode(encoded)
    except (ValueError, TypeError):
      counts[BAD_MASK] += 1
      return None
  else:
    # pycocotools takes four numbers for a box.
    polygons = [part for part in segmentation if len(part) >= 6 and len(part) % 2 == 0]
    scaled = [(np.array(part, np.float64).reshape(-1, 2) * factors).ravel().tolist() for part in polygons]
    encoded = mask_api.merge(mask_api.frPyObjects(scaled, height, width)) if scaled else None
    mask = np.zeros([height, width], np.uint8) if encoded is None else mask_api.decode(encoded)
  if not mask.any():
    counts[EMPTY_MASK] += 1
    return None
  return mask


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
