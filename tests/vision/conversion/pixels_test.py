"""Any image that Pillow decodes becomes one that TensorFlow decodes, with the pixels that a viewer shows."""

import io
import struct
import zlib

import numpy as np
from PIL import Image
import pytest
import tensorflow as tf

from official_ext.vision.conversion import pixels
from tests.vision import drawn

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
COLOURS = np.stack([GREY, GREY[::-1], np.full_like(GREY, 128)], -1)


def decoded(content):
  return tf.io.decode_image(content, channels=3).numpy()


def shown_as(values):
  """An image of three channels."""
  return np.repeat(values[..., np.newaxis], 3, -1)


def alpha_image():
  return Image.fromarray(np.dstack([COLOURS, np.where(GREY < 128, 0, 255).astype(np.uint8)]))


@pytest.mark.parametrize(
  ('content', 'expected'),
  [
    (drawn.encoded(Image.fromarray(COLOURS)), COLOURS),
    (drawn.encoded(Image.fromarray(COLOURS), 'BMP'), COLOURS),
    (drawn.encoded(Image.fromarray(COLOURS), 'TIFF', compression='tiff_lzw'), COLOURS),
    (drawn.encoded(Image.fromarray(COLOURS), 'WEBP', lossless=True), COLOURS),
    (drawn.encoded(Image.fromarray(GREY)), shown_as(GREY)),
    (drawn.encoded(Image.fromarray(GREY > 99)), shown_as(np.where(GREY > 99, 255, 0))),  # One bit.
    (drawn.encoded(Image.fromarray(GREY.astype(np.uint16) * 257)), shown_as(GREY)),  # 16 bits.
    (drawn.encoded(Image.fromarray(GREY.astype(np.uint16) * 257), 'TIFF'), shown_as(GREY)),
    (drawn.encoded(alpha_image()), np.where(shown_as(GREY) < 128, 255, COLOURS)),  # On white.
    (drawn.encoded(Image.fromarray(GREY).convert('LA')), shown_as(GREY)),
    (drawn.encoded(Image.fromarray(GREY).convert('P')), shown_as(GREY)),
    (drawn.encoded(Image.fromarray(GREY), 'GIF'), shown_as(GREY)),
    (drawn.encoded(Image.fromarray(COLOURS).convert('CMYK'), 'TIFF'), COLOURS),
  ],
  ids='png bmp tiff webp grey 1bit 16bit tiff16 alpha grey_alpha palette gif cmyk'.split(),
)
def test_pixels_are_those_that_a_viewer_shows(content, expected):
  found = pixels.read(content, 'png')
  np.testing.assert_array_equal(decoded(found.content), expected)
  assert found.shown == found.stored == (8, 8) and found.content.startswith(b'\x89PNG')
  as_jpeg = pixels.read(content, 'jpeg', 100)
  assert np.abs(decoded(as_jpeg.content).astype(int) - expected).mean() < 6 and as_jpeg.content.startswith(b'\xff\xd8')


def test_a_cmyk_jpeg_has_the_colours_of_its_original():
  flat = Image.new('RGB', (16, 16), (200, 60, 30))
  found = pixels.read(drawn.encoded(flat.convert('CMYK'), 'JPEG', quality=100))
  assert np.abs(decoded(found.content).astype(int) - [200, 60, 30]).max() <= 3


def test_plain_files_are_kept():
  jpeg = drawn.encoded(Image.fromarray(COLOURS), 'JPEG', quality=40, progressive=True)
  assert pixels.read(jpeg).content == jpeg
  grey = drawn.encoded(Image.fromarray(GREY), 'JPEG')
  assert pixels.read(grey).content == grey
  png = drawn.encoded(Image.fromarray(COLOURS))
  assert pixels.read(png, 'png').content == png
  assert pixels.read(png, 'jpeg').content == pixels.read(png, 'jpeg').content != png


@pytest.mark.parametrize(('quality', 'subsampling'), [(100, 0), (75, 0), (75, 2)])
def test_a_turned_jpeg_keeps_its_pixels_but_for_rounding(quality, subsampling):
  exif = Image.Exif()
  exif[0x0112] = 6
  blocks = np.random.default_rng(0).integers(0, 255, (7, 5, 3), dtype=np.uint8)
  image = Image.fromarray(blocks).resize((41, 57), Image.Resampling.BICUBIC)
  content = drawn.encoded(image, 'JPEG', quality=quality, subsampling=subsampling, exif=exif)
  exactly = lambda jpeg: np.asarray(Image.open(io.BytesIO(jpeg))).astype(int)  # TensorFlow decodes JPEG inexactly.
  shown = np.rot90(exactly(content), -1)
  found = exactly(pixels.read(content).content)
  assert np.abs(found - shown).max() <= 4


@pytest.mark.parametrize('orientation', range(1, 9))
def test_an_exif_rotation_is_applied(orientation):
  image = Image.fromarray(COLOURS[:5])
  exif = Image.Exif()
  exif[0x0112] = orientation
  content = drawn.encoded(image, 'PNG', exif=exif)
  found = pixels.read(content, 'png')
  from PIL import ImageOps  # pylint: disable=g-import-not-at-top

  expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
  np.testing.assert_array_equal(decoded(found.content), expected)
  assert found.stored == (8, 5) and found.shown == ((5, 8) if orientation > 4 else (8, 5))


def png_with_damage():
  content = bytearray(drawn.encoded(Image.fromarray(COLOURS)))
  content[60] ^= 255
  return bytes(content)


@pytest.mark.parametrize(
  ('content', 'reason'),
  [
    (b'no image', 'is not an image that Pillow decodes'),
    (b'', 'is not an image that Pillow decodes'),
    (drawn.encoded(Image.fromarray(COLOURS), 'JPEG')[:-200], 'cannot be decoded: '),
    (png_with_damage(), 'cannot be decoded: '),
    (drawn.encoded(Image.fromarray(GREY.astype(np.float32)), 'TIFF'), 'has pixels of mode F without a defined range'),
    (drawn.encoded(Image.fromarray(GREY.astype(np.int32) * 9999), 'TIFF'), 'has pixels of mode I without a defined'),
  ],
)
def test_damaged_images_are_refused_with_the_reason(content, reason):
  with pytest.raises(ValueError, match=f'^{reason}'):
    pixels.read(content)


def test_class_numbers_of_masks():
  numbers = (GREY // 32).astype(np.uint8)
  palette = Image.fromarray(numbers)
  palette.putpalette([value for number in range(256) for value in (255 - number, 7, number)])
  for image in (Image.fromarray(numbers), palette, Image.fromarray(shown_as(numbers))):
    np.testing.assert_array_equal(np.asarray(pixels.class_numbers(drawn.encoded(image))), numbers)
  bits = Image.fromarray(GREY > 99)
  np.testing.assert_array_equal(np.asarray(pixels.class_numbers(drawn.encoded(bits))), (GREY > 99).astype(np.uint8))
  found = np.asarray(pixels.class_numbers(drawn.encoded(Image.fromarray(GREY)), (4, 0, 252)))
  assert found[0, :3].tolist() == [1, 0, 255] and found[7, 7] == 2


@pytest.mark.parametrize(
  ('content', 'reason'),
  [
    (drawn.encoded(Image.fromarray(GREY), 'JPEG'), 'the mask is a JPEG'),
    (drawn.encoded(Image.fromarray(COLOURS)), 'the mask has colours in place of class numbers'),
    (drawn.encoded(Image.fromarray(GREY.astype(np.uint16) * 9)), 'and 255, which is ignored: 2268'),
  ],
)
def test_other_masks_are_refused(content, reason):
  with pytest.raises(ValueError, match=reason):
    pixels.class_numbers(content)


def test_damaged_exif_data_do_not_matter():
  content = drawn.encoded(Image.fromarray(COLOURS), 'PNG')
  data = b'not tiff'
  chunk = struct.pack('>I', len(data)) + b'eXIf' + data + struct.pack('>I', zlib.crc32(b'eXIf' + data))
  found = pixels.read(content[:33] + chunk + content[33:], 'png')
  np.testing.assert_array_equal(decoded(found.content), COLOURS)
