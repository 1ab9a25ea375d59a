"""official-ext prepare --for=TARGET: annotated images for Model Garden's vision experiments. No TensorFlow."""

import argparse
import os
import shlex
from typing import Any

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.data.prepare import preparing
from official_ext.data.prepare import settings as settings_lib
from official_ext.vision.conversion import conversion_report
from official_ext.vision.conversion import converting
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import input_formats
from official_ext.vision.conversion import targets

_FLAGS = (
  'validation_input',
  'test_input',
  'validation_share',
  'test_share',
  'seed',
  'image_format',
  'quality',
  'coordinates',
  'mask_values',
  'labels',
  'images',
  'box_format',
)


def add_arguments(group: Any) -> None:
  """Adds the flags of a conversion; without --for they are refused."""
  target = 'the task: writes TFRecord files, label names and settings for an experiment of Model Garden'
  group.add_argument('--for', dest='target', choices=targets.TARGETS, help=target)
  group.add_argument('--validation_input', metavar='PATH', help='validation images, in the same format as INPUT')
  group.add_argument('--test_input', metavar='PATH', help='test images, in the same format')
  share = 'of images for validation, chosen by the hash of their names; default: 0.1, unless the input has splits'
  group.add_argument('--validation_share', type=_share, metavar='SHARE', help=share)
  group.add_argument('--test_share', type=_share, metavar='SHARE', help='the same for test; default: 0')
  group.add_argument('--seed', type=arguments_lib.at_least(0), metavar='N', help='of splits and order; default: 0')
  image_format = 'of the stored images; png keeps pixels exactly, and is slower to train on; default: jpeg'
  group.add_argument('--image_format', choices=('jpeg', 'png'), help=image_format)
  group.add_argument('--quality', type=_quality, metavar='N', help='of converted JPEG images, 1 to 100; default: 95')
  coordinates = 'whether boxes and masks refer to images before or after their EXIF rotation; default: auto'
  group.add_argument('--coordinates', choices=('auto', 'shown', 'stored'), help=coordinates)
  mask_values = 'the values of pixels in masks that are the classes 0, 1, ..., such as 0,255; others are ignored'
  group.add_argument('--mask_values', type=_numbers, metavar='N,N', help=mask_values)
  labels = 'the names of the classes, one on each line, in the order of their numbers; other classes are dropped'
  group.add_argument('--labels', metavar='FILE', help=labels)
  group.add_argument('--images', type=arguments_lib.folder, metavar='FOLDER', help='the images of COCO JSON or VOC')
  box_format = 'of the column objects: xywh: left, top, width, height; xyxy: corners; default: xywh'
  group.add_argument('--box_format', choices=('xywh', 'xyxy'), help=box_format)


def conversion_of(known: argparse.Namespace, settings: settings_lib.Settings) -> converting.Conversion | None:
  """The conversion that the flags define, its annotations read; None without --for.

  Raises:
    UserError: of the flags or the input.
  """
  given = {name: getattr(known, name) for name in _FLAGS if getattr(known, name) is not None}
  if known.target is None:
    if given:
      raise errors.UserError(f'--{next(iter(given))}: needs --for={"|".join(targets.TARGETS)}')
    return None
  if known.split:
    raise errors.UserError('--split: with --for all splits are converted; name one by INPUT and --validation_input')
  inputs = {'': input_formats.matching(known.inputs)}
  for split in (image_set.VALIDATION, image_set.TEST):
    path = given.pop(f'{split}_input', None)
    if path:
      inputs[split] = [path]
  if image_set.VALIDATION in inputs and 'validation_share' in given:
    raise errors.UserError('--validation_share: --validation_input names the validation images; give one of them')
  reading = input_formats.Reading(given.pop('images', None) or '', given.pop('box_format', 'xywh'))
  labels = converting.read_labels(given.pop('labels')) if 'labels' in given else []
  conversion = targets.Conversion(target=known.target, **given)
  if conversion.validation_share + conversion.test_share >= 1:
    raise errors.UserError('--validation_share: no image is left for training; the shares must sum to less than 1')
  return converting.Conversion(inputs, conversion, settings, reading, labels)


def print_summary(conversion: converting.Conversion, done: preparing.Prepared, output: str) -> None:
  """Prints counts, losses, and the command that trains."""
  for line in conversion_report.lines(conversion.report):
    print(f'warning: {line}')
  there = f', {done.num_there} of which existed' if done.num_there else ''
  splits = ', '.join(f'{values["images"]} {split}' for split, values in conversion.report['splits'].items())
  print(f'{output}: {done.rows} images ({splits}), {done.num_bytes} bytes in {len(done.plan.shards)} shards{there}')
  has_validation = image_set.VALIDATION in conversion.report['splits']
  words = [
    'official-ext train',
    f'--experiment={targets.EXPERIMENTS[done.plan.kind]}',
    shlex.quote(f'--config_file={done.config_path}'),
    f'--mode={"train_and_eval" if has_validation else "train"}',
    shlex.quote(f'--model_dir=runs/{os.path.basename(os.path.abspath(output))}'),
  ]
  print('To train on them:')
  print(f'  {" ".join(words)}')


def _share(text: str) -> float:
  value = float(text)
  if not 0 <= value < 1:
    raise argparse.ArgumentTypeError(f'{text}: expected a number from 0 to below 1')
  return value


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
