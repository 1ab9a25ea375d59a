"""Files that TensorFlow's graph decodes are those that `prepare` stores: of all formats, modes and orientations."""

import io

import numpy as np
from official.vision.ops import preprocess_ops
from PIL import Image
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import image_preprocessing
from official_ext.vision.conversion import pixels
from tests import tiers

HEIGHT, WIDTH = 37, 52
TURNS = range(1, 9)


def colours():
  """A picture without symmetry, with fine and coarse parts."""
  down, right = np.mgrid[:HEIGHT, :WIDTH]
  planes = [128 + 100 * np.sin(right / 9) * np.cos(down / 7), right * 3 % 256, down * 6 % 256]
  noise = np.random.default_rng(0).normal(0, 12, [HEIGHT, WIDTH, 3])
  return np.clip(np.stack(planes, -1) + noise, 0, 255).astype(np.uint8)


def alpha():
  return (np.arange(WIDTH) * 5 % 256).astype(np.uint8)[np.newaxis].repeat(HEIGHT, 0)


def encoded(image, kind, orientation=1, **options):
  """A file with an orientation in its EXIF data."""
  if orientation > 1:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options['exif'] = exif
  content = io.BytesIO()
  image.save(content, kind, **options)
  return content.getvalue()


RGB = Image.fromarray(colours())
RGBA = Image.fromarray(np.dstack([colours(), alpha()]))
GREY = RGB.convert('L')
WIDE = Image.fromarray(colours()[..., 0].astype(np.uint16) * 255 + 77)
FILES = {
  'jpeg': encoded(RGB, 'JPEG', quality=90),
  'jpeg_grey': encoded(GREY, 'JPEG'),
  'jpeg_cmyk': encoded(RGB.convert('CMYK'), 'JPEG', quality=95),
  'jpeg_progressive': encoded(RGB, 'JPEG', progressive=True),
  'mpo': encoded(RGB, 'MPO', save_all=True, append_images=[GREY.convert('RGB')]),
  'png': encoded(RGB, 'PNG'),
  'png_1': encoded(RGB.convert('1'), 'PNG'),
  'png_grey': encoded(GREY, 'PNG'),
  'png_grey_16': encoded(WIDE, 'PNG'),
  'png_palette': encoded(RGB.convert('P'), 'PNG'),
  'png_palette_transparent': encoded(RGB.quantize(16), 'PNG', transparency=3),
  'png_colour_transparent': encoded(RGB, 'PNG', transparency=tuple(map(int, colours()[0, 0]))),
  'png_grey_transparent': encoded(GREY, 'PNG', transparency=int(np.asarray(GREY)[0, 0])),
  'png_rgba': encoded(RGBA, 'PNG'),
  'png_2_bits': encoded(RGB.quantize(4), 'PNG', bits=2),
  'png_2_bits_transparent': encoded(RGB.quantize(4), 'PNG', bits=2, transparency=1),
  **{
    f'png_{name}_16': tf.io.encode_png(tf.constant(np.dstack(planes).astype(np.uint16) * 251 + 99)).numpy()
    for name, planes in {
      'rgb': [colours()],
      'rgba': [colours(), alpha()],
      'la': [colours()[..., :1], alpha()],
    }.items()
  },
  'png_la': encoded(RGBA.convert('LA'), 'PNG'),
  'gif': encoded(RGB.convert('P'), 'GIF'),
  'gif_animated': encoded(RGB.convert('P'), 'GIF', save_all=True, append_images=[GREY.convert('P')]),
  'bmp': encoded(RGB, 'BMP'),
  'bmp_grey': encoded(GREY, 'BMP'),
  'bmp_palette': encoded(RGB.convert('P'), 'BMP'),
  'bmp_rgba': encoded(RGBA, 'BMP'),
  'webp': encoded(RGB, 'WEBP', quality=80),
  'webp_rgba': encoded(RGBA, 'WEBP', lossless=True),
  'webp_animated': encoded(RGBA, 'WEBP', lossless=True, save_all=True, append_images=[RGBA.rotate(180)]),
}
TURNED = {
  f'{kind}_{turn}': encoded(RGB if kind != 'PNG' else RGBA, kind, turn)
  for kind in ('JPEG', 'PNG', 'WEBP')
  for turn in TURNS
}


@pytest.fixture(scope='module')
def decode():
  return tf.function(image_preprocessing.decode, input_signature=[tf.TensorSpec([], tf.string)], autograph=False)


def stored_exactly(content):
  return np.asarray(Image.open(io.BytesIO(pixels.read(content, 'png').content)).convert('RGB'))


@pytest.mark.parametrize('name', FILES)
def test_files_are_decoded_as_prepare_stores_them(name, decode):
  found = decode(FILES[name]).numpy()
  assert found.shape == (HEIGHT, WIDTH, 3)
  is_unchanged = name.startswith('jpeg') and name != 'jpeg_cmyk'
  expected = tf.io.decode_jpeg(FILES[name], 3).numpy() if is_unchanged else stored_exactly(FILES[name])
  np.testing.assert_array_equal(found, expected)


@tiers.parametrize('name', TURNED, fast=list(TURNED)[:8])
def test_files_are_turned_as_prepare_turns_them(name, decode):
  found = decode(TURNED[name]).numpy()
  plain = name.endswith('_1') and name.startswith('JPEG')
  expected = tf.io.decode_jpeg(TURNED[name], 3).numpy() if plain else stored_exactly(TURNED[name])
  assert expected.shape == ((WIDTH, HEIGHT, 3) if int(name[-1]) > 4 else (HEIGHT, WIDTH, 3))
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('name', ['jpeg', 'png_rgba', 'png_grey', 'JPEG_6'])
def test_files_are_decoded_as_the_jpeg_that_prepare_stores(name):
  content = (FILES | TURNED)[name]
  found = image_preprocessing.decode(tf.constant(content), as_jpeg=True).numpy()
  np.testing.assert_array_equal(found, tf.io.decode_jpeg(pixels.read(content).content, channels=3).numpy())


def with_exif(data, kind='JPEG', **options):
  return encoded(RGB, kind, exif=data, **options)


def big_endian():
  exif = Image.Exif()
  exif[0x010E], exif[0x0112] = 'a description', 8
  exif.endian = '>'
  return exif.tobytes()


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'
ODD = {
  'big endian': with_exif(big_endian()),
  'XMP': encoded(RGB, 'JPEG', xmp=XMP % 6),
  'EXIF before XMP': encoded(RGB, 'JPEG', 3, xmp=XMP % 6),
  'damaged': with_exif(b'Exif\0\0II*\0\xff\xff\xff\x7f'),
  'cut': with_exif(big_endian()[:20]),
  'another tag': with_exif(b'Exif\0\0II*\0\x08\0\0\0\1\0\x0f\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0'),
  'no orientation': with_exif(b'Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x0b\0\0\0\0\0\0\0'),
  'after a comment and a profile': encoded(RGB, 'JPEG', 5, comment=b'c' * 3000, icc_profile=b'p' * 70000),
  'PNG after text': encoded(RGBA, 'PNG', 7),
}


@pytest.mark.parametrize('name', ODD)
def test_orientations_are_found_where_pillow_finds_them(name, decode):
  found = decode(ODD[name]).numpy()
  is_turned = pixels.read(ODD[name]).transposition is not None
  expected = stored_exactly(ODD[name]) if is_turned or name.startswith('PNG') else tf.io.decode_jpeg(ODD[name], 3)
  np.testing.assert_array_equal(found, expected)
  assert is_turned == (name not in ('damaged', 'cut', 'another tag', 'no orientation'))


@pytest.mark.parametrize(
  'content, words',
  [
    (encoded(RGB.quantize(16), 'GIF', transparency=2), 'a GIF with transparent pixels is unsupported; send it as PNG'),
    (b'\xff\xd8', 'jpeg|JPEG'),
    (FILES['jpeg'][:300], 'JPEG|jpeg'),
    (FILES['png'][:300], 'PNG|png'),
    (b'BM', ''),
    (b'GIF8', ''),
    (b'RIFF\4\0\0\0WEBP', ''),
    (b'no image', 'Unknown image file format'),
    (b'', ''),
  ],
)
def test_files_that_cannot_be_decoded_are_an_error(content, words, decode):
  with pytest.raises(tf.errors.InvalidArgumentError, match=words):
    decode(content)


def test_preprocessing_is_that_of_model_garden():
  image = tf.constant(colours(), tf.float32)
  for share in (1.0, 0.875, 0.33):
    found = image_preprocessing.ImagePreprocessing((20, 30), crop=share, range=(0, 255)).of_pixels(image)
    expected = tf.image.resize(preprocess_ops.center_crop_image(image, share), (20, 30))
    np.testing.assert_allclose(found, expected, atol=1e-3)
  for size in ((20, 30), (90, 40), (30, 90)):
    for is_centered in (False, True):
      padded = image_preprocessing.ImagePreprocessing(size, padding=7.0, is_centered=is_centered, range=(0, 255))
      expected, _ = preprocess_ops.resize_and_crop_image(image - 7, size, size, centered_crop=is_centered)
      np.testing.assert_allclose(padded.of_pixels(image), expected + 7, atol=1e-3)


def test_an_input_has_its_range_channels_and_facts():
  grey = image_preprocessing.ImagePreprocessing((9, 8), range=(-1, 1), channels=1, antialias=True)
  found = grey(tf.constant(FILES['png'])).numpy()
  assert found.shape == (9, 8, 1) and -1 <= found.min() < -0.2 and 0.2 < found.max() <= 1
  assert image_preprocessing.of_facts(grey.facts()) == grey
  coloured = image_preprocessing.ImagePreprocessing((9, 8), padding=(1.0, 2.0, 3.0))
  assert image_preprocessing.of_facts(coloured.facts()) == coloured
  assert image_preprocessing.of_facts({'range': [0, 1], 'size': [8, 8], 'channels': 1}) is None


@pytest.mark.parametrize(
  'fields, words',
  [
    ({'size': (0, 9)}, 'size'),
    ({'size': (9,)}, 'size'),
    ({'crop': 0.0}, 'crop'),
    ({'crop': 1.1}, 'crop'),
    ({'resize': 'bilnear'}, 'resize: bilnear: unknown; use one of bilinear, '),
    ({'channels': 4}, 'channels: 4: expected 1 or 3'),
  ],
)
def test_wrong_fields_are_refused(fields, words):
  with pytest.raises(errors.UserError, match=words):
    image_preprocessing.ImagePreprocessing(**{'size': (8, 8), **fields})
