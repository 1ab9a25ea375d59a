"""`official-ext preview`: draws examples as the input pipeline of an experiment yields them."""

import dataclasses
import os
from typing import Any

from official.core import task_factory
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.data import input_faults
from official_ext.training.config import definitions
from official_ext.training.devices import distribute
from official_ext.training.loop import required_fields
from official_ext.vision.preview import batch_pictures
from official_ext.vision.preview import class_names
from official_ext.vision.preview import drawing

SPLITS = {'train': 'train_data', 'validation': 'validation_data'}
ENDINGS = ('.png', '.html')


@dataclasses.dataclass(frozen=True)
class Options:
  """How a preview is drawn.

  Attributes:
    rows: of the grid.
    columns: of the grid.
    split: 'train' or 'validation'.
    output: the path of the picture: .png or .html.
    tile: the longer side of an example, in pixels.
  """

  rows: int = 4
  columns: int = 4
  split: str = 'train'
  output: str = 'preview.png'
  tile: int = 256


def run(params: definitions.ExperimentConfig, experiment: str, options: Options) -> None:
  """Draws the first examples of an experiment, and prints their number and file.

  Args:
    params: the experiment.
    experiment: its name.
    options: how.

  Raises:
    UserError: the input is damaged, empty, or contains no images.
  """
  if os.path.splitext(options.output)[1].lower() not in ENDINGS:
    raise errors.UserError(f'--output: {options.output}: expected a name that ends with {" or ".join(ENDINGS)}')
  distribute.configure(params.runtime)
  field = SPLITS[options.split]
  data = getattr(params.task, field, None)
  if data is None:
    raise errors.UserError(f'task.{field}: is not set; nothing can be drawn')
  missing = input_faults.unmatched(data)
  if missing is not None:
    raise errors.UserError(f'task.{field}.input_path: {missing}: No such file or directory')
  task = task_factory.get_task(params.task)
  pictures, how = _pictures(task, data, f'task.{field}', options.rows * options.columns)
  names = class_names.find(data)
  if options.output.lower().endswith('.html'):
    content = drawing.page(pictures, names, options.tile, f'{experiment}: {options.split} examples')
  else:
    content = drawing.grid(pictures, options.columns, names, options.tile)
  folder = os.path.dirname(os.path.abspath(options.output))
  paths.make_folder(folder)
  paths.write_atomically(options.output, content)
  height, width = pictures[0].image.shape[:2]
  print(f'{options.output}: {len(pictures)} {options.split} examples of {experiment}, {width} x {height} pixels')
  print(f'pixels: {how}; class names: {len(names) or "none found beside the input, numbers are shown"}')


def _pictures(task: Any, data: Any, path: str, number: int) -> tuple[list[batch_pictures.Picture], str]:
  """The first pictures of an input, and how their pixels were restored."""
  pictures: list[batch_pictures.Picture] = []
  how = ''
  try:
    with required_fields.named(task.task_config, type(task).__name__):
      dataset = task.build_inputs(data)
    for batch in dataset:
      found, how = batch_pictures.of_batch(batch, task)
      pictures += found
      if len(pictures) >= number:
        break
  except tf.errors.OpError as error:
    mistake = input_faults.explain(error, path, data, task.build_inputs)
    if mistake is None:
      raise
    raise mistake from error
  if not pictures:
    raise input_faults.no_examples(path, data, getattr(data, 'global_batch_size', 0))
  return pictures[:number], how
