"""`official-ext preview`: draws examples as the input pipeline of an experiment yields them."""

import dataclasses
import os
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.data import config_fields
from official_ext.data import input_faults
from official_ext.data import input_files
from official_ext.training.config import definitions
from official_ext.training.devices import distribute
from official_ext.training.diagnosis import data_checks
from official_ext.training.tasks import model_garden
from official_ext.vision.preview import pictures as pictures_lib

ENDINGS = ('.png', '.html')


@dataclasses.dataclass(frozen=True)
class Options:
  """How a preview is drawn.

  Attributes:
    rows: of the grid.
    columns: of the grid.
    split: 'train' or 'validation'.
    output: the path of the picture: .png or .html; without an ending .png is added.
    tile: the longer side of an example, in pixels.
  """

  rows: int = 4
  columns: int = 4
  split: str = 'train'
  output: str = 'preview.png'
  tile: int = 256


def run(params: definitions.ExperimentConfig, experiment: str, options: Options) -> json_values.JsonObject:
  """Draws the first examples of an experiment, and prints their number and file.

  Args:
    params: the experiment.
    experiment: its name.
    options: how.

  Returns:
    {experiment, split, examples, width, height, pixels, class_names, output}: for a program.

  Raises:
    UserError: the input is damaged, empty, or contains no images.
  """
  output = options.output if os.path.splitext(options.output)[1] else f'{options.output}.png'
  if os.path.splitext(output)[1].lower() not in ENDINGS:
    raise errors.UserError(f'--output: {output}: expected a name that ends with {" or ".join(ENDINGS)}')
  distribute.configure(params.runtime)
  data, path = data_checks.data_of(params.task, options.split)
  task = model_garden.make_task(params.task)
  pictures, how = _pictures(task, data, path, options.rows * options.columns)
  names = input_files.find_class_names(data)
  if output.lower().endswith('.html'):
    content = pictures_lib.page(pictures, names, options.tile, f'{experiment}: {options.split} examples')
  else:
    content = pictures_lib.grid(pictures, options.columns, names, options.tile)
  folder = os.path.dirname(os.path.abspath(output))
  paths.make_folder(folder)
  paths.write_atomically(output, content)
  height, width = pictures[0].image.shape[:2]
  print(f'{output}: {len(pictures)} {options.split} examples of {experiment}, {width} x {height} pixels')
  print(f'pixels: {how}; class names: {len(names) or "none found beside the input, numbers are shown"}')
  return {
    'experiment': experiment,
    'split': options.split,
    'examples': len(pictures),
    'width': int(width),
    'height': int(height),
    'pixels': how,
    'class_names': {str(number): names.of(number) for number in names.numbers},
    'output': output,
  }


def _pictures(task: Any, data: Any, path: str, number: int) -> tuple[list[pictures_lib.Picture], str]:
  """The first pictures of an input, and how their pixels were restored."""
  pictures: list[pictures_lib.Picture] = []
  how = ''
  with data_checks.open_batches(task, data, path) as (dataset, _):
    for batch in dataset:
      found, how = pictures_lib.pictures_of_batch(batch, task)
      pictures += found
      if len(pictures) >= number:
        break
  if not pictures:
    raise input_faults.no_examples(path, data, config_fields.of_data(data).global_batch_size)
  return pictures[:number], how
