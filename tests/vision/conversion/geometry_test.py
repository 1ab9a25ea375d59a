"""Boxes and masks follow the pixels of their image, and are clipped or dropped as reported."""

import collections

import numpy as np
from PIL import Image
import pytest

from official_ext.vision.conversion import pixels
from tests.vision import drawn

SIZE, BOX = (40, 24), (6, 3, 20, 9)  # Width and height; left, top, right, bottom.


def pixels_of(orientation):
  exif = Image.Exif()
  exif[0x0112] = orientation
  image = Image.new('L', SIZE)
  image.paste(255, BOX)
  return pixels.read(drawn.encoded(image, 'PNG', exif=exif), 'png')


def record_of(*objects, size=(), unit='pixels'):
  return {'objects': [{'category': 1, **each} for each in objects], 'size': list(size), 'unit': unit}


def bounds(white):
  """The box of the pixels that are set."""
  rows, columns = np.nonzero(white.any(1))[0], np.nonzero(white.any(0))[0]
  return (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)


def shown(record, found, coordinates='auto', with_masks=True):
  counts = collections.Counter()
  return pixels.shown_objects(record, found, coordinates, with_masks, counts), counts


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('unit', ['pixels', 'fractions'])
def test_boxes_and_masks_of_the_stored_image_are_rotated_with_it(orientation, unit):
  found = pixels_of(orientation)
  white = drawn.pixels_of(found.content)[..., 0] > 0
  box, polygon = list(BOX), drawn.polygon_of(BOX)[0]
  if unit == 'fractions':
    box = [value / side for value, side in zip(box, SIZE * 2)]
    polygon = [value / side for value, side in zip(polygon, SIZE * 4)]
  record = record_of({'bbox': box, 'segmentation': [polygon]}, unit=unit)
  ((each,), counts) = shown(record, found, 'stored')
  assert each.box == pytest.approx(bounds(white)) and not counts
  np.testing.assert_array_equal(each.mask, white)
  assert each.area == white.sum()


@pytest.mark.parametrize('orientation', [6, 8, 5, 7])
def test_the_stated_size_shows_which_image_was_annotated(orientation):
  found = pixels_of(orientation)
  assert found.shown == SIZE[::-1]
  white = bounds(drawn.pixels_of(found.content)[..., 0] > 0)
  ((stored,), _) = shown(record_of({'bbox': BOX}, size=SIZE), found, with_masks=False)
  ((as_shown,), _) = shown(record_of({'bbox': white}, size=SIZE[::-1]), found, with_masks=False)
  assert stored.box == as_shown.box == white
  ((without_size,), _) = shown(record_of({'bbox': white}), found, with_masks=False)
  assert without_size.box == white
  with pytest.raises(ValueError, match='was annotated with another size: 100 x 50 pixels, and has 24 x 40'):
    shown(record_of(size=(100, 50)), found)


def test_run_lengths_and_polygons_make_the_same_mask():
  from pycocotools import mask as mask_api  # pylint: disable=g-import-not-at-top

  mask = np.zeros(SIZE[::-1], np.uint8, order='F')
  mask[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 1
  compressed = mask_api.encode(mask)
  text = {'size': compressed['size'], 'counts': compressed['counts'].decode()}
  flat = mask.ravel(order='F')
  changes = np.flatnonzero(np.diff(flat)) + 1
  lengths = np.diff([0, *changes.tolist(), flat.size]).tolist()  # The first run is of zeros.
  plain = {'size': list(SIZE[::-1]), 'counts': lengths}
  for segmentation in (text, plain, drawn.polygon_of(BOX)):
    ((each,), _) = shown(record_of({'bbox': BOX, 'segmentation': segmentation}), pixels_of(1))
    np.testing.assert_array_equal(each.mask, mask)


def test_objects_that_cannot_be_used_are_counted():
  inside = {'bbox': BOX}
  objects = [
    inside,
    {'bbox': [-10, 2, 10, 30]},  # Clipped.
    {'bbox': [-0.4, 2, 10, 24.5]},  # Rounding.
    {'bbox': [50, 2, 60, 9]},  # Outside.
    {'bbox': [5, 5, 5, 9]},
    {'bbox': [9, 5, 4, 9]},
    {'bbox': [float('nan'), 5, 9, 9]},
  ]
  found, counts = shown(record_of(*objects), pixels_of(1), with_masks=False)
  assert [each.box for each in found] == [BOX, (0, 2, 10, 24), (0, 2, 10, 24)]
  assert counts == {pixels.CLIPPED: 1, pixels.OUTSIDE: 1, pixels.EMPTY: 3}
  masks = [inside, {**inside, 'segmentation': [[1, 2, 3, 4]]}, {**inside, 'segmentation': drawn.polygon_of(BOX)}]
  found, counts = shown(record_of(*masks), pixels_of(1))
  assert len(found) == 1 and counts == {pixels.NO_MASK: 1, pixels.EMPTY_MASK: 1}
