"""Grids and pages of pictures."""

import base64
import io
import re

import numpy as np
from PIL import Image

from official_ext.data import input_files
from official_ext.vision.preview import pictures as pictures_lib

NAMES = input_files.ClassNames({1: 'cat', 2: '<dog>'})


def picture(**fields):
  return pictures_lib.Picture(np.full([40, 60, 3], 100, np.uint8), **fields)


def test_boxes_masks_and_pixels_have_the_colour_of_their_class():
  mask = np.zeros([40, 60], bool)
  mask[10:20, 10:30] = True
  found = np.asarray(
    pictures_lib.drawn_picture(picture(boxes=np.array([[30.0, 5.0, 38.0, 20.0]]), classes=[1], masks=[mask]), NAMES, 60)
  )
  assert found.shape == (40, 60, 3)
  assert tuple(found[37, 10]) == tuple(found[34, 5]) == pictures_lib.colour_of(1)
  np.testing.assert_allclose(found[15, 25], (np.array(pictures_lib.colour_of(1)) + 100) / 2, atol=1)
  class_map = np.zeros([40, 60], int)
  class_map[:10], class_map[30:] = 2, 255
  found = np.asarray(pictures_lib.drawn_picture(picture(class_map=class_map), NAMES, 60))
  np.testing.assert_allclose(found[5, 5], (np.array(pictures_lib.colour_of(2)) + 100) / 2, atol=1)
  assert found[20, 20].tolist() == [100] * 3 and found[35, 5].tolist() == [114] * 3


def test_captions():
  assert pictures_lib.caption_of(picture(labels=[(1, 1.0)]), NAMES) == [(1, 'cat')]
  assert pictures_lib.caption_of(picture(labels=[(1, 0.7), (5, 0.3)]), NAMES) == [(1, 'cat 0.70'), (5, '5 0.30')]
  assert pictures_lib.caption_of(picture(classes=[2, 1, 2]), NAMES) == [(1, 'cat'), (2, '<dog> x 2')]
  class_map = np.array([[0, 2], [255, 2]])
  assert pictures_lib.caption_of(picture(class_map=class_map), NAMES) == [(0, '0'), (2, '<dog>')]


def test_a_grid_has_its_rows_and_a_page_its_pictures():
  pictures = [picture(labels=[(2, 1.0)])] * 5
  sheet = Image.open(io.BytesIO(pictures_lib.grid(pictures, 3, NAMES, 100)))
  one = Image.open(io.BytesIO(pictures_lib.grid(pictures[:1], 1, NAMES, 100)))
  assert sheet.width - one.width == 2 * (one.width - 6) and sheet.height - one.height == one.height - 6
  text = pictures_lib.page(pictures, NAMES, 100, 'a & b').decode()
  images = re.findall(r'base64,([^"]+)"', text)
  assert len(images) == 5 and Image.open(io.BytesIO(base64.b64decode(images[0]))).size == (100, 67)
  assert '&lt;dog&gt;' in text and '<dog>' not in text and 'a &amp; b' in text


def test_neighbouring_classes_have_distant_colours():
  colours = np.array([pictures_lib.colour_of(number) for number in range(12)], int)
  distances = np.abs(colours[:, np.newaxis] - colours[np.newaxis]).sum(-1) + np.eye(12, dtype=int) * 1000
  assert distances.min() > 40
