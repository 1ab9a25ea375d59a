"""Drawn images with annotations in every input format, and readers of what a conversion has written."""

import contextlib
import glob
import io
import json
import os

import numpy as np
from PIL import Image

from official_ext.data.prepare import planning
from official_ext.data.prepare import preparing
from official_ext.vision.conversion import converting
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import input_formats
from tests.data.prepare import prepared_inputs

COLOURS = {'blue': (20, 40, 230), 'green': (30, 200, 40), 'red': (230, 30, 20)}
CLASSES = sorted(COLOURS)


def image_with(box, colour, size=(96, 64), background=60):
  """An image of (width, height) with a filled box (left, top, right, bottom) of a colour."""
  rng = np.random.default_rng(sum(box) + size[0])
  pixels = rng.integers(0, background, (size[1], size[0], 3), dtype=np.uint8)
  left, top, right, bottom = box
  pixels[top:bottom, left:right] = COLOURS[colour]
  return Image.fromarray(pixels)


def boxes(number, size=(96, 64)):
  """(name, box, colour) of images with one box each."""
  rng = np.random.default_rng(number)
  found = []
  for index in range(number):
    left, top = (int(rng.integers(0, side // 2)) for side in size)
    right, bottom = (int(low + rng.integers(side // 4, side // 2)) for low, side in zip((left, top), size))
    found.append((f'{index:03d}', (left, top, right, bottom), CLASSES[index % 3]))
  return found


def write_class_folders(folder, number=30, ending='.png'):
  """A folder with a subfolder for each colour."""
  for name, box, colour in boxes(number):
    (folder / colour).mkdir(parents=True, exist_ok=True)
    image_with(box, colour).save(folder / colour / f'{name}{ending}')
  return folder


def polygon_of(box):
  left, top, right, bottom = box
  return [[left, top, right, top, right, bottom, left, bottom]]


def write_coco(folder, number=12, extra=()):
  """`annotations.json` beside a folder `images`; category ids have gaps, as those of COCO."""
  (folder / 'images').mkdir(parents=True)
  images, annotations = [], []
  for index, (name, box, colour) in enumerate(boxes(number)):
    image = image_with(box, colour)
    image.save(folder / 'images' / f'{name}.jpg', quality=95)
    images.append({'id': 1000 + index, 'file_name': f'{name}.jpg', 'width': 96, 'height': 64})
    left, top, right, bottom = box
    annotations.append(
      {
        'id': index,
        'image_id': 1000 + index,
        'category_id': 10 * (1 + CLASSES.index(colour)),
        'bbox': [left, top, right - left, bottom - top],
        'area': (right - left) * (bottom - top),
        'segmentation': polygon_of(box),
        'iscrowd': 0,
      }
    )
  values = {
    'images': images,
    'annotations': [*annotations, *extra],
    'categories': [{'id': 10 * (1 + index), 'name': name} for index, name in enumerate(CLASSES)],
  }
  (folder / 'annotations.json').write_text(json.dumps(values))
  return folder


def write_masks(folder, number=12, palette=True):
  """`images` and `masks`: the class of a pixel is 1 + the number of the colour, 0 outside."""
  for part in ('images', 'masks'):
    (folder / part).mkdir(parents=True)
  for name, box, colour in boxes(number):
    image_with(box, colour).save(folder / 'images' / f'{name}.jpg', quality=95)
    left, top, right, bottom = box
    mask = np.zeros((64, 96), np.uint8)
    mask[top:bottom, left:right] = 1 + CLASSES.index(colour)
    stored = Image.fromarray(mask)
    if palette:
      stored = _with_palette(mask)
    stored.save(folder / 'masks' / f'{name}.png')
  return folder


def _with_palette(mask):
  image = Image.new('P', mask.shape[::-1])
  image.putdata(mask.ravel().tolist())
  image.putpalette([value for colour in [(0, 0, 0), *COLOURS.values()] for value in colour])
  return image


def convert(inputs, folder, target, labels=(), reverse=False, stopped_by=lambda: None, **values):
  """A conversion in this process: (the result of `prepare_plan`, the conversion)."""
  settings = planning.Settings(
    shard_bytes=values.pop('shard_bytes', 64 * 10**6), on_bad_example=values.pop('on_bad_example', 'skip')
  )
  reading = input_formats.Reading(values.pop('images', ''), values.pop('box_format', 'xywh'))
  inputs = inputs if isinstance(inputs, dict) else {'': [str(inputs)]}
  made = converting.Conversion(inputs, image_set.Conversion(target, **values), settings, reading, labels)
  engine = lambda num_shards: contextlib.nullcontext(prepared_inputs.Here(reverse))
  paths = [path for given in inputs.values() for path in given]
  done = preparing.prepare_plan(made.plan, paths, str(folder), engine, made, stopped_by=stopped_by)
  return done, made


def files_of(folder):
  """From the name of each file that a conversion keeps to its content."""
  return {
    path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file() and path.name != '.prepare.lock'
  }


def examples(folder, split='train'):
  """The features of a split, by the image's name."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  found = {}
  for file in sorted(glob.glob(os.path.join(glob.escape(str(folder)), f'{split}-*.tfrecord'))):
    for record in tf.data.TFRecordDataset(file):
      features = tf.train.Example.FromString(record.numpy()).features.feature
      values = {}
      for name, feature in features.items():
        kind = feature.WhichOneof('kind')
        values[name] = list(getattr(feature, kind).value) if kind else []
      found[values['image/filename'][0].decode()] = values
  return found


def pixels_of(content):
  """The pixels of an encoded image, as TensorFlow decodes them."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  return tf.io.decode_image(content, channels=3).numpy()


def encoded(image, image_format='PNG', **how):
  """The file of a Pillow image."""
  stream = io.BytesIO()
  image.save(stream, image_format, **how)
  return stream.getvalue()
