"""Pixels of any image that Pillow decodes, as the JPEG or PNG that TensorFlow decodes. No TensorFlow."""

import dataclasses
import io
from typing import Any

import numpy as np

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


def read(content: bytes, image_format: str = 'jpeg', quality: int = 95) -> Pixels:
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
      checked.verify()  # Checksums, and the data behind the pixels.
    image = Image.open(io.BytesIO(content))
    image.load()
  except Image.UnidentifiedImageError as error:
    raise ValueError('is not an image that Pillow decodes') from error
  except Exception as error:  # Pillow's decoders raise nearly anything.
    raise ValueError(f'cannot be decoded: {" ".join(str(error).split())[:150] or type(error).__name__}') from error
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
      f'the mask has the value {int(np.abs(found).max())}; class numbers are 0 to 254, and 255 is ignored'
    )
  return Image.fromarray(found.astype(np.uint8))


def png(image: Any) -> bytes:
  """A Pillow image as PNG."""
  encoded = io.BytesIO()
  image.save(encoded, 'PNG')
  return encoded.getvalue()
