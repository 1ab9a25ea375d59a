"""Writes the model of a run as a folder for other programs, with the names of its classes, and verifies it."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import json
import os
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base import tf_internals
from official_ext.base.files import paths
from official_ext.base.files import whole_folders
from official_ext.base.run_folder import model_folders
from official_ext.data import config_fields
from official_ext.data import input_files
from official_ext.deployment import comparing
from official_ext.deployment import converters
from official_ext.deployment import export_options
from official_ext.deployment import input_kinds
from official_ext.deployment import run_examples
from official_ext.deployment import tensor_functions
from official_ext.deployment import verifying
from official_ext.training.tasks import base_task
from official_ext.training.trained import serving
from official_ext.training.trained import trained_model

LABELS_FILE = 'labels.txt'


def labels_of(trained: trained_model.TrainedModel) -> list[str]:
  """The names of the classes in the order of their numbers, from the task or the folder of its data; [] if unnamed."""
  own = [str(name) for name in trained.task.class_names]
  if own:
    return own
  config = trained.params.task
  for split in ('validation_data', 'train_data'):
    data = config_fields.data_of(config, split)
    names = input_files.find_class_names(data)
    if len(names):
      number = getattr(config_fields.of_task(config).model, 'num_classes', None)
      return [names.of(index) for index in range(max(len(names), number or 0))]
  return []


# Added to the attention scores of padding. -1e9 would take the whole range of 8 bits. exp(-40) is 4e-18.
_MASK_OF_INT8 = -40.0
_TOOLS = {
  export_options.SAVED_MODEL: ('tensorflow',),
  export_options.LITERT: ('tensorflow', 'ai-edge-litert'),
  export_options.ONNX: ('tensorflow', 'tf2onnx', 'onnxruntime'),
}


@dataclasses.dataclass(frozen=True)
class Exported:
  """A written export.

  Attributes:
    folder: its path.
    signatures: a line about each signature, by name.
    tensorflow_ops: operations of TensorFlow in a LiteRT model.
    verification: None if there was none.
    unverified: why there was none; ''.
    closer: the flag of an export that is closer to the model; ''.
  """

  folder: str
  signatures: Mapping[str, str]
  tensorflow_ops: tuple[str, ...]
  verification: verifying.Verification | None
  unverified: str
  closer: str = ''

  def as_dict(self) -> json_values.JsonObject:
    """The values for a program. `is_verified` is None if that is not known."""
    found = self.verification
    return {
      'folder': self.folder,
      'signatures': dict(self.signatures),
      'tensorflow_ops': list(self.tensorflow_ops),
      'is_verified': None if found is None else found.is_verified,
      'tolerance': None if found is None else found.tolerance,
      'examples': None if found is None else found.examples,
      'latency_ms': None if found is None else found.latency_ms,
      'report': self.report(),
    }

  def report(self) -> str:
    """The result of the verification, in lines of text."""
    if self.verification is None:
      return f'not verified: {self.unverified}'
    tolerance = f'the tolerance {self.verification.tolerance:g}'
    if self.verification.is_verified is None:
      status = f'not verified on image files: {self.verification.unchecked}; on pixels within {tolerance}'
    elif self.verification.is_verified:
      status = f'verified, within {tolerance}'
    else:
      status = f'NOT VERIFIED: beyond {tolerance}' + (f'; {self.closer} is closer to the model' if self.closer else '')
    return f'{status}:\n{self.verification.table()}'


STAGES = ('computing the outputs of the model on examples', 'converting and writing the model', 'running the export')


def export(
  trained: trained_model.TrainedModel,
  output_dir: str,
  options: export_options.ExportOptions,
  facts: Mapping[str, object] | None = None,
  on_stage: Callable[[str], None] = lambda stage: None,
) -> Exported:
  """Writes an export with labels.txt and export.json, and verifies it. The folder is complete, or does not exist.

  Args:
    trained: the model. For LiteRT and ONNX its arithmetic must be in float32.
    output_dir: a folder that does not exist yet.
    options: the format, the quantization, the verification.
    facts: further entries of export.json, JSON values by name.
    on_stage: called with the present stage in words, one of `STAGES`.

  Raises:
    StorageError: it cannot be written.
    UserError: the folder exists, the model cannot be converted, or examples that were requested cannot be read.
  """
  options.check()
  if paths.exists(output_dir):
    raise errors.UserError(
      f'{output_dir}: exists already; remove it, or name another: official-ext export --output_dir=DIR'
    )
  is_saved_model = options.format == export_options.SAVED_MODEL
  function = input_kinds.of_input(trained, options.input) if is_saved_model else tensor_functions.of_model(trained)
  on_stage(STAGES[0])
  examples, unverified = _examples(trained, function, options)
  files, unchecked = (None, '') if examples is None or unverified else _files(trained, function, examples, options)
  labels = labels_of(trained)
  result: dict[str, Any] = {}

  def write(folder: str) -> None:
    on_stage(STAGES[1])
    with _computation(trained, function, options) as computation:
      converted = _convert(computation, options, examples, folder)
    if labels:
      paths.write_atomically(os.path.join(folder, LABELS_FILE), ('\n'.join(labels) + '\n').encode())
    verification = None
    verified: dict[str, Any] = {'verified': None, 'verification': {'reason': unverified}}
    if examples is not None and not unverified:
      on_stage(STAGES[2])
      verification = verifying.verify(
        folder, converted.file, converted.runtime, function, examples, options.accepted, files, unchecked
      )
      verified = {'verified': verification.is_verified, 'verification': verification.as_json()}
    note = {**_note(trained, function, options, examples, converted), **(facts or {}), **verified}
    text = json.dumps(json_values.as_strict(note), indent=2) + '\n'
    paths.write_atomically(os.path.join(folder, model_folders.EXPORT_FILE), text.encode())
    result.update(converted=converted, verification=verification)

  whole_folders.write(output_dir, write, replace=False)
  converted = result['converted']
  return Exported(
    output_dir, converted.signatures, converted.tensorflow_ops, result['verification'], unverified, options.closer
  )


@contextlib.contextmanager
def _computation(
  trained: trained_model.TrainedModel,
  function: tensor_functions.TensorFunction,
  options: export_options.ExportOptions,
) -> Iterator[tensor_functions.TensorFunction]:
  """The computation to convert, inside of the context: `function`, for 'int8' with a mask of padding near 0."""
  if options.quantization != export_options.INT8:
    yield function
    return
  if (function.kind, options.format) == (comparing.BOXES, export_options.LITERT):
    # A segmentation fault, without a message, in tensorflow 2.20.
    raise errors.UserError(
      f"--quantize={options.quantization}: TensorFlow's calibration for LiteRT crashes on detectors; use "
      f'--quantize={options.closer.split("=")[1]} or --format={export_options.ONNX}'
    )
  with tf_internals.softmax_mask(_MASK_OF_INT8):
    yield tensor_functions.of_model(trained)


def _examples(
  trained: trained_model.TrainedModel,
  function: tensor_functions.TensorFunction,
  options: export_options.ExportOptions,
) -> tuple[run_examples.RunExamples | None, str]:
  """(examples for the sizes, the calibration and the verification, the reason for leaving out the verification; '')."""
  number = export_options.DEFAULT_EXAMPLES if options.examples is None else options.examples
  has_open_sizes = options.format != export_options.SAVED_MODEL and any(
    spec.shape.rank is None or None in spec.shape[1:] for spec in function.specs.values()
  )
  calibrates = options.quantization == export_options.INT8
  unverified = '' if number else 'no examples were requested'
  if unverified and not calibrates and not has_open_sizes:
    return None, unverified

  def outputs_of(batch, inputs):
    if function.reference is not None:
      yield inputs, function.reference(batch)
    else:  # One by one: the outputs of a language model are large.
      for part in run_examples.batches(inputs):
        outputs = function.call(**{name: tf.constant(array) for name, array in part.items()})
        yield part, outputs if function.has_rows else {name: output[tf.newaxis] for name, output in outputs.items()}

  try:
    return run_examples.read_examples(trained, function.inputs_of, outputs_of, max(1, number), calibrates), unverified
  except errors.UserError as error:
    if options.examples or calibrates or has_open_sizes:
      raise
    return None, errors.lines_of(error)[0]


def _files(
  trained: trained_model.TrainedModel,
  function: tensor_functions.TensorFunction,
  examples: run_examples.RunExamples,
  options: export_options.ExportOptions,
) -> tuple[run_examples.FileExamples | None, str]:
  """(image files for the verification, the reason if they are missing; '' for an export that takes no images)."""
  way = function.files
  if way is None:
    takes_images = tensor_functions.preprocessing_of(function, examples.inputs)
    name = type(trained.task).__name__
    reason = f'{name}.image_preprocessing: returns None; return an ext.ImagePreprocessing to compare image files'
    if not isinstance(trained.task, base_task.Task):
      reason = f'{name}: image files of its number of channels are not compared'
    return None, reason if takes_images else ''
  files = run_examples.drawn_files(way.preprocessing.size, way.preprocessing.channels == 1)
  try:
    batches = run_examples.file_batches(trained, way.kind, files, way.as_jpeg)
    expected = None
    if way.is_inside or options.quantization == export_options.NONE:
      expected = run_examples.joined([run_examples.as_arrays(way.reference(batch)) for batch in batches], len(files))
    made = {} if way.is_inside else run_examples.joined([function.inputs_of(batch) for batch in batches], len(files))
  except errors.UserError as error:
    return None, errors.lines_of(error)[0]
  inputs = [way.inputs_of(file.content) for file in files]
  return run_examples.FileExamples([file.name for file in files], inputs, expected, made), ''


@dataclasses.dataclass(frozen=True)
class _Converted:
  """A model in a folder.

  Attributes:
    file: its name in the folder; '' for a SavedModel.
    runtime: a format of `runtime_script`.
    signatures: a line about each signature, by name.
    tensorflow_ops: operations of TensorFlow in a LiteRT model.
    concrete: the function that was converted.
  """

  file: str
  runtime: str
  signatures: Mapping[str, str]
  tensorflow_ops: tuple[str, ...]
  concrete: Any


def _convert(
  function: tensor_functions.TensorFunction,
  options: export_options.ExportOptions,
  examples: run_examples.RunExamples | None,
  folder: str,
) -> _Converted:
  """Writes the model into a folder."""
  if options.format == export_options.SAVED_MODEL:
    try:
      tf_internals.save_signatures(function.module, folder, function.signatures)
    except AssertionError as error:
      if "'untracked' resource" not in str(error):
        raise
      raise errors.UserError(
        'serving_function: captures a table or a variable that the model does not hold; assign it to an attribute of '
        'the model, such as model.table = table'
      ) from error
    lines = {name: serving.describe(each) for name, each in function.signatures.items()}
    return _Converted('', options.format, lines, (), function.call)
  calibration = examples.calibration if examples is not None else None
  is_litert = options.format == export_options.LITERT
  concrete = function.traced(examples.inputs if examples else None, batch_size=1 if is_litert else None)
  lines = {serving.DEFAULT: serving.describe(concrete)}
  if not is_litert:
    converters.convert_to_onnx(concrete, options.quantization, calibration, os.path.join(folder, converters.ONNX_FILE))
    return _Converted(converters.ONNX_FILE, options.format, lines, (), concrete)
  model = converters.convert_to_litert(concrete, options.quantization, calibration)
  paths.write_atomically(os.path.join(folder, converters.LITERT_FILE), model.content)
  runtime = 'litert_tensorflow' if model.tensorflow_ops else options.format
  return _Converted(converters.LITERT_FILE, runtime, lines, model.tensorflow_ops, concrete)


def _note(
  trained: trained_model.TrainedModel,
  function: tensor_functions.TensorFunction,
  options: export_options.ExportOptions,
  examples: run_examples.RunExamples | None,
  converted: _Converted,
) -> json_values.JsonObject:
  """The entries of export.json that describe the model."""
  note: json_values.JsonObject = {
    'format': options.format,
    'file': converted.file or None,
    'quantization': options.quantization,
    'input': options.input,
    'task': f'{type(trained.task).__module__}.{type(trained.task).__qualname__}',
    'checkpoint': trained.checkpoint,
    'step': trained.step,
    'weights': trained.weights,
    'signature': tensor_functions.signature_of(converted.concrete),
    'preprocessing': tensor_functions.preprocessing_of(function, examples.inputs if examples else None),
    'tools': {name: package_imports.version(name) for name in _TOOLS[options.format]},
  }
  if options.quantization == export_options.INT8 and examples is not None:
    note['calibration'] = {'examples': examples.calibration_number, 'split': examples.split}
  if converted.tensorflow_ops:
    note['tensorflow_ops'] = list(converted.tensorflow_ops)
  return note
