"""Examples for the verification and the calibration of exports: of a run's data, and image files of many kinds.

Image files have other sizes, orientations and modes than the run's data. The export is compared on them with the task,
from the bytes of a file to the answer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import io
import itertools
import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import tf_records
from official_ext.data import bad_examples
from official_ext.data import config_fields
from official_ext.data import input_faults
from official_ext.data import input_files
from official_ext.data.prepare import planning
from official_ext.data.prepare import preparing
from official_ext.data.prepare import shards
from official_ext.deployment import comparing
from official_ext.training.trained import trained_model
from official_ext.vision.conversion import pixels as pixels_lib

_ORIENTATION = 0x0112  # The EXIF tag.
_KINDS = {'JPEG': '.jpg', 'PNG': '.png', 'GIF': '.gif', 'BMP': '.bmp'}  # The format of Pillow, the ending.
_WAVES = (3, 7, 29)  # Pixels; the shortest shows how an image is reduced.


@dataclasses.dataclass(frozen=True)
class RawFile:
  """An image file.

  Attributes:
    name: its format, mode, orientation and size, in words.
    ending: of its name, such as '.jpg'.
    content: its bytes.
  """

  name: str
  ending: str
  content: bytes


@dataclasses.dataclass(frozen=True)
class FileExamples:
  """Files as examples of a verification.

  Attributes:
    names: of the files.
    inputs: of the export for each file, by name, without the dimension of the batch.
    expected: the model's own answers, by name: arrays `[n, ...]`. None: the inputs of the model are compared.
    made: the inputs of the model that the data of the task make of the files, by name: arrays `[n, ...]`.
  """

  names: list[str]
  inputs: list[Mapping[str, Any]]
  expected: dict[str, np.ndarray] | None
  made: dict[str, np.ndarray]


def drawn_files(size: tuple[int, int], is_grey: bool = False) -> list[RawFile]:
  """Files of all modes, orientations and formats but WebP that exports take, smaller and larger than a model's input.

  Args:
    size: (height, width) of that input.
    is_grey: whether all are grey.
  """
  found: list[RawFile] = []

  def add(kind: str, mode: str, scale: tuple[float, float], orientation: int = 1, **options: Any) -> None:
    number = len(found)
    sides = [max(8, round(side * factor)) for side, factor in zip(size, scale)]
    image = _in_mode(_draw_files(sides, number), 'L' if is_grey and mode in ('RGB', 'P') else mode)
    if orientation > 1:
      options['exif'] = _exif(orientation)
    content = io.BytesIO()
    image.save(content, kind, **options)
    turned = f', orientation {orientation}' if orientation > 1 else ''
    name = f'{kind} {image.mode}{turned}, {sides[1]} x {sides[0]} pixels'
    found.append(RawFile(name, _KINDS[kind], content.getvalue()))

  add('PNG', 'RGB', (1, 1))
  add('PNG', 'RGB', (2.6, 3.3))
  add('PNG', 'RGB', (3.1, 1.7))
  add('PNG', 'RGB', (0.55, 0.7))
  add('JPEG', 'RGB', (1.9, 2.4), quality=92)
  add('JPEG', 'L', (2.2, 1.4))
  add('PNG', 'L', (1.5, 1.2))
  add('PNG', 'P', (1.3, 1.6))
  add('PNG', '1', (1.4, 1.4))
  add('PNG', 'I;16', (1.6, 1.3))
  add('GIF', 'L', (1.2, 1.7))
  add('BMP', 'RGB', (1.7, 1.2))
  for orientation in range(2, 9):
    add('JPEG', 'RGB', (1.2, 1.8), orientation, quality=95)
  add('PNG', 'RGB', (1.8, 1.2), 6)
  add('PNG', 'LA', (1.2, 1.5))
  if not is_grey:
    add('PNG', 'RGBA', (1.5, 2.1))
    add('JPEG', 'CMYK', (1.4, 1.9), quality=95)
  return found


def _draw_files(sides: Sequence[int], seed: int) -> Any:
  """A picture without symmetry: waves, a checkerboard, an area of one colour; a Pillow image."""
  from PIL import Image  # pylint: disable=g-import-not-at-top

  rng = np.random.default_rng(seed)
  down, right = np.mgrid[: sides[0], : sides[1]]
  planes = []
  for _ in range(3):
    phases, directions = rng.uniform(0, 6, len(_WAVES)), rng.uniform(0, 6, len(_WAVES))
    waves = [
      np.sin((down * np.sin(direction) + right * np.cos(direction)) * 2 * np.pi / length + phase)
      for length, phase, direction in zip(_WAVES, phases, directions)
    ]
    planes.append(128 + 42 * sum(waves))
  found = np.stack(planes, -1)
  height, width = sides[0] // 3 + 1, sides[1] // 3 + 1
  found[:height, :width] = rng.uniform(0, 255, 3)
  found[-height:, :width] = (((down + right) // 2 % 2) * 255)[-height:, :width, np.newaxis]
  return Image.fromarray(np.clip(np.rint(found), 0, 255).astype(np.uint8))


def _in_mode(image: Any, mode: str) -> Any:
  """A coloured image in another mode; one with transparency has all degrees of it."""
  from PIL import Image  # pylint: disable=g-import-not-at-top

  if mode == 'I;16':
    return Image.fromarray(np.asarray(image.convert('L')).astype(np.uint16) * 257 + 100)
  if mode == 'P':
    return image.quantize(64)
  image = image.convert('RGBA' if mode == 'LA' else mode)
  if mode in ('LA', 'RGBA'):
    shares = np.linspace(0, 255, image.width).astype(np.uint8)[np.newaxis].repeat(image.height, 0)
    image.putalpha(Image.fromarray(shares))
  return image.convert(mode)


def _exif(orientation: int) -> Any:
  from PIL import Image  # pylint: disable=g-import-not-at-top

  found = Image.Exif()
  found[_ORIENTATION] = orientation
  return found


def file_batches(
  trained: trained_model.TrainedModel, kind: str | None, files: Sequence[RawFile], as_jpeg: bool = False
) -> list[Any]:
  """The batches of one example that the data of a task make of files, in an evaluation.

  `official-ext prepare` converts the files, and the task's `build_inputs` reads the result in place of its validation
  data.

  Args:
    trained: the model and its task.
    kind: one of `comparing.KINDS`, for Model Garden's tasks on images; None for other tasks.
    files: the files.
    as_jpeg: whether all are stored as JPEG, for Model Garden's tasks; else files that would change are PNG.

  Raises:
    UserError: the task's data cannot be made of files; the message has the reason.
  """
  data = trained.evaluated_data
  with tempfile.TemporaryDirectory(prefix='official_ext-files-') as folder:
    if kind is None:
      changes: dict[str, Any] = {'input_path': _prepared_rows(data, files, folder)}
    else:
      changes = {'input_path': _tf_examples(kind, data, files, as_jpeg, folder), 'tfds_name': '', 'dtype': 'float32'}
      changes |= {'decode_jpeg_only': False, 'resize_eval_groundtruth': True, 'file_type': 'tfrecord'}
      changes = {name: value for name, value in changes.items() if name in data.as_dict()}
    changes |= {'is_training': False, 'drop_remainder': False, 'global_batch_size': 1}
    try:
      found = list(itertools.islice(trained.task.build_inputs(data.replace(**changes)), len(files)))
    except errors.UserError:
      raise
    except Exception as error:  # pylint: disable=broad-except  # The task's code may raise anything.
      raise errors.UserError(f"the task's data fail on files: {bad_examples.one_line(error)}") from error
  if len(found) != len(files):
    raise errors.UserError(f"the task's data make {len(found)} examples of {len(files)} files")
  return found


class _Engine:
  """Writes shards in this process: an engine of `preparing`."""

  def __enter__(self) -> '_Engine':
    return self

  def __exit__(self, *_: object) -> None:
    pass

  def answers(self, jobs: Iterable[dict[str, object]]) -> Iterator[json_values.JsonObject | None]:
    """The answer to each job."""
    for job in jobs:
      yield shards.write_or_report(job)


def _prepared_rows(data: Any, files: Sequence[RawFile], folder: str) -> str:
  """A folder of `official-ext prepare` with these files first, in their order, and with the classes of the task's.

  Raises:
    UserError: the task's data are not such a folder.
  """
  where = 'task.validation_data.input_path: is not a folder of images; convert the images with official-ext prepare'
  try:
    found = input_files.find_prepared(config_fields.of_data(data).input_path or '')
  except errors.UserError as error:
    raise errors.UserError(errors.lines_of(error)[0]) from None
  if found is None or found.kind != 'images':
    raise errors.UserError(where)
  images = os.path.join(folder, 'images')
  for number, label in enumerate(found.labels):
    os.makedirs(os.path.join(images, label))
    for index, file in enumerate(files if number == 0 else files[:1]):
      with open(os.path.join(images, label, f'{index:04d}{file.ending}'), 'wb') as f:
        f.write(file.content)
  make_engine: Callable[[int], contextlib.AbstractContextManager[Any]] = lambda num_shards: _Engine()
  preparing.prepare([images], os.path.join(folder, 'rows'), planning.Settings(), make_engine)
  return os.path.join(folder, 'rows')


def _tf_examples(kind: str, data: Any, files: Sequence[RawFile], as_jpeg: bool, folder: str) -> str:
  """A TFRecord file that Model Garden's decoders read, with images as `prepare --for` stores them, and no objects."""
  from PIL import Image  # pylint: disable=g-import-not-at-top

  path = os.path.join(folder, f'files{tf_records.ENDING}')
  with open(path, 'wb') as f:
    for number, file in enumerate(files):
      pixels = pixels_lib.read(file.content)
      if not as_jpeg and pixels.content is not file.content:
        pixels = pixels_lib.read(file.content, 'png')
      width, height = pixels.shown
      features: dict[str, tf_records.Feature] = {
        config_fields.of_data(data).image_field_key: pixels.content,
        'image/source_id': str(number).encode(),
        'image/height': height,
        'image/width': width,
      }
      if kind == comparing.CLASSES:
        features[data.label_field_key] = 0
      if kind == comparing.PIXELS:
        features['image/segmentation/class/encoded'] = pixels_lib.png(Image.new('L', (width, height)))
      f.write(tf_records.framed(tf_records.encode_example(features)))
  return path


SPLITS = ('validation_data', 'train_data')
CALIBRATION_EXAMPLES = 128

_MOST_BATCH = 16
# Of inputs and outputs that are held for a verification.
_MOST_BYTES = 1 << 29

Arrays = Mapping[str, np.ndarray]
OutputsOf = Callable[[Any, Arrays], Iterable[tuple[Arrays, Mapping[str, Any]]]]


@dataclasses.dataclass(frozen=True)
class RunExamples:
  """Examples of a run's data.

  Attributes:
    split: the field of the task that they are from.
    inputs: of the verification, by the names of the exported signature: arrays `[n, ...]`.
    expected: the model's own outputs for them, by name: arrays `[n, ...]`, of dtype object if the shapes of examples
      differ.
    calibration: further inputs, for quantization: arrays `[m, ...]`; the inputs of the verification if the data
      have no others.
  """

  split: str
  inputs: dict[str, np.ndarray]
  expected: dict[str, np.ndarray]
  calibration: dict[str, np.ndarray]

  @property
  def number(self) -> int:
    """The number of examples of the verification."""
    return len(next(iter(self.inputs.values())))

  @property
  def calibration_number(self) -> int:
    """The number of examples of the calibration."""
    return len(next(iter(self.calibration.values())))


def read_examples(
  trained: trained_model.TrainedModel,
  inputs_of: Callable[[Any], Mapping[str, np.ndarray]],
  outputs_of: OutputsOf,
  number: int,
  calibrates: bool,
) -> RunExamples:
  """Reads the first examples of the validation data, in their order; of the training data if there are no others.

  Training data are read as in an evaluation: without augmentation, in the order of the files.

  Args:
    trained: the model, its task and its experiment.
    inputs_of: from a batch to the inputs of the exported signature.
    outputs_of: from a batch and these inputs to the model's own outputs, in parts: (inputs, outputs) of some examples,
      tensors `[n, ...]`.
    number: of examples to verify with, at most; fewer if they are large.
    calibrates: whether examples for a calibration are needed too. They follow the examples of the verification.

  Raises:
    UserError: the data cannot be read, or are empty.
  """
  problems = []
  for split in SPLITS:
    data = config_fields.data_of(trained.params.task, split)
    if data is None:
      continue
    try:
      return _read(trained, split, data, inputs_of, outputs_of, number, calibrates)
    except errors.UserError as error:
      problems.append(errors.lines_of(error)[0])
    except Exception as error:  # pylint: disable=broad-except  # The task's code and its files may raise anything.
      problems.append(f'task.{split}: {bad_examples.one_line(error)}')
  raise errors.UserError(problems[0] if problems else 'task.validation_data: is not set, nor is task.train_data')


def _read(trained, split, data, inputs_of, outputs_of, number, calibrates) -> RunExamples:
  missing = input_faults.unmatched(data)
  if missing is not None:
    raise errors.UserError(f'task.{split}.input_path: {missing}: No such file or directory')
  inputs: list[Mapping[str, np.ndarray]] = []
  expected: list[Mapping[str, np.ndarray]] = []
  calibration: list[Mapping[str, np.ndarray]] = []
  for batch in trained.task.build_inputs(_in_order(data)):
    found = dict(inputs_of(batch))
    if sum(map(_count, inputs)) < number:
      for part, outputs in outputs_of(batch, found):
        inputs.append(part)
        expected.append(as_arrays(outputs))
        number = min(number, max(1, _MOST_BYTES // _bytes_of_one(part, expected[-1])))
        if sum(map(_count, inputs)) >= number:
          break
    elif calibrates and sum(map(_count, calibration)) < CALIBRATION_EXAMPLES:
      calibration.append(found)
    else:
      break
  if not inputs:
    raise input_faults.no_examples(f'task.{split}', data)
  verified, answers = joined(inputs, number), joined(expected, number)
  rest = joined(calibration, CALIBRATION_EXAMPLES) if calibration else verified
  return RunExamples(split, verified, answers, rest)


def _in_order(data: Any) -> Any:
  """A data configuration that yields its examples once, in order, in batches of moderate size."""
  size = min(data.global_batch_size or _MOST_BATCH, _MOST_BATCH)
  return data.replace(is_training=False, drop_remainder=False, global_batch_size=size)


def batches(inputs: Mapping[str, np.ndarray], size: int = 1) -> Iterator[dict[str, np.ndarray]]:
  """Yields inputs in batches."""
  for start in range(0, _count(inputs), size):
    yield {name: array[start : start + size] for name, array in inputs.items()}


def _count(arrays: Mapping[str, np.ndarray]) -> int:
  return len(next(iter(arrays.values())))


def as_arrays(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Tensors as arrays; bfloat16 becomes float32."""
  found = {}
  for name, value in outputs.items():
    value = tf.convert_to_tensor(value)
    found[name] = (tf.cast(value, tf.float32) if value.dtype in (tf.bfloat16, tf.float16) else value).numpy()
  return found


def _bytes_of_one(*parts: Mapping[str, np.ndarray]) -> int:
  return sum(array.nbytes // max(1, len(array)) for arrays in parts for array in arrays.values()) or 1


def joined(parts: Sequence[Mapping[str, np.ndarray]], number: int) -> dict[str, np.ndarray]:
  """The first rows of arrays by name; arrays of several shapes become an array of objects."""
  return {name: _concatenated([part[name] for part in parts], number) for name in parts[0]}


def _concatenated(arrays: list[np.ndarray], number: int) -> np.ndarray:
  if len({array.shape[1:] for array in arrays}) == 1:
    return np.concatenate(arrays)[:number]
  return stacked([row for array in arrays for row in array][:number])


def stacked(rows: list[np.ndarray]) -> np.ndarray:
  """Rows as one array; of several shapes as an array of objects."""
  if len({row.shape for row in rows}) == 1:
    return np.stack(rows)
  found = np.empty(len(rows), object)
  for number, row in enumerate(rows):
    found[number] = row
  return found
