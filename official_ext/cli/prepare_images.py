"""official-ext prepare --for=TARGET: annotated images for Model Garden's vision experiments. No TensorFlow."""

import argparse
from typing import Any

from official_ext.cli import arguments as arguments_lib
from official_ext.cli import prepare_splits
from official_ext.data.prepare import conversion_inputs
from official_ext.data.prepare import preparing
from official_ext.data.prepare import settings as settings_lib
from official_ext.vision.conversion import conversion_report
from official_ext.vision.conversion import converting
from official_ext.vision.conversion import input_formats
from official_ext.vision.conversion import targets

FLAGS = ('image_format', 'quality', 'coordinates', 'mask_values', 'images', 'box_format')


def add_arguments(group: Any) -> None:
  """Adds the flags of images; without --for they are refused."""
  image_format = 'of the stored images; png keeps pixels exactly, and is slower to train on; default: jpeg'
  group.add_argument('--image_format', choices=('jpeg', 'png'), help=image_format)
  group.add_argument('--quality', type=_quality, metavar='N', help='of converted JPEG images, 1 to 100; default: 95')
  coordinates = 'whether boxes and masks refer to images before or after their EXIF rotation; default: auto'
  group.add_argument('--coordinates', choices=('auto', 'shown', 'stored'), help=coordinates)
  mask_values = 'the values of pixels in masks that are the classes 0, 1, ..., such as 0,255; others are ignored'
  group.add_argument('--mask_values', type=_numbers, metavar='N,N', help=mask_values)
  group.add_argument('--images', type=arguments_lib.folder, metavar='FOLDER', help='the images of COCO JSON or VOC')
  box_format = 'of the column objects: xywh: left, top, width, height; xyxy: corners; default: xywh'
  group.add_argument('--box_format', choices=('xywh', 'xyxy'), help=box_format)


def conversion_of(
  known: argparse.Namespace, settings: settings_lib.Settings, others: tuple[str, ...]
) -> converting.Conversion:
  """The conversion that the flags define, its annotations read.

  Args:
    known: the parsed arguments.
    settings: of the shards.
    others: flags of other targets, which are refused.

  Raises:
    UserError: of the flags or the input.
  """
  given = prepare_splits.given(known, FLAGS, others)
  inputs = prepare_splits.inputs_of(given, conversion_inputs.matching(known.inputs))
  reading = input_formats.Reading(given.pop('images', None) or '', given.pop('box_format', 'xywh'))
  labels = conversion_inputs.read_labels(given.pop('labels')) if 'labels' in given else []
  conversion = targets.Conversion(target=known.target, **given)
  return converting.Conversion(inputs, conversion, settings, reading, labels)


def print_summary(conversion: converting.Conversion, done: preparing.Prepared, output: str) -> None:
  """Prints counts, losses, and the command that trains."""
  for line in conversion_report.lines(conversion.report):
    print(f'warning: {line}')
  counts = {split: values['images'] for split, values in conversion.report['splits'].items()}
  prepare_splits.print_summary(done, output, 'image', counts, targets.EXPERIMENTS[done.plan.kind])


def _quality(text: str) -> int:
  value = int(text)
  if not 1 <= value <= 100:
    raise argparse.ArgumentTypeError(f'{text}: expected 1 to 100')
  return value


def _numbers(text: str) -> tuple[int, ...]:
  try:
    found = tuple(int(word) for word in text.split(','))
  except ValueError:
    raise argparse.ArgumentTypeError(f'{text}: expected numbers such as 0,255') from None
  if len(set(found)) < len(found) or len(found) > 255:
    raise argparse.ArgumentTypeError(f'{text}: expected each number once, 255 at most')
  return found
