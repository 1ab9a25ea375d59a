"""Image files as the input of a model, in TensorFlow's graph: as shown, cropped, resized, scaled.

A task states its preprocessing once, and its `build_inputs` and its exports both use it:

    def image_preprocessing(self):
      return ext.ImagePreprocessing(size=(224, 224), range=(-1, 1))

    image = self.image_preprocessing()(example['image'])
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.data import input_files

METHODS = ('bilinear', 'nearest', 'bicubic', 'area', 'lanczos3', 'lanczos5', 'gaussian', 'mitchellcubic')
FORMATS = 'JPEG, PNG, WebP, BMP, GIF without transparency'
ORIENTATION = 'that of EXIF'
TRANSPARENCY = 'on white'
_EXIF = b'Exif\0\0'
_PADDING = 64  # Bytes after a file, so that its end can be read past.


@dataclasses.dataclass(frozen=True)
class ImagePreprocessing:
  """The way from an image file to the input of a model.

  A file is decoded as shown: turned by its EXIF data, transparent pixels on white, 16 bits as 8, of an animation the
  first picture. `official-ext prepare --for` treats files in the same way.

  Attributes:
    size: (height, width) of the input.
    crop: the share of the shorter side that a square in the center has, which is resized then. None: no crop.
    resize: the method, one of `METHODS`.
    antialias: whether a low-pass filter precedes a reduction.
    padding: a value from 0 to 255, or one for each channel, for the margins of an image that keeps its aspect ratio.
      None: the image is stretched.
    is_centered: whether the space is on both sides of the image, not only at the bottom and right.
    range: (least, greatest value) of the input.
    channels: 3, red, green, blue; or 1, their luminance.

  Example:

    >>> way = ext.ImagePreprocessing(size=(224, 224), crop=0.875, range=(-1, 1))
    >>> way.size, way.resize
    ((224, 224), 'bilinear')
  """

  size: tuple[int, int]
  crop: float | None = None
  resize: str = 'bilinear'
  antialias: bool = False
  padding: float | tuple[float, ...] | None = None
  is_centered: bool = False
  range: tuple[float, float] = (0, 1)
  channels: int = 3

  def __post_init__(self) -> None:
    where = type(self).__name__
    if self.resize not in METHODS:
      raise errors.UserError(f'{where}.resize: {self.resize}: unknown; use one of {", ".join(METHODS)}')
    if self.channels not in (1, 3):
      raise errors.UserError(f'{where}.channels: {self.channels}: expected 1 or 3')
    if self.crop is not None and not 0 < self.crop <= 1:
      raise errors.UserError(f'{where}.crop: {self.crop}: expected a share above 0, at most 1')
    if len(self.range) != 2:
      raise errors.UserError(f'{where}.range: {self.range}: expected (least, greatest value)')
    if isinstance(self.padding, tuple) and len(self.padding) != self.channels:
      raise errors.UserError(f'{where}.padding: {self.padding}: expected a number, or {self.channels} of them')
    if len(self.size) != 2 or min(self.size) < 1:
      raise errors.UserError(f'{where}.size: {self.size}: expected (height, width)')

  def __call__(self, content: tf.Tensor) -> tf.Tensor:
    """The input for a file.

    Args:
      content: its bytes, a string scalar.

    Returns:
      A float32 tensor `[height, width, channels]`.
    """
    return self.of_pixels(decode(content, self.channels))

  def of_pixels(self, image: tf.Tensor) -> tf.Tensor:
    """The input for the pixels of an image `[height, width, channels]` with values from 0 to 255."""
    image = tf.cast(image if self.crop is None else _cropped(image, self.crop), tf.float32)
    if self.padding is None:
      image = self._resized(image, self.size)
    else:
      sides = tf.cast(tf.shape(image)[:2], tf.float32)
      sides = tf.round(sides * tf.reduce_min(tf.constant(self.size, tf.float32) / sides))
      # Subtracted first, so that the zeros of the space become the padding.
      image = self._resized(image - self.padding, tf.cast(sides, tf.int32))
      space = tf.constant(self.size) - tf.shape(image)[:2]
      top, left = tf.unstack(tf.maximum(space // 2, 0) if self.is_centered else [0, 0])
      image = tf.image.pad_to_bounding_box(image, top, left, *self.size) + self.padding
    least, greatest = self.range
    return tf.ensure_shape(image / 255.0 * (greatest - least) + least, [*self.size, self.channels])

  def _resized(self, image: tf.Tensor, size: tf.Tensor | tuple[int, int]) -> tf.Tensor:
    return tf.image.resize(image, size, self.resize, antialias=self.antialias)

  def facts(self) -> json_values.JsonObject:
    """The entries of export.json: see docs/how_to/export_images.md."""
    return {
      'range': list(self.range),
      'size': list(self.size),
      'channels': self.channels,
      'channel_order': 'RGB' if self.channels == 3 else 'luminance',
      'crop': self.crop,
      'resize': self.resize,
      'antialias': self.antialias,
      'keeps_aspect_ratio': self.padding is not None,
      'padding': list(self.padding) if isinstance(self.padding, tuple) else self.padding,
      'is_centered': self.is_centered,
      'orientation': ORIENTATION,
      'transparency': TRANSPARENCY,
    }


def of_facts(facts: json_values.JsonMapping) -> ImagePreprocessing | None:
  """The preprocessing that the entries of an export.json state; None if they state none."""
  try:
    values: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in facts.items()}
    names = [field.name for field in dataclasses.fields(ImagePreprocessing)]
    return ImagePreprocessing(**{name: values[name] for name in names})
  except (KeyError, TypeError, ValueError, errors.UserError):
    return None


def _cropped(image: tf.Tensor, share: float) -> tf.Tensor:
  """The square in the center whose side is a share of the shorter side: Model Garden's `center_crop_image`."""
  sides = tf.cast(tf.shape(image)[:2], tf.float32)
  side = share * tf.reduce_min(sides)
  top, left = tf.unstack(tf.cast((sides - side) / 2.0, tf.int32))
  side = tf.cast(side, tf.int32)
  return image[top : top + side, left : left + side]


def decode(content: tf.Tensor, channels: int = 3, as_jpeg: bool = False) -> tf.Tensor:
  """The pixels of an image file as shown: see `ImagePreprocessing`.

  Args:
    content: the bytes of a JPEG, PNG, WebP, BMP or GIF, a string scalar. A transparent GIF is an InvalidArgumentError.
    channels: 3, red, green, blue; or 1, their luminance.
    as_jpeg: whether files that `prepare` stores as another JPEG become it, so that TensorFlow's inexact decoder changes
      them as in training.

  Returns:
    A uint8 tensor `[height, width, channels]`.
  """
  data = tf.pad(tf.io.decode_raw(content, tf.uint8), [[0, _PADDING]])
  is_jpeg, is_png, is_webp = _has(data, 0, b'\xff\xd8'), _has(data, 0, b'\x89PNG'), _has(data, 0, b'RIFF')
  place = tf.constant(-1, tf.int64)
  blocks: _Read = _jpeg_block
  for is_kind, first, read in ((is_jpeg, 2, _jpeg_block), (is_png, 8, _png_block), (is_webp, 12, _webp_block)):
    place, blocks = tf.where(is_kind, tf.constant(first, tf.int64), place), _chosen(is_kind, read, blocks)
  orientation, is_marked = _orientation(content, data, place, blocks)
  is_stored_otherwise = ~is_jpeg | is_marked | (orientation > 1)
  image = tf.case(
    [
      (is_jpeg, lambda: _jpeg(content, is_stored_otherwise)),
      (is_png, lambda: _png(content, data, is_marked)),
      (is_webp, lambda: _webp(content)),
      (_has(data, 0, b'BM'), lambda: _bmp(content, data)),
      (_has(data, 0, b'GIF8'), lambda: _gif(content, data)),
    ],
    default=lambda: _any(content, 3),
    exclusive=True,
  )
  image = tf.ensure_shape(_turned(tf.ensure_shape(image, [None, None, 3]), orientation), [None, None, 3])
  if as_jpeg:
    image = tf.ensure_shape(tf.cond(is_stored_otherwise, lambda: as_stored(image), lambda: image), [None, None, 3])
  if channels == 3:
    return image
  return tf.cast(tf.round(tf.image.rgb_to_grayscale(tf.cast(image, tf.float32))), tf.uint8)


def as_stored(image: tf.Tensor) -> tf.Tensor:
  """The pixels uint8 `[height, width, 1 or 3]` that training sees of an image that `prepare` stores as JPEG."""
  content = tf.io.encode_jpeg(image, quality=input_files.JPEG_QUALITY, chroma_downsampling=False)
  return tf.io.decode_jpeg(content, channels=image.shape[-1])


def _any(content: tf.Tensor, channels: int) -> tf.Tensor:
  image = tf.io.decode_image(content, channels=channels, expand_animations=False)
  return tf.ensure_shape(image, [None, None, channels])


def _jpeg(content: tf.Tensor, is_stored_otherwise: tf.Tensor) -> tf.Tensor:
  """A JPEG: turned ones, four-colour ones and ones of several pictures exactly; others as TensorFlow does by default.

  `prepare` stores the former in another form, as Pillow decodes them, and the others unchanged.
  """
  return tf.cond(
    is_stored_otherwise,
    lambda: tf.io.decode_jpeg(content, channels=3, dct_method='INTEGER_ACCURATE'),
    lambda: tf.io.decode_jpeg(content, channels=3),
  )


def _png(content: tf.Tensor, data: tf.Tensor, has_transparent_colour: tf.Tensor) -> tf.Tensor:
  """A PNG; grey ones of 16 bits are rounded, coloured ones cut, as Pillow does."""

  def of_16_bits():
    grey = tf.cast(tf.io.decode_png(content, channels=1, dtype=tf.uint16), tf.int32)
    return tf.image.grayscale_to_rgb(tf.cast((grey + 128) // 257, tf.uint8))

  bits, kind = data[24], data[25]
  # TensorFlow's alpha is wrong below 8 bits if the file has none.
  has_alpha = has_transparent_colour | (kind == 4) | (kind == 6)
  return tf.case(
    [((bits == 16) & (kind == 0), of_16_bits), (has_alpha, lambda: _on_white(_any(content, 4)))],
    default=lambda: _any(content, 3),
  )


def _webp(content: tf.Tensor) -> tf.Tensor:
  image = tf.io.decode_image(content, expand_animations=False)
  return tf.cond(tf.shape(image)[-1] == 4, lambda: _on_white(image), lambda: image)


def _bmp(content: tf.Tensor, data: tf.Tensor) -> tf.Tensor:
  """A BMP with 24 bits; 8 and a palette, which TensorFlow takes for grey; or 32, of which the last may be alpha."""
  bits, header = _number(data, 28, 2, is_little=True), _number(data, 14, 4, is_little=True)

  def of_palette():
    count = _number(data, 46, 4, is_little=True)
    count = tf.where(count == 0, tf.constant(256, tf.int64), count)
    colours = tf.reshape(data[14 + header : 14 + header + 4 * count], [-1, 4])[:, 2::-1]
    return tf.gather(colours, tf.cast(tf.io.decode_bmp(content)[..., 0], tf.int32))

  def of_32_bits():
    image = tf.io.decode_bmp(content, channels=4)
    has_alpha = (
      (_number(data, 30, 4, is_little=True) == 3) & (header >= 56) & (_number(data, 66, 4, is_little=True) != 0)
    )
    return tf.where(has_alpha, _on_white(image), image[..., :3])

  return tf.case(
    [(bits == 8, of_palette), (bits == 32, of_32_bits)], default=lambda: tf.io.decode_bmp(content, channels=3)
  )


def _gif(content: tf.Tensor, data: tf.Tensor) -> tf.Tensor:
  """The first picture of a GIF. TensorFlow does not show which pixels are transparent."""
  has_table = tf.bitwise.bitwise_and(data[10], 0x80) != 0
  table = tf.cast(tf.bitwise.left_shift(6, tf.cast(tf.bitwise.bitwise_and(data[10], 7), tf.int32)), tf.int64)

  def is_extension(place, is_transparent):
    del is_transparent
    return (data[tf.minimum(place, _size(data))] == 0x21) & (place < _size(data))

  def after_extension(place, is_transparent):
    """Goes past a block: its kind, parts with their lengths, and a length of 0."""
    is_control = (data[place + 1] == 0xF9) & (tf.bitwise.bitwise_and(data[place + 3], 1) == 1)
    (after,) = tf.while_loop(
      lambda part: (part < _size(data)) & (data[tf.minimum(part, _size(data))] != 0),
      lambda part: (part + 1 + tf.cast(data[part], tf.int64),),
      (place + 2,),
    )
    return after + 1, is_transparent | is_control

  start = tf.where(has_table, 13 + table, tf.constant(13, tf.int64))
  _, is_transparent = tf.while_loop(is_extension, after_extension, (start, tf.constant(False)))
  message = 'image: a GIF with transparent pixels is unsupported; send it as PNG'
  with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(is_transparent), [message])]):
    return _any(tf.identity(content), 3)


def _on_white(image: tf.Tensor) -> tf.Tensor:
  """The colours of an image `[height, width, 4]` before white, rounded as Pillow rounds."""
  colours, alpha = tf.cast(image[..., :3], tf.int32), tf.cast(image[..., 3:], tf.int32)
  mixed = 128 * (colours * alpha + 255 * (255 - alpha) + 128)
  return tf.cast((((mixed // 256) + mixed) // 256) // 128, tf.uint8)


def _turned(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
  """An image as shown, by the number of its orientation in EXIF, 1 to 8."""
  is_among = lambda *numbers: tf.reduce_any(orientation == tf.constant(numbers, tf.int64))
  image = tf.transpose(image, tf.where(is_among(5, 6, 7, 8), [1, 0, 2], [0, 1, 2]))
  return tf.raw_ops.Reverse(tensor=image, dims=tf.stack([is_among(3, 4, 7, 8), is_among(2, 3, 6, 7), False]))


# From data and a place in them to a block: whether it has EXIF data, their first and last place, the next place,
# whether it marks the image.
_Block = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
_Read = Callable[[tf.Tensor, tf.Tensor], _Block]


def _jpeg_block(data: tf.Tensor, place: tf.Tensor) -> _Block:
  """Marks images of four colours, or of several pictures."""
  marker = data[place + 1]
  is_end = (data[place] != 0xFF) | (marker == 0xDA) | (marker == 0xD9)
  end = place + 2 + _number(data, place + 2, 2, is_little=False)
  after = tf.where(is_end, _size(data), tf.where(marker == 0xFF, place + 1, end))  # 0xFF may fill the space between.
  has_four = ((marker == 0xC0) | (marker == 0xC1) | (marker == 0xC2)) & (data[place + 9] == 4)
  has_pictures = (marker == 0xE2) & _has(data, place + 4, b'MPF\0')
  return (marker == 0xE1) & _has(data, place + 4, _EXIF), place + 4, end, after, has_four | has_pictures


def _png_block(data: tf.Tensor, place: tf.Tensor) -> _Block:
  """Marks images with a transparent colour."""
  end = place + 8 + _number(data, place, 4, is_little=False)
  after = tf.where(_has(data, place + 4, b'IEND'), _size(data), end + 4)
  return _has(data, place + 4, b'eXIf'), place + 8, end, after, _has(data, place + 4, b'tRNS')


def _webp_block(data: tf.Tensor, place: tf.Tensor) -> _Block:
  length = _number(data, place + 4, 4, is_little=True)
  end = place + 8 + length
  return _has(data, place, b'EXIF'), place + 8, end, end + length % 2, tf.constant(False)


def _chosen(is_first: tf.Tensor, first: _Read, second: _Read) -> _Read:
  """One of two readers."""

  def read(data, place):
    exif, start, end, after, marks = (
      tf.where(is_first, one, other) for one, other in zip(first(data, place), second(data, place))
    )
    return exif, start, end, after, marks

  return read


def _orientation(content: tf.Tensor, data: tf.Tensor, first: tf.Tensor, read: _Read) -> tuple[tf.Tensor, tf.Tensor]:
  """(the orientation, 1 to 8, by EXIF data, or else by XMP, whether a block marks the image).

  A file without blocks has -1 as `first`.
  """

  def step(place, start, end, is_marked):
    is_exif, begins, ends, after, marks = read(data, place)
    is_new = is_exif & (end == 0)
    return (
      tf.where(after > place, after, _size(data)),
      tf.where(is_new, begins, start),
      tf.where(is_new, tf.minimum(ends, _size(data)), end),
      is_marked | marks,
    )

  zero = tf.constant(0, tf.int64)
  _, start, end, is_marked = tf.while_loop(
    lambda place, *_: (place >= 0) & (place < _size(data)), step, (first, zero, zero, tf.constant(False))
  )
  start += tf.where(_has(data, start, _EXIF), tf.constant(len(_EXIF), tf.int64), zero)
  found = tf.where(end > start, _exif_orientation(tf.pad(data[start:end], [[0, _PADDING]])), zero)
  number = tf.cond((found > 0) | (first < 0), lambda: tf.where(found <= 8, found, 1), lambda: _xmp_orientation(content))
  return number, is_marked


def _exif_orientation(data: tf.Tensor) -> tf.Tensor:
  """The entry 0x0112 of EXIF data; 0 if it is missing, or the data are damaged."""
  is_little = _has(data, 0, b'II*\0')
  number = functools.partial(_number, data, is_little=is_little)
  start = number(4, 4)
  count = tf.minimum(number(start, 2), (_size(data) - start) // 12)
  places = start + 2 + 12 * tf.range(tf.maximum(count, 0))
  tags = tf.stack([tf.gather(data, tf.minimum(places + each, _size(data))) for each in (0, 1)], 1)
  tag = tf.constant([0x01, 0x12], tf.uint8)
  is_entry = tf.reduce_all(tags == tf.where(is_little, tag[::-1], tag), 1)
  found = tf.concat([tf.boolean_mask(places, is_entry), [tf.constant(-1, tf.int64)]], 0)[0]
  place = tf.maximum(found, 0)
  value = tf.where(number(place + 2, 2) == 4, number(place + 8, 4), number(place + 8, 2))
  is_valid = (is_little | _has(data, 0, b'MM\0*')) & (found >= 0)
  return tf.where(is_valid, value, tf.constant(0, tf.int64))


def _xmp_orientation(content: tf.Tensor) -> tf.Tensor:
  pattern = r'\C*tiff:Orientation(?:="|>)([1-8])\C*'
  return tf.cond(
    tf.strings.regex_full_match(content, pattern),
    lambda: tf.strings.to_number(tf.strings.regex_replace(content, pattern, r'\1'), tf.int64),
    lambda: tf.constant(1, tf.int64),
  )


def _size(data: tf.Tensor) -> tf.Tensor:
  """The number of bytes of padded data."""
  return tf.size(data, tf.int64) - _PADDING


def _has(data: tf.Tensor, place: tf.Tensor | int, values: bytes) -> tf.Tensor:
  start = tf.minimum(tf.cast(place, tf.int64), _size(data))
  return tf.reduce_all(data[start : start + len(values)] == tf.constant(list(values), data.dtype))


def _number(data: tf.Tensor, place: tf.Tensor | int, num_bytes: int, is_little: tf.Tensor | bool) -> tf.Tensor:
  """An unsigned number at a place, int64."""
  start = tf.minimum(tf.cast(place, tf.int64), _size(data))
  weights = [256**each for each in range(num_bytes)]
  weights = tf.where(is_little, tf.constant(weights, tf.int64), tf.constant(weights[::-1], tf.int64))
  return tf.reduce_sum(tf.cast(data[start : start + num_bytes], tf.int64) * weights)
